"""Scaling laws of a text: the plan of the runs, the runs, the summary of the fitted law, and its picture."""
