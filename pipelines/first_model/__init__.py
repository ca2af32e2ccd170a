"""`bytelm train`: from a text to a vocabulary, a dataset, models, their evaluation and a report."""
