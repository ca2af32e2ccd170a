"""What retention costs. Imports no torch."""

from lm.mixers.decayed_costs import DecayedAttentionCosts


class RetentionCosts(DecayedAttentionCosts):
    """Costs of linear attention with a fixed decay."""

    learned_decay = False


COSTS = RetentionCosts
