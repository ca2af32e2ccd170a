"""A run folder: recipe, tokenizer, metrics, checkpoints, evaluations, and loading the model."""
