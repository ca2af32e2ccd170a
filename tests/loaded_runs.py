"""Variants of loaded runs, for tests of models that no file holds."""

import copy
from dataclasses import replace

import bytelm
from pipelines.run.folder import Run
from tests.lm.introspection_cases import copying_induction_model


def variant(run, model=None, **fields):
    """Return a copy of a loaded run with another model, `config`, `tokenizer` or `around`."""
    other = copy.copy(run)
    other.run = Run(run.path)
    other.run.loaded = other
    vars(other).update(fields, loaded=replace(run.loaded, model=run.loaded.model if model is None else model))
    return other


def induction_run(run):
    """Return a variant of a decoder's run: the hand-written induction head, over the words "a" to "r"."""
    tok = bytelm.Tokenizer.train(["a b c d e f g h i j k l m n o p q r "] * 3, vocab_size=24, kind="words")
    model = copying_induction_model(tok.vocab_size)
    around = replace(run.around, before=(), special=tok.special_tokens)
    return variant(run, model=model, config=replace(run.config, model=model.config), tokenizer=tok, around=around)
