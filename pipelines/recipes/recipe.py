"""Recipes: TOML files with a model, an objective and the settings of its training.

A recipe is the name of a file in `recipes/`, or a path. A run's config.toml is a recipe too, fully resolved, with a
table `[run]` of facts about the run.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields, is_dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypeVar, get_type_hints

import tomli_w
import tyro

from lm.config import ModelConfig
from lm.head_config import HeadConfig, HeadLayers
from lm.lora_config import LoraConfig
from lm.values import check_fields, check_range, check_value
from pipelines.cli.errors import did_you_mean
from pipelines.files import read_toml, write_whole
from pipelines.recipes.config import TrainConfig
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.tasks import task_class
from pipelines.tasks.task import Task

if TYPE_CHECKING:
    from _typeshed import DataclassInstance

C = TypeVar("C", bound="DataclassInstance")
RECIPES = Path(__file__).parents[1] / "recipes"
_TABLES: dict[Any, type] = {Task | None: Task, FinetuneConfig | None: FinetuneConfig}
_ARCHITECTURES = {
    "next-token": "decoder",
    "masked-token": "encoder",
    "span-corruption": "encoder-decoder",
    "denoising": "encoder-decoder",
    "sequence-pairs": "encoder-decoder",
}

CORRUPTIONS = ("span-corruption", "denoising")
"""Objectives of encoder-decoders on plain text"""
EDGES = {"masked-token": 2, "denoising": 1}


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """A model, its objective and its training."""

    objective: Literal["next-token", "masked-token", "span-corruption", "denoising", "sequence-pairs"] = "next-token"
    """Training objective: next tokens (decoder), masked tokens (encoder); the others are for an encoder-decoder"""
    model: ModelConfig = field(default_factory=ModelConfig)
    lora: LoraConfig = field(default_factory=LoraConfig)
    task: Annotated[Task | None, tyro.conf.Fixed, tyro.conf.Suppress] = None
    """The task that the model is fine-tuned for; None for pretraining, whose objective it had before"""
    finetune: Annotated[FinetuneConfig | None, tyro.conf.Fixed, tyro.conf.Suppress] = None
    """Settings of fine-tuning, of which `train` is made"""
    head_layers: Annotated[HeadLayers | None, tyro.conf.Fixed, tyro.conf.Suppress] = None
    """Layers of the head of the task, see `HeadConfig`; None without one"""
    train: TrainConfig = field(default_factory=TrainConfig)

    def __post_init__(self) -> None:
        check_fields(self, "")
        needed = _ARCHITECTURES[self.objective]
        if self.model.architecture != needed:
            raise ValueError(
                f"objective {self.objective!r} needs model.architecture = {needed!r}, "
                f"but it is {self.model.architecture!r}"
            )
        if needed == "encoder-decoder" and self.model.document_mask:
            raise ValueError("model.document_mask is for decoders and encoders: leave it out of an encoder-decoder")
        self._check_options_of_objectives()

    def _check_options_of_objectives(self) -> None:
        """Raise ValueError for an option of training that another objective has."""
        train = self.train
        if self.objective == "sequence-pairs" and train.sampling != "permutation":
            raise ValueError(
                f"train.sampling is {train.sampling!r}, but pairs have no stream to crop: use 'permutation'"
            )
        for name, what in (("batch_tokens_start", "batches of one size"), ("length_start", "batches by length")):
            if self.objective == "sequence-pairs" and getattr(train, name):
                raise ValueError(
                    f"train.{name} is {getattr(train, name)}, but pairs are sorted into {what}: leave it out"
                )
        if train.masked_rows and self.objective != "next-token":
            raise ValueError(
                f"train.masked_rows is {train.masked_rows}, but the objective is {self.objective!r}: leave it out, or "
                "train a decoder on 'next-token'"
            )
        for name in ("masked_share", "masked_share_end", "masked_unit"):
            masked = self.objective == "masked-token" or train.masked_rows
            if not masked and getattr(train, name) != getattr(TrainConfig, name):
                raise ValueError(
                    f"train.{name} is {getattr(train, name)!r}, but the objective is {self.objective!r}, without "
                    "masks: leave it out, train an encoder on 'masked-token', or give a decoder train.masked_rows"
                )
        backward = not self.model.attention_only or self.model.positions in ("relative", "relative-keys")
        if train.masked_rows and backward:
            raise ValueError(
                f"train.masked_rows is {train.masked_rows}, but mixers other than attention, and model.positions="
                "'relative' or 'relative-keys' of a decoder, see the past only: give model.mixer=attention with other "
                "positions"
            )

    @property
    def step_tokens(self) -> int:
        """Tokens of an optimizer step of a decoder, in whole blocks."""
        length = self.model.context_length
        return max(1, round(self.train.batch_tokens / length)) * length

    @property
    def head(self) -> HeadConfig | None:
        """The head of the task, None if the model is a language model."""
        head = None if self.task is None else self.task.head(self.model.architecture)
        return None if head is None else replace(head, layers=self.head_layers)

    @property
    def loss_is_of_tokens(self) -> bool:
        """Whether losses are cross-entropies of tokens. A model with a head and some tasks have other losses."""
        return self.head is None and (self.task is None or type(self.task).loss is Task.loss)

    @property
    def edges(self) -> int:
        """The tokens that the model reads beside a block: `<|cls|>` and `<|sep|>`, or the end of a restored text."""
        return EDGES.get(self.objective, 0)

    @property
    def trained_for(self) -> str:
        """The task, or the objective of pretraining."""
        return self.objective if self.task is None else self.task.name

    def without_task(self) -> "Recipe":
        """Return the recipe for pretraining: without the task and the settings of fine-tuning."""
        return replace(self, task=None, finetune=None, head_layers=None)

    def as_tables(self) -> dict[str, Any]:
        """Return the tables of config.toml."""
        tables = {name: value for name, value in asdict(self).items() if value is not None}
        tables["lora"]["targets"] = list(self.lora.targets)
        tables["model"]["mixers"] = list(self.model.mixers)
        return tables | ({} if self.task is None else {"task": self.task.as_table()})


def recipe_names() -> list[str]:
    """Return the names of the recipes that come with bytelm."""
    return sorted(path.stem for path in RECIPES.glob("*.toml"))


def recipe_descriptions() -> dict[str, str]:
    """Return the description of each recipe that comes with bytelm, by name."""
    return {name: read_toml(RECIPES / f"{name}.toml")["description"] for name in recipe_names()}


def load_recipe(name: str | Path) -> Recipe:
    """Return the recipe with that name, or in that TOML file.

    Raises ValueError if there is none, or, naming file and field, for an unknown field (with the nearest known one) or
    a value of the wrong type.
    """
    path = RECIPES / f"{name}.toml" if str(name) in recipe_names() else Path(name)
    if not path.exists() or path.is_dir():
        hint = did_you_mean(str(name), recipe_names())
        raise ValueError(
            f"there is no recipe {str(name)!r}: {hint}recipes are {', '.join(recipe_names())}, or a .toml file"
        )
    recipe: Recipe = _build(Recipe, read_toml(path), str(path), "", ignore=("run", "description"))
    return recipe


def changed(recipe: Recipe, model: Mapping[str, object], train: Mapping[str, object]) -> Recipe:
    """Return a recipe with other values of fields of its model and its training; ValueError for an unknown field."""
    return replace(
        recipe, model=with_fields(recipe.model, model, "model"), train=with_fields(recipe.train, train, "train")
    )


def with_fields(config: C, given: Mapping[str, object], argument: str) -> C:
    """Return a dataclass with other values of some fields; ValueError names the `argument` with an unknown field."""
    known = [field.name for field in fields(config)]
    for name in [name for name in given if name not in known]:
        nearest = get_close_matches(name, known, n=1, cutoff=0.5)
        hint = f"did you mean {nearest[0]!r}?" if nearest else f"there are {', '.join(known)}"
        raise ValueError(f"`{argument}` has no field {name!r}: {hint}")
    return replace(config, **dict[str, Any](given))


def save_config(path: Path, recipe: Recipe, run: dict[str, Any]) -> None:
    """Write a run's config.toml: the resolved recipe and the table `run`."""
    write_whole(path, tomli_w.dumps({**recipe.as_tables(), "run": run}))


def _build(cls: type, table: dict[str, Any], source: str, prefix: str, ignore: tuple[str, ...] = ()) -> Any:
    hints = get_type_hints(cls)
    names = [f.name for f in fields(cls)]
    values = {}
    for key, value in table.items():
        if key in ignore:
            continue
        if key not in names:
            nearest = get_close_matches(key, names, n=1, cutoff=0.5)
            meant = f"; did you mean {prefix}{nearest[0]}?" if nearest else f"; there are {', '.join(names)}"
            raise ValueError(f"{source}: there is no field {prefix}{key[:100]}{meant}")
        hint: Any = _TABLES.get(hints[key], hints[key])
        if isinstance(hint, type) and is_dataclass(hint):
            if not isinstance(value, dict):
                raise ValueError(f"{source}: {prefix}{key} must be a table [{prefix}{key}]")
            if hint is Task:
                hint = _task_of(value, source)
            values[key] = _build(hint, value, source, f"{prefix}{key}.", ("name",) if key == "task" else ())
        else:
            values[key] = _check(hint, value, source, prefix + key)
    try:
        return cls(**values)
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _task_of(table: Mapping[str, Any], source: str) -> type[Task]:
    """Return the class of the task that a table [task] names."""
    try:
        return task_class(str(table.get("name")))
    except ValueError as error:
        raise ValueError(f"{source}: {error}") from None


def _check(hint: Any, value: Any, source: str, name: str) -> Any:
    """Return `value` as the type `hint`; ValueError, naming the field, if it has another type."""
    if hint is int and isinstance(value, str):
        from pipelines.cli.arguments import parse_count

        try:
            return parse_count(value)
        except ValueError as error:
            raise ValueError(f"{source}: {name}: {error}") from None
    value = check_value(value, hint, f"{source}: {name}")
    check_range(value, hint, f"{source}: {name}")
    return float(value) if hint is float and isinstance(value, int | float) else value
