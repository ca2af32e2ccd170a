"""Labels and activations of the words or texts in a file, for probes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from corpora.rows import hash_split
from corpora.tagged_files import is_tagged_file
from lm.introspection.activations import observed
from lm.introspection.inference import inference_mode
from pipelines.tasks.classes import Classes
from pipelines.tasks.examples import Encoded, batch_of
from pipelines.tasks.task import Example
from pipelines.tasks.text_reader import TextReader
from pipelines.tasks.tokens import Tokens
from pipelines.training.batch import model_inputs
from pipelines.training.batch_loss import to_device

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun

HELD_OUT, ROWS = 0.2, 16  # share of the documents, and rows of a batch
WORDS = ("tokens", "words", "entities", "spans")  # columns of files with labels of words


@dataclass(frozen=True)
class Labelled:
    """N labelled words or texts, and their activations."""

    kind: str
    """word or text"""
    names: tuple[str, ...]
    """The labels"""
    labels: np.ndarray
    """(N,) int64, indices of `names`"""
    types: list[str]
    """(N) the words, or the first words of the texts"""
    documents: np.ndarray
    """(N,) int64: numbers of the documents. Rows with the same "document", or with equal inputs, are one document"""
    held_out: np.ndarray
    """(N,) bool: whether the document is held out, by its hash"""
    layers: dict[str, torch.Tensor]
    """(N, width) float32: the input of the first layer, "embedding", and the output of each layer, by its number. A
    word has the activation of its last token (its first in an encoder), a text the mean over its tokens"""


def read_labelled(run: LoadedRun, path: Path, most: int) -> Labelled:
    """Return the first `most` labelled words or texts of a file, as the tasks tokens and classes read it.

    Raises ValueError for a file that these tasks cannot read, for texts with several labels, and for too few documents
    or labels to train on one part and score on the other.
    """
    words, examples, names, encoded = _encoded(run, path)
    places = list(_places(words, examples, encoded))[:most]
    labels, types = np.array([label for _, _, label, _ in places], np.int64), [one for *_, one in places]
    origins = np.array([encoded[row].origin for row, *_ in places], np.int64)
    keys = [str(one.row.fields.get("document", one.inputs)) for one in examples]
    documents = np.unique(keys, return_inverse=True)[1][origins]
    held_out = hash_split(keys, HELD_OUT)[origins]
    if min(held_out.sum(), (~held_out).sum()) < 2 or len(set(labels[~held_out].tolist())) < 2:
        count = len(set(documents.tolist()))
        raise ValueError(
            f"{count:,} documents of {path} are read, too few to hold out a fifth and train on two labels: give more "
            "documents, at least two labels, or more `probe_examples`"
        )
    layers = _activations(run, encoded, [(row, place) for row, place, *_ in places])
    return Labelled("word" if words else "text", names, labels, types, documents, held_out, layers)


def _encoded(run: LoadedRun, path: Path) -> tuple[bool, list[Example], tuple[str, ...], list[Encoded]]:
    """Return whether a file labels words, its examples, the names of its labels, and what the model reads."""
    if not path.exists():
        raise ValueError(f"`labels` names {path}, which does not exist: give a file with a labelled text on each line")
    reader = TextReader(run.tokenizer, run.around, run.config.model)
    tags = Tokens()
    first = next(iter(tags.read(path)), None)
    if first is None:
        raise ValueError(f"{path} is empty: give a file with a labelled text on each line")
    if is_tagged_file(path) or any(name in first.fields for name in WORDS):
        tags = tags.choose_columns(first.fields)
        examples = tags.examples([path])
        tags = tags.learn(examples)
        return True, examples, tags.labels, tags.encode(examples, reader)
    classes = Classes().choose_columns(first.fields)
    examples = classes.examples([path])
    classes = classes.learn(examples)
    if classes.several:
        raise ValueError(f"{path} has several labels for each text, but a probe reads one")
    return False, examples, tuple(map(str, classes.labels)), classes.encode(examples, reader)


def _places(words: bool, examples: list[Example], encoded: list[Encoded]) -> Iterator[tuple[int, int | None, int, str]]:
    """Yield the row of `encoded`, position (None for a text), label and type of each labelled word or text."""
    for row, one in enumerate(encoded):
        inputs = examples[one.origin].inputs
        if not words:
            yield row, None, int(one.targets[0]), next(iter(inputs[0].split()), "")
            continue
        assert one.weights is not None and one.places is not None, "words have places"
        for place in np.flatnonzero(one.weights).tolist():
            yield row, place, int(one.targets[place]), inputs[int(one.places[place])].strip()


def _activations(
    run: LoadedRun, encoded: list[Encoded], places: list[tuple[int, int | None]]
) -> dict[str, torch.Tensor]:
    """Return the activations of each layer at (row, position) `places`; position None means the mean over the row."""
    model = run.model
    outputs = {f"{i}": f"blocks.{i}.hook_resid_post" for i in range(len(model.stack.blocks))}
    names = {"embedding": "blocks.0.hook_resid_pre"} | outputs
    found: dict[str, list[torch.Tensor]] = {name: [] for name in names}
    start, device = 0, model.embedding.weight.device
    with inference_mode(model), observed(model, list(names.values())) as seen:
        while start < len(places):
            first = places[start][0]
            end = start
            while end < len(places) and places[end][0] < first + ROWS:
                end += 1
            batch = batch_of(encoded[first : places[end - 1][0] + 1])
            model(**to_device(model_inputs(batch), device))
            rows = torch.tensor([row - first for row, _ in places[start:end]], device=device)
            for name, activation in names.items():
                states = seen[activation].float()
                if places[start][1] is None:
                    present = batch.inputs >= 0 if batch.present is None else batch.present
                    weights = torch.from_numpy(present / present.sum(axis=1, keepdims=True)).to(states)
                    chosen = torch.einsum("bt,btw->bw", weights, states)[rows]
                else:
                    chosen = states[rows, torch.tensor([place for _, place in places[start:end]], device=device)]
                found[name].append(chosen.cpu())
            start = end
    return {name: torch.cat(parts) for name, parts in found.items()}
