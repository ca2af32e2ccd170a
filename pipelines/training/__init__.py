"""Training: data loading, the loop, parallel processes and checkpoints."""
