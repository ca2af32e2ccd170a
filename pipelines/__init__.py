"""The verbs of the `bytelm` command, one module each."""
