"""A model of `transformers` with or without the head of a task, as a recipe and weights."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor

from lm.config import ModelConfig
from lm.exchange import from_hugging_face
from lm.exchange.task_heads import FineTuned, TaskHead, body_tensors, from_task_class, published_head
from lm.head_config import HeadLayers
from pipelines.exchange.task_export import LABELS, LEARNED
from pipelines.tasks import task_class, task_names
from pipelines.tasks.task import Task

TASKS = {"sequence": "classes", "token": "tokens", "span": "spans", "choice": "choices"}
"""The task of a head by its kind; a head that predicts numbers is that of regression"""


@dataclass(frozen=True)
class ImportedModel:
    """What a run is made of."""

    config: ModelConfig
    weights: dict[str, Tensor]
    left_out: list[str]
    """Parts that our model does not have"""
    new_head: bool = False
    """Whether the masked-token head is new, with random weights"""
    task: Task | None = None
    head_layers: HeadLayers | None = None


def read_model(
    settings: Mapping[str, Any], tensors: Mapping[str, Tensor], without_head: bool, columns: tuple[str, ...]
) -> ImportedModel:
    """Return the model of a config.json, `settings`, and its tensors. A fine-tuned model comes with its head and task.

    without_head: leave the head and the task out. columns: names of the columns that the task reads. Raises ValueError
    as `from_hugging_face` does, and for a head whose task bytelm lacks.
    """
    found = published_head(settings)
    if found is not None and not without_head:
        model = from_task_class(found, settings, tensors)
        task = _task(model, settings, columns)
        return ImportedModel(model.config, model.weights, [], task=task, head_layers=model.head.layers)
    if columns:
        raise ValueError("`columns` is for a model with the head of a task: leave it out")
    read = from_hugging_face(settings, tensors if found is None else _language_tensors(found, settings, tensors))
    left_out = [] if found is None else [f"the head of {found.auto_class}"]
    return ImportedModel(read.config, read.weights, [*left_out, *read.left_out], read.new_head)


def _language_tensors(found: TaskHead, settings: Mapping[str, Any], tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the tensors of a fine-tuned model, without its head, with the names that a language model has."""
    fmt = found.format
    tied = settings.get("tie_word_embeddings", fmt.defaults.get("tie_word_embeddings", True))
    if not tied and fmt.fixed["architecture"] != "encoder":
        raise ValueError(
            f"{found.auto_class} has no output matrix, because tie_word_embeddings is False, so it makes no language "
            "model: leave `without_head` out"
        )
    own = tuple(f"{name}." for name in (found.dense, found.norm, found.output) if name)
    return body_tensors(found, {name: tensor for name, tensor in tensors.items() if not name.startswith(own)})


def _task(model: FineTuned, settings: Mapping[str, Any], columns: tuple[str, ...]) -> Task:
    """Return the task of a fine-tuned model. Raises ValueError for a head that no task of bytelm has."""
    head = model.head
    name = "regression" if head.loss == "squared" else TASKS[head.kind]
    if name not in task_names():
        raise ValueError(f"bytelm has no task for the class {settings['architectures'][0]}: import it `without_head`")
    facts: dict[str, Any] = {
        "columns": columns,
        "labels": _labels(model, settings),
        "several": head.loss == "binary",
        "pooling": head.pooling,
    }
    learned = {name: settings.get(f"bytelm_{name}") for name in LEARNED}  # only in our exports
    facts |= {name: value for name, value in learned.items() if isinstance(value, LEARNED[name])}
    kind = task_class(name)
    task = kind(**{field.name: facts[field.name] for field in fields(kind) if field.name in facts})
    if model.config.architecture not in task.architectures:
        raise ValueError(
            f"the task {name} is for {' and '.join(task.architectures)}, not for a model of architecture "
            f"{model.config.architecture!r}: import it `without_head`"
        )
    own = task.head(model.config.architecture)
    if own is not None and own.outputs != head.outputs and head.kind != "span":  # a span always has two
        raise ValueError(
            f"{settings['architectures'][0]} has a head with {head.outputs} outputs, but that of the task {name} has "
            f"{own.outputs}: import it `without_head`"
        )
    return task


def _labels(model: FineTuned, settings: Mapping[str, Any]) -> tuple[str | int, ...]:
    """Return the labels. They are whole numbers if bytelm exported a run with such labels, otherwise strings."""
    given = settings.get(LABELS)
    if isinstance(given, list) and all(type(one) is int for one in given) and tuple(map(str, given)) == model.labels:
        return tuple(given)
    return model.labels
