"""What `bytelm serve` runs: inference of several requests at once."""
