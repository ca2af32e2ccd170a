"""Training: pretoken counts to a merge list."""
