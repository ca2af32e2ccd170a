"""Looking inside a run: instruments, what they find, and how it is shown."""
