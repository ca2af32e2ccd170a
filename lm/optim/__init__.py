"""Optimizers, schedules and weight averaging."""
