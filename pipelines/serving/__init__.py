"""The server of `bytelm serve`: its API, its page and its inference engine."""
