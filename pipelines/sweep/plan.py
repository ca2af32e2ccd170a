"""The plan of a sweep: the vocabularies, the compute of a run, the recipe of each run, and sweep.json.

All runs have the same architecture and the same FLOPs, which include the output matrix (`lm.config_costs`). So a model
with a larger vocabulary trains on fewer but longer tokens. The context is fixed in tokens, as in practice,
so a larger vocabulary sees more text at a time. The schedule of the learning rate spans each run's own tokens.
"""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from lm.config import ModelConfig
from lm.config_costs import flops_per_token, non_embedding_parameters, parameter_table
from pipelines.files import read_json, write_json
from pipelines.recipes.recipe import Recipe

if TYPE_CHECKING:
    from pipelines.cli.arguments import SweptKind

SETTINGS = "sweep.json"  # the settings that all runs of a sweep have in common
# FLOP/s of training on one core in float32; about twice as many on a core that supports bfloat16.
CORE_FLOPS = 5e10
HOUR_FLOPS = 2 * 3600 * CORE_FLOPS  # of 2 cores


class Vocabulary(NamedTuple):
    """A kind of vocabulary and its number of entries."""

    kind: "SweptKind"
    size: int

    @property
    def name(self) -> str:
        return f"{self.kind}-{self.size}"


class SweepRun(NamedTuple):
    """A vocabulary and the seed of a run."""

    vocabulary: Vocabulary
    seed: int

    @property
    def name(self) -> str:
        return f"{self.vocabulary.name}-seed-{self.seed}"


class ModelSize(NamedTuple):
    """The cost of the model with one size of vocabulary."""

    flops_per_token: float
    parameters: int
    embedding: int
    """Parameters of the embedding and of an untied output matrix"""


@dataclass(frozen=True)
class Budget:
    """What all runs of a sweep have in common."""

    recipe: Recipe
    flops: float
    """FLOPs of each run"""

    def __post_init__(self) -> None:
        if self.recipe.objective != "next-token":
            raise ValueError(
                f"`recipe` has the objective {self.recipe.objective}, which has no bits per byte: choose a recipe of a "
                "decoder, such as gpt-tiny"
            )
        if self.recipe.train.batch_tokens_start:
            raise ValueError(
                "`recipe` has growing batches, which a sweep does not support: remove train.batch_tokens_start"
            )
        if self.recipe.lora.rank:
            raise ValueError("`recipe` has lora.rank, but the runs begin with random weights: remove it")
        if not 0 < self.flops < float("inf"):
            raise ValueError(f"`flops` is {self.flops:g}, but must be above 0 and finite")

    @property
    def step_tokens(self) -> int:
        """Tokens of an optimizer step, in whole blocks."""
        return self.recipe.step_tokens

    def model(self, size: int) -> ModelConfig:
        """Return the model with a vocabulary of `size` entries."""
        return replace(self.recipe.model, vocab_size=size)

    def size(self, size: int) -> ModelSize:
        """Return the cost of the model with a vocabulary of `size` entries."""
        return _size(self.model(size))

    def tokens(self, size: int) -> int:
        """Return the tokens of a run: as many whole steps as the FLOPs allow.

        Raises ValueError if they do not allow one step.
        """
        each = self.size(size).flops_per_token
        tokens = int(self.flops / (each * self.step_tokens)) * self.step_tokens
        if not tokens:
            raise ValueError(
                f"`flops` is {self.flops:.3g}, but one step with a vocabulary of {size:,} entries takes "
                f"{each * self.step_tokens:.3g}: raise `flops`, or leave this size out of `sizes`"
            )
        return tokens

    def recipe_of(self, run: SweepRun) -> Recipe:
        """Return the recipe of a run. Warm-up keeps its share of the tokens, and one thread trains each run."""
        train, tokens = self.recipe.train, self.tokens(run.vocabulary.size)
        return replace(
            self.recipe,
            model=self.model(run.vocabulary.size),
            train=replace(
                train,
                tokens=tokens,
                words=0,
                minutes=0.0,
                warmup_tokens=round(tokens * min(1.0, train.warmup_tokens / train.tokens)),
                seed=run.seed,
                threads=1,
                validate_every_tokens=tokens,
                validation_tokens=self.recipe.model.context_length,  # little: `measure` scores the finished run
                checkpoint_every_tokens=max(self.step_tokens, tokens // 4),
                keep_words=0,
                keep_checkpoints=1,
                keep_best=False,
                keep_every_tokens=0,
            ),
        )

    @property
    def non_embedding(self) -> int:
        """Parameters without embeddings, positions and output matrix."""
        return non_embedding_parameters(self.model(1))


@cache
def _size(config: ModelConfig) -> ModelSize:
    table = parameter_table(config)
    untied = 0 if config.tied_head else config.vocab_size * config.width
    return ModelSize(flops_per_token(config), table["total"], table["embedding"] + untied)


def fingerprint(documents: Iterable[bytes]) -> str:
    """Return the SHA-256 of documents and their boundaries."""
    return hashlib.sha256(b"".join(hashlib.sha256(document).digest() for document in documents)).hexdigest()


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Return the settings of the sweep in `folder`, as `settings_of` made them; None for a new sweep.

    Raises ValueError if the folder holds something else.
    """
    path = folder / SETTINGS
    if folder.is_file():
        raise ValueError(f"`out` is {folder}, which is a file, not a folder: choose another `out`")
    if not path.exists():
        if folder.exists() and any(inside.name != ".lock" for inside in folder.iterdir()):
            raise ValueError(f"{folder} is not empty and holds no sweep: choose another `out`")
        return None
    settings: dict[str, Any] = read_json(path, "choose another `out`")
    train = settings.get("recipe", {}).get("train", {}) if isinstance(settings.get("recipe"), dict) else {}
    numbers = isinstance(settings.get("flops"), (int, float))
    if settings.get("format") != 1 or not numbers or not {"device", "dtype"} <= train.keys():
        raise ValueError(f"{path} is damaged, or from another version of bytelm: choose another `out`")
    return settings


def settings_of(budget: Budget, split_rule: str, held_out: list[bytes] | None) -> dict[str, Any]:
    """Return the settings that all runs of a sweep have in common, in the types of JSON.

    Without the held-out text, as in a dry run, its settings are missing.
    """
    facts = {"format": 1, "flops": budget.flops, "split_rule": split_rule, "recipe": asdict(budget.recipe)}
    if held_out is not None:
        facts |= {"held_out_bytes": sum(map(len, held_out)), "held_out_sha256": fingerprint(held_out)}
    settings: dict[str, Any] = json.loads(json.dumps(facts))
    return settings


def check_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Raise ValueError if `folder` holds a sweep with other values of `settings`, or something else."""
    earlier = read_settings(folder)
    if earlier is None:
        return
    remedies = {
        "flops": f"give `flops={earlier['flops']!r}`",
        "recipe": "give the same `recipe`",
        "split_rule": "give the same `split`",
        "held_out_sha256": "give the same corpus and reading options",
    }
    for name, remedy in remedies.items():
        if name in settings and earlier.get(name) != settings[name]:
            raise ValueError(f"{folder} holds a sweep with another {name}: {remedy}, or choose another `out`")


def record_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write the settings of a sweep."""
    write_json(folder / SETTINGS, settings)
