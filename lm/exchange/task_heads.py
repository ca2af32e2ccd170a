"""Heads of fine-tuned models in `transformers`: their tensors by our names, and back.

Our state dict of a fine-tuned model has the body under `body.`, with the names of `LanguageModel`, and the head under
`head.`: `dense` and `norm`, which some heads lack, then `output`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal

import torch
from torch import Tensor

from lm.config import ModelConfig
from lm.exchange import format_of
from lm.exchange.bert import BERT, DISTILBERT, ROBERTA
from lm.exchange.conversion import with_copies
from lm.exchange.format import Entry, Format, Pretrained, layer
from lm.exchange.gpt2 import GPT2
from lm.exchange.gpt_neox import GPT_NEOX
from lm.exchange.llama import LLAMA
from lm.exchange.modernbert import MODERNBERT
from lm.exchange.t5 import T5
from lm.head_config import HeadConfig, HeadKind, HeadLayers, Loss, Pooling, usual_layers
from lm.task_model import TaskModel

PROBLEMS: dict[Loss, str] = {
    "cross-entropy": "single_label_classification",
    "binary": "multi_label_classification",
    "squared": "regression",
}
"""problem_type of config.json by our loss"""


@dataclass(frozen=True, kw_only=True)
class TaskHead:
    """A class of `transformers` with a task head: what the head computes, and the names of its layers."""

    format: Format
    kind: HeadKind
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
    """Positions that a head of the kinds sequence and choice can read, with the settings of config.json that choose
    them. last: the last token that is no padding; in T5 the end token of the decoder's input."""

    @property
    def name(self) -> str:
        """The name of the class, as formats have one."""
        return self.auto_class

    @property
    def layers(self) -> HeadLayers:
        """The layers before the output matrix, by our name."""
        if self.activation == "gelu":
            return "gelu-norm"
        return self.activation or "none"

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
    prefixes: Mapping[HeadKind, str] | None = None,
    poolings: Mapping[Pooling, Mapping[str, Any]],
    **heads: Mapping[str, Any],
) -> Iterator[TaskHead]:
    """Yield the classes of a family, whose names begin with `stem`; `heads`: fields of `TaskHead` by kind."""
    suffixes: dict[HeadKind, str] = {
        "sequence": "SequenceClassification",
        "token": "TokenClassification",
        "span": "QuestionAnswering",
        "choice": "MultipleChoice",
    }
    for kind, suffix in suffixes.items():
        if kind in heads:
            yield TaskHead(
                format=format_,
                kind=kind,
                auto_class=f"{stem}For{suffix}",
                prefix=(prefixes or {}).get(kind, format_.prefix),
                poolings=poolings if kind in ("sequence", "choice") else {},
                **heads[kind],
            )


FIRST: dict[Pooling, dict[str, Any]] = {"first": {}}
LAST: dict[Pooling, dict[str, Any]] = {"last": {}}
TOKEN, SPAN = {"output": "classifier"}, {"output": "qa_outputs"}
SCORE = {"output": "score", "output_bias": False}
BERT_POOLER = {"dense": "bert.pooler.dense", "activation": "tanh", "output": "classifier"}
ROBERTA_POOLER = {"dense": "roberta.pooler.dense", "activation": "tanh", "output": "classifier"}
ROBERTA_HEAD = {"dense": "classifier.dense", "activation": "tanh", "output": "classifier.out_proj"}
DISTILBERT_HEAD = {"dense": "pre_classifier", "activation": "relu", "output": "classifier"}
MODERNBERT_HEAD = {"dense": "head.dense", "norm": "head.norm", "activation": "gelu", "output": "classifier"}
T5_HEAD = {"dense": "classification_head.dense", "activation": "tanh", "output": "classification_head.out_proj"}

TASK_HEADS = (
    *_family(BERT, "Bert", poolings=FIRST, sequence=BERT_POOLER, token=TOKEN, span=SPAN, choice=BERT_POOLER),
    *_family(ROBERTA, "Roberta", poolings=FIRST, sequence=ROBERTA_HEAD, token=TOKEN, span=SPAN, choice=ROBERTA_POOLER),
    *_family(
        DISTILBERT,
        "DistilBert",
        poolings=FIRST,
        sequence=DISTILBERT_HEAD,
        token=TOKEN,
        span=SPAN,
        choice=DISTILBERT_HEAD,
    ),
    *_family(
        MODERNBERT,
        "ModernBert",
        poolings={"first": {"classifier_pooling": "cls"}, "mean": {"classifier_pooling": "mean"}},
        sequence=MODERNBERT_HEAD,
        token=MODERNBERT_HEAD,
        span=MODERNBERT_HEAD,
        choice=MODERNBERT_HEAD,
    ),
    *_family(GPT2, "GPT2", poolings=LAST, sequence=SCORE, token=TOKEN, span=SPAN),
    *_family(GPT_NEOX, "GPTNeoX", poolings=LAST, sequence=SCORE, token=TOKEN, span=SPAN),
    *_family(
        LLAMA,
        "Llama",
        prefixes={"span": "transformer."},
        poolings=LAST,
        sequence=SCORE,
        token={"output": "score"},
        span=SPAN,
    ),
    *_family(T5, "T5", prefixes={"sequence": "transformer."}, poolings=LAST, sequence=T5_HEAD, span=SPAN),
)


def task_head(model_type: str, kind: HeadKind) -> TaskHead:
    """Return the head of a kind in a format. Raises ValueError if transformers has none."""
    known = {each.kind: each for each in TASK_HEADS if each.format.model_type == model_type}
    if kind not in known:
        raise ValueError(f"transformers has no head of the kind {kind!r} for {model_type!r}: it has {', '.join(known)}")
    return known[kind]


def expressed_head(config: ModelConfig, head: HeadConfig, model_type: str | None = None) -> TaskHead:
    """Return the class of transformers that computes what our model computes; `model_type`: see `format_of`.

    Raises ValueError, with the remedy, if there is none.
    """
    found = task_head(format_of(config, model_type).model_type, head.kind)
    if found.poolings and head.pooling not in found.poolings:
        able = " or ".join(f"`pooling={pooling!r}`" for pooling in found.poolings)
        raise ValueError(
            f"{found.auto_class} cannot express `pooling={head.pooling!r}`: fine-tune the run with {able} to export it"
        )
    layers = head.layers or usual_layers(config, head.kind)
    if layers != found.layers:
        raise ValueError(
            f"{found.auto_class} has head_layers = {found.layers!r}, and this run has {layers!r}: fine-tune again to "
            "export it"
        )
    return found


def task_settings(found: TaskHead, config: ModelConfig, head: HeadConfig, labels: Sequence[str] = ()) -> dict[str, Any]:
    """Return config.json of a fine-tuned model; `labels` name the outputs of the head."""
    settings = {
        "architectures": [found.auto_class],
        "model_type": found.format.model_type,
        **found.format.write(config),
    }
    settings |= found.poolings.get(head.pooling, {})
    if head.kind in ("sequence", "token"):
        names = list(labels) or [f"LABEL_{i}" for i in range(head.outputs)]
        settings["id2label"] = {str(i): name for i, name in enumerate(names)}
        settings["label2id"] = {name: i for i, name in enumerate(names)}
    if head.kind == "sequence":
        settings["problem_type"] = PROBLEMS[head.loss]
    return settings


def to_task_model(head: TaskHead, config: ModelConfig, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a fine-tuned model in its class of `transformers`, given our state dict."""
    weights = with_copies(config, weights)
    tensors = {entry.theirs: entry.pack(weights) for entry in head.entries(config)}
    return tensors | {name: torch.zeros(shape) for name, shape in head.zeros(config).items()}


@dataclass(frozen=True)
class FineTuned:
    """A fine-tuned model of `transformers`, converted to ours."""

    config: ModelConfig
    head: HeadConfig
    labels: tuple[str, ...]
    """Names of the outputs of a head of the kinds sequence and token"""
    weights: dict[str, Tensor]
    """Float32 `state_dict`"""


def published_head(settings: Mapping[str, Any]) -> TaskHead | None:
    """Return the head of the class that a config.json names, if it is one of `TASK_HEADS`."""
    classes = settings.get("architectures")
    name = classes[0] if isinstance(classes, list) and classes else None
    return next((head for head in TASK_HEADS if head.auto_class == name), None)


def body_tensors(head: TaskHead, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors of a fine-tuned model with the names that its body has in the language model."""
    return {
        head.format.prefix + name.removeprefix(head.prefix) if name.startswith(head.prefix) else name: tensor
        for name, tensor in tensors.items()
    }


def from_task_class(found: TaskHead, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> FineTuned:
    """Return the model of a config.json, `settings`, and its tensors. Raises ValueError as `from_hugging_face` does."""
    given = _current_names(found, tensors)
    fmt, output = found.format, given.get(f"{found.output}.weight")
    if output is None or output.ndim != 2:
        raise ValueError(
            f"the weights have no {found.output}.weight, which {found.auto_class} has: take complete files"
        )
    # The formats look at some tensors to read the settings.
    fields = fmt.read(Pretrained({**fmt.defaults, **settings}, body_tensors(found, given)))
    try:
        config = ModelConfig(**fields)
    except ValueError as error:
        raise ValueError(f"config.json makes a model that cannot be built: {error}") from None
    head = HeadConfig(
        kind=found.kind,
        outputs=len(output),
        pooling=_pooling(found, settings),
        loss=_loss(found, settings, len(output)),
        layers=found.layers,
    )
    labels = _labels(settings, len(output)) if found.kind in ("sequence", "token") else ()
    return FineTuned(config, head, labels, from_task_model(found, config, tensors))


def from_task_model(head: TaskHead, config: ModelConfig, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return our float32 state dict of a fine-tuned model, given the tensors of its class of `transformers`.

    Raises ValueError, by name, for tensors that are missing, without a place, of another shape, not floating-point or
    not finite.
    """
    given = _current_names(head, tensors)
    outputs = len(given.get(f"{head.output}.weight", ()))
    with torch.device("meta"):
        expected = TaskModel(config, HeadConfig(kind=head.kind, outputs=outputs, layers=head.layers), None).state_dict()
    weights: dict[str, Tensor] = {}
    for entry in head.entries(config):
        if entry.theirs not in given:
            raise ValueError(f"the weights have no {entry.theirs}, which {head.auto_class} has: take complete files")
        weights |= entry.checked(given.pop(entry.theirs), expected)
    assert weights.keys() == expected.keys()
    copies = {head.with_prefix(name) for name in head.format.copies(config)}
    zeros = head.zeros(config)
    for name, tensor in given.items():
        unused = any(re.search(pattern, name) for pattern in head.format.left_out)
        if not (unused or name in copies or (name in zeros and not tensor.any())):
            raise ValueError(
                f"the weights have {name}, for which a {head.auto_class} with this config.json has no place"
            )
    return weights


def _pooling(found: TaskHead, settings: Mapping[str, Any]) -> Pooling:
    """Return the pooling that the settings choose; without them the first that the class has."""
    for pooling, chosen in found.poolings.items():
        if all(settings.get(key, value) == value for key, value in chosen.items()):
            return pooling
    if not found.poolings:
        return "first"
    [key] = {key for chosen in found.poolings.values() for key in chosen}
    known = " or ".join(repr(value) for chosen in found.poolings.values() for value in chosen.values())
    raise ValueError(f"config.json has {key} = {settings[key]!r}, which is not supported: known are {known}")


def _loss(found: TaskHead, settings: Mapping[str, Any], outputs: int) -> Loss:
    """Return the loss of problem_type; without it, transformers trains a text classifier with one output on numbers."""
    problem = settings.get("problem_type")
    if found.kind != "sequence":
        return "cross-entropy"
    if problem is None:
        return "squared" if outputs == 1 else "cross-entropy"
    for loss, name in PROBLEMS.items():
        if name == problem:
            return loss
    raise ValueError(f"config.json has problem_type = {problem!r}: known are {', '.join(PROBLEMS.values())}")


def _labels(settings: Mapping[str, Any], outputs: int) -> tuple[str, ...]:
    """Return the names of the outputs in id2label; LABEL_0, LABEL_1 and so on without it."""
    given = settings.get("id2label") or {str(i): f"LABEL_{i}" for i in range(outputs)}
    names = [given.get(str(i)) for i in range(len(given))] if isinstance(given, dict) else []
    if len(names) != outputs or not all(isinstance(name, str) for name in names):
        raise ValueError(f"config.json has an id2label that does not name the {outputs} outputs of the head: fix it")
    if twice := [name for name in names if names.count(name) > 1]:
        raise ValueError(f"config.json has the label {twice[0]!r} twice in id2label: rename one")
    return tuple(map(str, names))


def _current_names(head: TaskHead, tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors that a model reads, under the names of current files."""
    found = {}
    for name, tensor in tensors.items():
        for pattern, replacement in head.format.renamed.items():
            name = re.sub(pattern, replacement, name)
        if not any(re.search(pattern, name) for pattern in head.format.superfluous):
            found[name] = tensor
    return found
