"""Variants of loaded runs, for tests of models that no file holds."""

import copy
from dataclasses import replace

from pipelines.run.folder import Run


def variant(run, model=None, **fields):
    """Return a copy of a loaded run with another model, `config`, `tokenizer` or `around`."""
    other = copy.copy(run)
    other.run = Run(run.path)
    other.run.loaded = other
    vars(other).update(fields, loaded=replace(run.loaded, model=run.loaded.model if model is None else model))
    return other
