"""Recipes: the configuration of a run, and the TOML files that come with bytelm."""
