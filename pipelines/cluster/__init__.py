"""Work that is divided among the workers of a Ray cluster."""
