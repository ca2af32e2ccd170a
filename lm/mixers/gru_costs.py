"""What the GRU costs. Imports no torch."""

from lm.mixers.gates_costs import GatedRecurrenceCosts


class GRUCosts(GatedRecurrenceCosts):
    """Costs of 3 gates and a state of 1 tensor."""

    gates, parts = 3, 1


COSTS = GRUCosts
