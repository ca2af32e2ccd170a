"""The sweep over vocabularies: its plan, vocabularies, runs, statistics and picture."""
