"""Metrics of predictions, their confidence intervals, and the count-based baselines to beat."""
