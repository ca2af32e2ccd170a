"""Token ids to distributions: models, objectives, optimizers, schedules, metrics.

Importing this package imports no torch: a command that only reads a configuration answers at once.
"""
