"""Scaling laws of a text: the plan, the runs, the summary of the fitted law, and its picture."""
