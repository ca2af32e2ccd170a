"""The start of a run: random weights or the weights of another run."""

from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from lm.config import ModelConfig
from lm.model import LanguageModel
from lm.positions import with_resized_positions
from pipelines.cli.waiting import doing
from pipelines.recipes.recipe import Recipe
from pipelines.run.checkpoint_reader import load_weights
from pipelines.run.folder import Run
from pipelines.run.manifest import manifest_sha256
from pipelines.run.retention import checkpoint_folders
from pipelines.run.text_ids import published_roles
from pipelines.training.mixture import Dataset, check_tokenizer
from pipelines.training.parallel import OneProcess
from pipelines.training.resuming import set_weights
from tokenizer import Tokenizer

# Fields of a model that may differ from the source's, because the same weights still fit.
FREE = (
    *("context_length", "document_mask", "dropout", "hidden_dropout", "stochastic_depth", "attention"),
    *("initialization", "zero_projections"),
)
# These may differ too if the context grows.
ROTARY_FREQUENCIES = ("rotary_base", "rotary_scaling", "rotary_factor", "rotary_original_length")
# Entries of the table [run] that a run copies from its source: the format, the ids and the chat template.
GIVEN = ("model_type", "special_ids", "roles", "around_text", "chat_template")
ORIGIN = ("init_from", "init_from_checkpoint", "init_from_sha256")


@dataclass(frozen=True)
class Source:
    """A run whose weights another run starts from, and the checkpoint that holds them."""

    run: Run
    checkpoint: Path
    weights: dict[str, Tensor]
    """The averaged weights, if the run keeps an average"""

    @classmethod
    def open(cls, folder: Path) -> "Source":
        """Return the run in `folder` with the weights of its newest complete checkpoint, or its best with patience."""
        doing("loading the weights to start from")
        run = Run(folder)
        return cls(run, *load_weights(run.folder, run.settings))

    @property
    def facts(self) -> dict[str, Any]:
        """The entries of the table [run] that name the source, and the ids that its model reads around texts."""
        origin = str(self.run.folder.resolve()), self.checkpoint.name, manifest_sha256(self.checkpoint)
        given = {name: self.run.facts[name] for name in GIVEN if name in self.run.facts}
        return dict(zip(ORIGIN, origin, strict=True)) | given

    def summary(self) -> str:
        """Return a line that names the loaded weights and the parts that are not loaded."""
        average = self.run.recipe.train.average > 0
        left_out = [] if "imported_from" in self.run.facts else ["optimizer state", "progress"]
        left_out += ["weights before averaging"] if average else []
        kind = "averaged weights" if average else "weights"
        rest = f"; not loaded: {', '.join(left_out)}" if left_out else ""
        return f"starts from the {kind} of {self.run.folder}, {self.checkpoint.name}{rest}"


@dataclass(frozen=True)
class Start:
    """The vocabulary, facts and weights that a run starts with."""

    vocab_size: int
    """Entries of the model's vocabulary; an imported model may have more than its tokenizer."""
    facts: dict[str, Any]
    """Entries of the table [run] that come from the source, or from a published tokenizer"""
    loads: bool
    """Whether to load the weights of `source`: False for random weights and for a run with a checkpoint"""
    source: Source | None
    """None on ranks other than 0"""

    def lines(self, recipe: Recipe) -> list[str]:
        """Return lines of text: what is loaded, what is not, and how the recipe's model differs from the source's."""
        if self.source is None:
            return []
        lines = [self.source.summary()]
        if changed := differences(recipe, self.source.run):
            lines.append(f"differs from {self.source.run.folder}: {', '.join(changed)}")
        return lines

    def load(self, model: LanguageModel, parallel: OneProcess) -> None:
        """Load the weights of the source, if any, into `model` on all ranks. Call it before FSDP shards the model."""
        if self.loads:
            checkpoint = self.source.checkpoint if self.source else Path()
            weights = with_resized_positions(self.source.weights, model) if self.source else {}
            set_weights(checkpoint, model, weights, parallel)
            if self.source:
                self.source.weights.clear()  # training may need the memory


def shared_start(recipe: Recipe, dataset: Dataset, out: Path, init_from: Path | None, parallel: OneProcess) -> Start:
    """Return the start that rank 0 finds with `find_start`; the other ranks read no run."""
    start = find_start(recipe, dataset, out, init_from) if parallel.is_main else None
    vocab_size, facts, loads = parallel.broadcast(
        (start.vocab_size, start.facts, start.loads) if start else (0, {}, False)
    )
    return start or Start(vocab_size, facts, loads, None)


def find_start(recipe: Recipe, dataset: Dataset, out: Path, init_from: Path | None) -> Start:
    """Return the start of the run in `out`; a new run starts from the weights of the run `init_from`, if given.

    Raises ValueError if `out` holds a run with another start, or if the recipe or the dataset does not fit the source.
    """
    if (out / "config.toml").exists():
        run = Run(out)
        facts = {name: run.facts[name] for name in (*ORIGIN, *GIVEN) if name in run.facts}
        _check_origin(run, init_from)
        loads = "init_from" in facts and not checkpoint_folders(out)
        vocab_size = run.recipe.model.vocab_size if "init_from" in facts else dataset.vocab_size
        return Start(vocab_size, facts, loads, reopen(run) if loads else None)
    if init_from is None:
        roles = published_roles(Tokenizer.load(dataset.folder))
        return Start(dataset.vocab_size, {"roles": roles} if roles else {}, False, None)
    source = Source.open(init_from)
    check_tokenizer(dataset, source.run)
    check_same_model(recipe, source.run)
    facts = source.facts
    if recipe.model.architecture == "decoder" and dataset.info.get("separator") is not None:
        facts.pop("around_text", None)  # documents now begin as in the dataset
    return Start(source.run.recipe.model.vocab_size, facts, True, source)


def check_same_model(recipe: Recipe, source: Run) -> None:
    """Raise ValueError, listing every field, if the recipe's model cannot take the weights of the run `source`."""
    ours, theirs = recipe.model, source.recipe.model
    free = FREE + ROTARY_FREQUENCIES if ours.context_length > theirs.context_length else FREE
    wrong = [name for name in _differences(ours, theirs) if name not in free]
    if not wrong:
        return
    listed = ", ".join(f"model.{name} {getattr(theirs, name)!r} (recipe: {getattr(ours, name)!r})" for name in wrong)
    options = [f"`model.{name}={getattr(theirs, name)!r}`" for name in wrong]
    if "architecture" in wrong:
        options.insert(0, f"`objective={source.recipe.objective!r}`")
    raise ValueError(
        f"{source.folder} has another model than the recipe: {listed}; give {' '.join(options)}, or leave the recipe "
        f"out to use the recipe of {source.folder}"
    )


def differences(recipe: Recipe, source: Run) -> list[str]:
    """Return each field of the recipe's model, and the objective, that differs from the run `source`, as text."""
    ours, theirs = recipe.model, source.recipe.model
    changes = [
        f"model.{name} {getattr(ours, name)!r} (was {getattr(theirs, name)!r})" for name in _differences(ours, theirs)
    ]
    if recipe.objective != source.recipe.objective:
        changes.insert(0, f"objective {recipe.objective!r} (was {source.recipe.objective!r})")
    return changes


def _differences(ours: ModelConfig, theirs: ModelConfig) -> list[str]:
    """Return the names of all fields that differ. A default equals the number that it stands for."""
    ours = replace(ours, vocab_size=ours.vocab_size or theirs.vocab_size)
    pairs = {field.name: (getattr(ours, field.name), getattr(theirs, field.name)) for field in fields(ModelConfig)}
    meant = [
        {
            "decoder_layers": config.decoder_layers or config.layers,
            "layer_groups": config.layer_groups or config.layers,
            "head_width": config.head_features,
            "kv_heads": config.key_value_heads,
            "mlp_width": config.hidden_width,
        }
        for config in (ours, theirs)
    ]
    same = {name for name in meant[0] if meant[0][name] == meant[1][name]}
    return [name for name, (one, other) in pairs.items() if one != other and name not in same]


def _check_origin(run: Run, init_from: Path | None) -> None:
    """Raise ValueError if the existing `run` did not start from the weights of the run `init_from`.

    Under the recorded path the source need not exist any more, because the run resumes from its own checkpoints.
    """
    origin = run.facts.get("init_from")
    if (None if init_from is None else str(init_from.resolve())) == origin:
        return
    if init_from and origin and Source.open(init_from).facts["init_from_sha256"] == run.facts["init_from_sha256"]:
        return  # the source has moved
    given, had = (f"the weights of {folder}" if folder else "random weights" for folder in (init_from, origin))
    raise ValueError(
        f"{run.folder} holds another run: it started from {had}, not from {given}; choose another `out`, or resume "
        f"this run with its own settings: bytelm pretrain --out {run.folder}"
    )


def source_of(run: Run, folder: Path | None = None) -> Source:
    """Return the run whose weights `run` started from; ValueError if it is gone or has changed.

    `folder` is where it is now; None: where `run` recorded it.
    """
    source = Source.open(folder or Path(run.facts["init_from"]))
    if source.facts["init_from_sha256"] != run.facts["init_from_sha256"]:
        raise ValueError(f"{source.run.folder} has another checkpoint now")
    return source


def reopen(run: Run) -> Source:
    """Return the source of a run that stopped before its first checkpoint; ValueError if the source has changed."""
    try:
        return source_of(run)
    except ValueError as error:
        raise ValueError(
            f"{run.folder} has no checkpoint yet, and its start cannot be repeated ({error}): remove the folder"
        ) from None
