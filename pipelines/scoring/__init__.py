"""Scores of texts: what `bytelm score` measures, and how it prints it."""
