"""The examples of a fine-tuning: reading, splitting and encoding. Imports no torch."""

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from corpora.rows import hash_split
from lm.config import WITHOUT_DROPOUT
from lm.head_config import HeadLayers, usual_layers
from lm.layer_groups import distinct_layers
from lm.lora_config import LoraConfig
from lm.warn import warn
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.recipes.recipe import Recipe
from pipelines.run.folder import Run
from pipelines.run.text_ids import ids_of
from pipelines.tasks.examples import Encoded
from pipelines.tasks.task import Example, Task
from pipelines.tasks.text_reader import TextReader
from tokenizer import Tokenizer


@dataclass(frozen=True, kw_only=True)
class ExampleFiles:
    """Files of examples and their split. The fields are arguments of `finetune`."""

    data: tuple[Path, ...]
    test: tuple[Path, ...] = ()
    held_out: float = 0.1

    def read(self, task: Task) -> tuple[Task, list[Example], list[Example]]:
        """Return the task with what it learned, and the examples to train on and to test on.

        Without `data`, as for an imported run, the task keeps what it knows and there are no examples to train on.

        Raises ValueError for examples that teach or test nothing.
        """
        task, training, validation = self.split(task)
        if not self.data:
            return task, training, validation
        self.warn_of_repeats(training, validation)
        task = task.learn(training)
        task.check(validation)
        return task, training, validation

    def split(self, task: Task) -> tuple[Task, list[Example], list[Example]]:
        """Return the task with its columns, and the examples to train on and to test on.

        Without `data` there are no examples to train on. Raises ValueError for a missing file or an empty part.
        """
        for path in (*self.data, *self.test):
            if not path.exists():
                raise ValueError(f"there is no {path}: name a file of examples")
        if self.test and not self.data:
            fields = (row.fields for path in self.test for row in task.read(path))
            task = task.choose_columns(next(fields, {}))
            return task, [], task.examples(self.test)
        if not self.test and not 0 < self.held_out < 1:
            raise ValueError(f"`held_out` is {self.held_out}: give a share above 0 and below 1, or a file for `test`")
        fields = (row.fields for path in self.data for row in task.read(path))
        task = task.choose_columns(next(iter(fields), {}))
        training = task.examples(self.data)
        return (task, training, task.examples(self.test)) if self.test else (task, *self._divide(task, training))

    def warn_of_repeats(self, training: Sequence[Example], validation: Sequence[Example]) -> None:
        """Warn if examples of `test` are training examples too."""
        known = {repr(example.inputs) for example in training} if self.test else set()
        if repeated := sum(repr(example.inputs) in known for example in validation):
            warn(
                f"{repeated:,} of the {len(validation):,} examples of {_named(self.test)} are in "
                f"{_named(self.data)} too: their results say little about others"
            )

    def facts(self) -> dict[str, Any]:
        """Return the entries about files in the table [run] of config.toml."""
        paths = {
            "data": [str(path.resolve()) for path in self.data],
            "test": [str(path.resolve()) for path in self.test],
        }
        return {**paths, "held_out": float(self.held_out)}

    @classmethod
    def of(cls, run: Run) -> "ExampleFiles":
        """Return the files that a run was fine-tuned on."""
        data, test = (tuple(map(Path, run.facts.get(name, ()))) for name in ("data", "test"))
        return cls(data=data, test=test, held_out=run.facts.get("held_out", 0.1))

    def _divide(self, task: Task, examples: list[Example]) -> tuple[list[Example], list[Example]]:
        """Return (training, held-out) examples. If a class has no training example, its examples are not held out."""
        held_out = hash_split([task.key(example) for example in examples], self.held_out)
        trained = {
            one for example, out in zip(examples, held_out, strict=True) if not out for one in task.classes(example)
        }
        missing = {task.key(example) for example in examples if not trained.issuperset(task.classes(example))}
        held_out &= np.array([task.key(example) not in missing for example in examples])
        if not held_out.any():
            raise ValueError(
                f"no example of {_named(self.data)} is held out: raise `held_out` from {self.held_out:g}, or give a "
                "file for `test`"
            )
        if held_out.all():
            raise ValueError(f"all examples of {_named(self.data)} are held out: lower `held_out`, or give a `test`")
        sides = ([e for e, out in zip(examples, held_out, strict=True) if out == side] for side in (False, True))
        training, validation = sides
        return training, validation


def fingerprint(*parts: Sequence[Example]) -> str:
    """Return the SHA-256 of the inputs and targets of examples."""
    digest = hashlib.sha256()
    for part in parts:
        for example in part:
            digest.update(repr((example.inputs, example.target)).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def reader_of(run: Run, task: Task, tokenizer: Tokenizer | None = None) -> TextReader:
    """Return the reader that converts texts to the ids of a run's model."""
    tok = tokenizer or run.tokenizer()
    return _reader(run, task, tok, run.facts)


def _reader(run: Run, task: Task, tok: Tokenizer, facts: Mapping[str, Any]) -> TextReader:
    around = ids_of(run.recipe.model.architecture, facts, tok)
    return TextReader(tok, around, run.recipe.model, str(facts.get("model_type", "")), task.truncate)


def check_model(run: Run, task: Task, config: FinetuneConfig, lora: LoraConfig) -> None:
    """Raise ValueError if a run cannot be fine-tuned for a task."""
    _check_layers(run, task, config, lora)
    model = run.recipe.model
    if model.architecture not in task.architectures:
        raise ValueError(
            f"{run.folder} has a model of architecture {model.architecture!r}, but the task {task.name} is for "
            f"{' and '.join(task.architectures)}"
        )
    if run.recipe.head is not None:
        raise ValueError(
            f"{run.folder} is fine-tuned for {run.recipe.task.name if run.recipe.task else 'a task'} already: "
            f"start from the run that it was made of ({run.facts.get('init_from', 'not recorded')})"
        )
    if config.dropout and model.attention in WITHOUT_DROPOUT:
        raise ValueError(
            f"{run.folder} has model.attention = {model.attention!r}, which has no dropout, but `dropout` is "
            f"{config.dropout:g}: give `dropout=0`"
        )


def _check_layers(run: Run, task: Task, config: FinetuneConfig, lora: LoraConfig) -> None:
    """Raise ValueError if options name missing blocks, freeze random weights, or leave nothing to train."""
    model = run.recipe.model
    both = model.architecture == "encoder-decoder"
    stacks = [model.layers, *([model.decoder_layers or model.layers] if both else [])]
    blocks = sum(len(distinct_layers(model, layers)) for layers in stacks)
    frozen = blocks if config.freeze == "all" else config.freeze
    for name, count in (("freeze", frozen), ("reinit", config.reinit)):
        if count > blocks:
            raise ValueError(f"`{name}` is {count}, but the model of {run.folder} has {blocks} blocks")
    if frozen + config.reinit > blocks:
        raise ValueError(
            f"`freeze` is {config.freeze} and `reinit` is {config.reinit}, but the model has {blocks} blocks, and "
            "random ones must train: lower one of them"
        )
    if lora.rank and (config.freeze or config.reinit):
        raise ValueError("`lora.rank` freezes all blocks: leave `freeze` and `reinit` out")
    if config.reinit and type(task).prepare is not Task.prepare:
        raise ValueError(
            f"`reinit` is {config.reinit}, but the task {task.name} compares the model with the run that it starts "
            "from: leave `reinit` out"
        )
    if task.head(model.architecture) is not None:
        return
    if config.freeze == "all":
        raise ValueError(f"`freeze` is 'all', but the task {task.name} has no head to train: give a number of blocks")
    above = not model.tied_head or model.norm_places.final or model.architecture == "encoder"
    if frozen == blocks and not above:
        raise ValueError(
            f"`freeze` is {config.freeze}, but the model of {run.folder} has no weights above its {blocks} blocks: "
            "give a lower number"
        )


@dataclass(frozen=True)
class EncodedTask:
    """The examples of a fine-tuning as its model reads them, and the recipe of the run."""

    recipe: Recipe
    reader: TextReader
    training: list[Example]
    validation: list[Example]
    encoded_training: list[Encoded]
    encoded_validation: list[Encoded]
    facts: Mapping[str, Any]
    """Entries of the table [run] that the task adds"""
    known_entries: int
    """Entries of the tokenizer before the task added special tokens"""


def encode_task(
    run: Run, files: ExampleFiles, task: Task, config: FinetuneConfig, lora: LoraConfig | None = None
) -> EncodedTask:
    """Return the examples and the recipe of a fine-tuning of `run`.

    Raises ValueError if the task adds special tokens whose embeddings could not train.
    """
    tok = run.tokenizer()
    adapted, lora = task.adapt(run, tok), lora or LoraConfig()
    added = [name for name, i in adapted.tokenizer.special_tokens.items() if i >= tok.vocab_size]
    if added:
        _check_new_tokens(run, added, config, lora)
    task, training, validation = files.read(adapted.task)
    reader = _reader(run, task, adapted.tokenizer, {**run.facts, **adapted.facts})
    encoded, encoded_validation = (task.encode(part, reader) for part in (training, validation))
    vocab_size = max(run.recipe.model.vocab_size, adapted.tokenizer.vocab_size)
    hidden_dropout = config.dropout if run.recipe.model.hidden_dropout else 0.0
    model = replace(run.recipe.model, dropout=config.dropout, hidden_dropout=hidden_dropout, vocab_size=vocab_size)
    encoded = task.arrange(encoded, model)
    train = config.train(len(encoded), sum(example.tokens for example in encoded))
    recipe = Recipe(
        objective=run.recipe.objective,
        model=model,
        train=train,
        lora=lora,
        task=task,
        finetune=config,
        head_layers=_head_layers(run, task),
    )
    return EncodedTask(recipe, reader, training, validation, encoded, encoded_validation, adapted.facts, tok.vocab_size)


def _check_new_tokens(run: Run, added: Sequence[str], config: FinetuneConfig, lora: LoraConfig) -> None:
    """Raise ValueError if options freeze the embeddings of the `added` special tokens, which start equal."""
    frozen = "`lora.rank`" if lora.rank else "`freeze`" if config.freeze and run.recipe.model.tied_head else ""
    if frozen:
        raise ValueError(
            f"{frozen} would freeze the equal embeddings of {' '.join(added)}, which {run.folder} lacks: leave it out, "
            "or start from a run with these tokens"
        )


def _head_layers(run: Run, task: Task) -> HeadLayers | None:
    model = run.recipe.model
    head = task.head(model.architecture)
    return None if head is None else usual_layers(model, head.kind, str(run.facts.get("model_type", "")))


def _named(paths: Sequence[Path]) -> str:
    return " and ".join(map(str, paths))
