"""Token ids to distributions: models, objectives, optimizers, schedules, metrics.

Importing this package does not import torch, so that commands which only read a configuration start fast.
"""
