"""A run with the head of a task in the format of `transformers`: its settings, tensors, and code that uses it."""

import json
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lm.exchange.task_heads import TaskHead, expressed_head, task_settings, to_task_model
from pipelines.exchange.parts import Edges, Ids, Parts
from pipelines.exchange.possible_exports import check_padding
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_model
from pipelines.run.predictor import tuned_task
from pipelines.tasks.data import reader_of
from pipelines.tasks.task import Task
from pipelines.tasks.text_reader import TextReader
from tokenizer import Tokenizer

LABELS = "bytelm_labels"
"""Name in our exported config.json of labels that are whole numbers; id2label has strings only."""
LEARNED: dict[str, type | tuple[type, ...]] = {"usual_tag": str, "unanswerable": bool, "threshold": (int, float)}
"""Types of the task fields that our exported config.json also holds, by name: `bytelm_usual_tag` and so on."""
NORM_BIAS = "body.decoder.final_norm.bias"
TEXT, SECOND = "It was a dark and stormy night.", "The sun shone."
AUTO_CLASSES = {
    "sequence": "AutoModelForSequenceClassification",
    "token": "AutoModelForTokenClassification",
    "span": "AutoModelForQuestionAnswering",
    "choice": "AutoModelForMultipleChoice",
}
PIPELINE = """from transformers import pipeline

predict = pipeline("{name}", "{out}")
print(predict({text}{options}))"""
LOADING = """from transformers import {auto}, AutoTokenizer

model = {auto}.from_pretrained("{out}")
tokenizer = AutoTokenizer.from_pretrained("{out}")"""


def exported_head(recipe: Recipe, tok: Tokenizer, facts: Mapping[str, Any]) -> TaskHead:
    """Return the class of transformers that expresses the fine-tuned model of a recipe.

    `facts`: the table [run] of config.toml. Raises ValueError, with the remedy, if there is none.
    """
    assert recipe.head is not None
    found = expressed_head(recipe.model, recipe.head, facts.get("model_type"))
    check_padding(recipe.model, tok, facts)
    norm_bias = recipe.model.norm == "layernorm" and recipe.model.bias
    if getattr(recipe.task, "mean", 0.0) and not (found.output_bias or norm_bias):
        raise ValueError(
            f"{found.auto_class} has no bias in its head or in its last norm, so it cannot express the mean of the "
            "numbers: fine-tune the run with `center=False` to export it"
        )
    return found


def task_parts(run: Run, checkpoint: str, tok: Tokenizer, ids: Ids, out: str) -> Parts:
    """Return the parts of the export of a run with the head of a task. `out`: name of its folder.

    Raises ValueError, with the remedy, for a head that no class of transformers has.
    """
    recipe = run.recipe
    config, head, task = recipe.model, recipe.head, recipe.task
    assert head is not None and task is not None
    found = exported_head(recipe, tok, run.facts)
    reader = reader_of(run, task, tok)
    labels = list(getattr(task, "labels", ()))
    loaded = load_model(run, device="cpu", checkpoint=checkpoint)
    model, tuned = loaded.model, tuned_task(run, loaded.checkpoint)
    settings = task_settings(found, config, head, [str(label) for label in labels])
    learned = {name: getattr(tuned, name, None) for name in LEARNED}
    settings |= {f"bytelm_{name}": value for name, value in learned.items() if isinstance(value, LEARNED[name])}
    if not all(isinstance(label, str) for label in labels):
        settings[LABELS] = labels
    edges = Edges(*(tuple(part) for part in reader.edges))
    return Parts(
        title=f"{found.format.name} ({found.auto_class})",
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        settings=settings,
        tensors=to_task_model(found, config, _in_units_of_the_targets(task, model.state_dict())),
        ids=_ids(reader, edges, ids),
        edges=edges,
        tokenizer_settings={"truncation_side": "left"} if task.truncate == "left" else {},
        loading=_loading(head.kind, out, pair=len(task.columns) > 2),
    )


def _in_units_of_the_targets(task: Task, weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return weights whose outputs have the unit of the targets. Weights of tasks without a unit are unchanged.

    The output is deviation * (w h + b) + mean. A decoder's head has no b. Its input h is the output of the last norm.
    The bias of this norm grows by mean * v / (v v) with v = deviation * w, which adds mean to the output.
    """
    mean, deviation = (float(getattr(task, name, default)) for name, default in (("mean", 0.0), ("deviation", 1.0)))
    if (mean, deviation) == (0.0, 1.0):
        return weights
    scaled = {name: weights[name] * deviation for name in weights if name.startswith("head.output.")}
    if mean and "head.output.bias" in weights:
        scaled["head.output.bias"] += mean
    elif mean:
        [row], bias = scaled["head.output.weight"].double(), weights[NORM_BIAS].double()
        scaled[NORM_BIAS] = (bias + mean * row / (row @ row)).float()
    return {**weights, **scaled}


def _ids(reader: TextReader, edges: Edges, ids: Ids) -> dict[str, Any]:
    """Return the special ids of config.json, with the ids that decide which position the head reads.

    A decoder's head reads the last position that is not padding, so no text may contain the padding id. T5's head reads
    the last end token.
    """
    architecture = reader.model.architecture
    if architecture == "encoder-decoder":
        return {**ids, "eos_token_id": edges.after[-1]}
    if architecture == "encoder" or isinstance(ids.get("pad_token_id"), int):
        return dict(ids)
    read = {*edges.before, *edges.between}
    unread = [i for i in reader.tokenizer.special_tokens.values() if i not in read]
    return {**ids, "pad_token_id": next(iter([*unread, *reader.around.stops]), None)}


def _loading(kind: str, out: str, pair: bool) -> str:
    """Return Python code that uses the export."""
    if kind == "sequence":
        text = json.dumps({"text": TEXT, "text_pair": SECOND} if pair else TEXT)
        return PIPELINE.format(name="text-classification", out=out, text=text, options=", top_k=None, truncation=True")
    if kind == "token":
        return PIPELINE.format(name="token-classification", out=out, text=json.dumps(TEXT), options="")
    return LOADING.format(auto=AUTO_CLASSES[kind], out=out)
