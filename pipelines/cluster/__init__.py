"""Work divided among the workers of a Ray cluster."""
