"""Datasets on disk: building, pairs and reading."""
