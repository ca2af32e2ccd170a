"""Heads of fine-tuned models in `transformers`: their tensors by our names, and back.

Our state dict of a fine-tuned model has the body under `body.`, with the names of `LanguageModel`, and the head under
`head.`: `dense` and `norm`, which some heads lack, then `output`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.exchange.bert import BERT, DISTILBERT, ROBERTA
from lm.exchange.format import Entry, Format, layer
from lm.exchange.gpt2 import GPT2
from lm.exchange.gpt_neox import GPT_NEOX
from lm.exchange.llama import LLAMA
from lm.exchange.modernbert import MODERNBERT
from lm.exchange.t5 import T5

Task = Literal["sequence", "tokens", "spans", "choice"]
Pooling = Literal["first", "mean", "last"]


@dataclass(frozen=True, kw_only=True)
class TaskHead:
    """A class of `transformers` with a task head: what the head computes, and the names of its layers."""

    format: Format
    task: Task
    """sequence: label logits of a text. tokens: of each token. spans: start and end logits of each token. choice: one
    logit for each choice."""
    auto_class: str
    prefix: str
    """Prefix of the body's tensors."""
    dense: str = ""
    norm: str = ""
    output: str
    """Names of the layers; a head without `dense` is the output alone."""
    output_bias: bool = True
    activation: Literal["tanh", "gelu", "relu"] | None = None
    """Activation after `dense`."""
    poolings: Mapping[Pooling, Mapping[str, Any]] = field(default_factory=dict)
    """Positions that a head of the tasks sequence and choice can read, with the settings of config.json that choose
    them. last: the last token that is no padding; in T5 the end token of the decoder's input."""

    def entries(self, config: ModelConfig) -> Iterator[Entry]:
        """Yield the tensors of body and head."""
        for entry in self.format.entries(config):
            if not entry.ours[0].startswith("head."):
                ours = tuple(f"body.{name}" for name in entry.ours)
                yield replace(entry, theirs=self.with_prefix(entry.theirs), ours=ours)
        bias = config.bias if self.norm else True  # ModernBERT's settings of biases apply to its head too
        for theirs, part, has_bias in (
            (self.dense, "dense", bias),
            (self.norm, "norm", bias),
            (self.output, "output", self.output_bias),
        ):
            if theirs:
                yield from layer(theirs, f"head.{part}", bias=has_bias)

    def with_prefix(self, name: str) -> str:
        """Return a tensor name of the format with the prefix that the body has in this class."""
        return self.prefix + name.removeprefix(self.format.prefix)

    def zeros(self, config: ModelConfig) -> dict[str, tuple[int, ...]]:
        """Return the shapes of tensors that the class has and our model lacks."""
        return {self.with_prefix(name): shape for name, shape in self.format.zeros(config).items()}


def _family(
    format_: Format,
    stem: str,
    *,
    prefixes: Mapping[Task, str] | None = None,
    poolings: Mapping[Pooling, Mapping[str, Any]],
    **heads: Mapping[str, Any],
) -> Iterator[TaskHead]:
    """Yield the classes of a family, whose names begin with `stem`; `heads`: fields of `TaskHead` by task."""
    suffixes: dict[Task, str] = {
        "sequence": "SequenceClassification",
        "tokens": "TokenClassification",
        "spans": "QuestionAnswering",
        "choice": "MultipleChoice",
    }
    for task, suffix in suffixes.items():
        if task in heads:
            yield TaskHead(
                format=format_,
                task=task,
                auto_class=f"{stem}For{suffix}",
                prefix=(prefixes or {}).get(task, format_.prefix),
                poolings=poolings if task in ("sequence", "choice") else {},
                **heads[task],
            )


FIRST: dict[Pooling, dict[str, Any]] = {"first": {}}
LAST: dict[Pooling, dict[str, Any]] = {"last": {}}
TOKENS, SPANS = {"output": "classifier"}, {"output": "qa_outputs"}
SCORE = {"output": "score", "output_bias": False}
BERT_POOLER = {"dense": "bert.pooler.dense", "activation": "tanh", "output": "classifier"}
ROBERTA_POOLER = {"dense": "roberta.pooler.dense", "activation": "tanh", "output": "classifier"}
ROBERTA_HEAD = {"dense": "classifier.dense", "activation": "tanh", "output": "classifier.out_proj"}
DISTILBERT_HEAD = {"dense": "pre_classifier", "activation": "relu", "output": "classifier"}
MODERNBERT_HEAD = {"dense": "head.dense", "norm": "head.norm", "activation": "gelu", "output": "classifier"}
T5_HEAD = {"dense": "classification_head.dense", "activation": "tanh", "output": "classification_head.out_proj"}

TASK_HEADS = (
    *_family(BERT, "Bert", poolings=FIRST, sequence=BERT_POOLER, tokens=TOKENS, spans=SPANS, choice=BERT_POOLER),
    *_family(
        ROBERTA, "Roberta", poolings=FIRST, sequence=ROBERTA_HEAD, tokens=TOKENS, spans=SPANS, choice=ROBERTA_POOLER
    ),
    *_family(
        DISTILBERT,
        "DistilBert",
        poolings=FIRST,
        sequence=DISTILBERT_HEAD,
        tokens=TOKENS,
        spans=SPANS,
        choice=DISTILBERT_HEAD,
    ),
    *_family(
        MODERNBERT,
        "ModernBert",
        poolings={"first": {"classifier_pooling": "cls"}, "mean": {"classifier_pooling": "mean"}},
        sequence=MODERNBERT_HEAD,
        tokens=MODERNBERT_HEAD,
        spans=MODERNBERT_HEAD,
        choice=MODERNBERT_HEAD,
    ),
    *_family(GPT2, "GPT2", poolings=LAST, sequence=SCORE, tokens=TOKENS, spans=SPANS),
    *_family(GPT_NEOX, "GPTNeoX", poolings=LAST, sequence=SCORE, tokens=TOKENS, spans=SPANS),
    *_family(
        LLAMA,
        "Llama",
        prefixes={"spans": "transformer."},
        poolings=LAST,
        sequence=SCORE,
        tokens={"output": "score"},
        spans=SPANS,
    ),
    *_family(T5, "T5", prefixes={"sequence": "transformer."}, poolings=LAST, sequence=T5_HEAD, spans=SPANS),
)


def task_head(model_type: str, task: Task) -> TaskHead:
    """Return the head of `transformers` for a task in a format. Raises ValueError if there is none."""
    known = {each.task: each for each in TASK_HEADS if each.format.model_type == model_type}
    if task not in known:
        raise ValueError(f"transformers has no head for the task {task!r} of {model_type!r}: it has {', '.join(known)}")
    return known[task]


def to_task_model(head: TaskHead, config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a fine-tuned model in its class of `transformers`, given our state dict."""
    tensors = {entry.theirs: entry.pack(weights) for entry in head.entries(config)}
    return tensors | {name: torch.zeros(shape) for name, shape in head.zeros(config).items()}


def from_task_model(head: TaskHead, config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our float32 state dict of a fine-tuned model, given the tensors of its class of `transformers`.

    Shapes are not checked: `load_state_dict` of the model does that. Raises ValueError for tensors that are missing and
    for tensors that have no place.
    """
    given = _current_names(head, tensors)
    weights: dict[str, Tensor] = {}
    for entry in head.entries(config):
        if entry.theirs not in given:
            raise ValueError(f"the weights have no {entry.theirs}, which {head.auto_class} has: take complete files")
        weights |= {name: part.float() for name, part in entry.unpack(given.pop(entry.theirs)).items()}
    copies = {head.with_prefix(name) for name in head.format.copies(config)}
    zeros = head.zeros(config)
    for name, tensor in given.items():
        unused = any(re.search(pattern, name) for pattern in head.format.left_out)
        if not (unused or name in copies or (name in zeros and not tensor.any())):
            raise ValueError(
                f"the weights have {name}, for which a {head.auto_class} with this config.json has no place"
            )
    return weights


def _current_names(head: TaskHead, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that a model reads, under the names of current files."""
    found = {}
    for name, tensor in tensors.items():
        for pattern, replacement in head.format.renamed.items():
            name = re.sub(pattern, replacement, name)
        if not any(re.search(pattern, name) for pattern in head.format.superfluous):
            found[name] = tensor
    return found
