"""What the LSTM costs. Imports no torch."""

from lm.mixers.gates_costs import GatedRecurrenceCosts


class LSTMCosts(GatedRecurrenceCosts):
    """Costs of 4 gates and a state of 2 tensors."""

    gates, parts = 4, 2


COSTS = LSTMCosts
