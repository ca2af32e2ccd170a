"""What gated linear attention costs. Imports no torch."""

from lm.mixers.decayed_costs import DecayedAttentionCosts


class GatedLinearAttentionCosts(DecayedAttentionCosts):
    """Costs of linear attention with a decay that the input decides."""

    learned_decay = True


COSTS = GatedLinearAttentionCosts
