"""The plan of `bytelm scale`: sizes, tokens and recipes of the runs that fit a time, and scale.json.

Sizes differ in width only. Each size has runs of D, 2D and 4D tokens. The learning rate is constant, then decays
linearly over the last fifth. The runs of D and 2D tokens branch off the run of 4D, so all three take 4.6 D instead of
7 D (Hägele et al. 2024). At the smallest size, the runs of D tokens train from scratch, one for each learning rate and
seed. The size N of a model is its FLOPs per token / 6: weights as applied, and attention's products. The learning rate
falls with the width, as the optimizer needs.
"""

import json
import math
from bisect import bisect_left
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from lm.config import ModelConfig
from lm.config_costs import flops_per_token
from lm.optim.optimizer_settings import OPTIMIZERS
from pipelines.cli.display import duration
from pipelines.files import read_json, write_json
from pipelines.recipes.config import Device, Dtype
from pipelines.recipes.recipe import Recipe
from pipelines.sweep.plan import fingerprint
from pipelines.sweep.sweep_summary import tao_size

SETTINGS = "scale.json"
SIZES = 5
# Largest and smallest ratio of N of the largest model to N of the smallest. A smaller ratio determines no exponent.
MOST_SPAN, LEAST_SPAN = 16.0, 4.0
MULTIPLES = (1, 2, 4)
DECAY_SHARE = 0.2
# Tokens per parameter in the longest run of the largest model, before `filled`. D is proportional to N^-1/2, so smaller
# models read more tokens per parameter. The best ratio, about 20, lies between the sizes.
TOKENS_PER_PARAMETER = 8
EPOCHS = 4  # text repeated more often helps less than new text (Muennighoff et al. 2023)
SEEDS = 3  # at the smallest size with D tokens
RATES = (1.0, 2.0, 0.5)  # multiples of the learning rate, tried at the smallest size with D tokens
MOST_RATES = 5  # the search doubles or halves its best rate while that is the highest or lowest tried
LEAST_STEPS = 50  # optimizer steps in D
STEPS_UNIT = 5  # D is a multiple of this number of steps, so a fifth of D is whole steps
FORWARD_SHARE = 1 / 3  # of the training time of a token, for scoring it
VOCABULARIES = (512, 32_768)


class ScaleRun(NamedTuple):
    """The width and the training settings of a run."""

    width: int
    tokens: int
    rate: float = 1.0
    """Multiple of the recipe's learning rate at the recipe's width"""
    seed: int = 0

    @property
    def name(self) -> str:
        return f"width-{self.width}-tokens-{self.tokens}-rate-{self.rate:g}-seed-{self.seed}"


@dataclass(frozen=True)
class Layout:
    """The widths of the models, smallest first, and the tokens D of the shortest run of each."""

    widths: tuple[int, ...]
    tokens: tuple[int, ...]
    seconds_per_token: tuple[float, ...]
    """Measured training time of a token by width, in one process"""


@dataclass(frozen=True)
class Family:
    """The models and recipes of all sizes."""

    recipe: Recipe
    """Recipe of a decoder. Its `model.vocab_size` is that of all sizes"""

    def __post_init__(self) -> None:
        train = self.recipe.train
        if self.recipe.objective != "next-token":
            raise ValueError(
                f"`recipe` has the objective {self.recipe.objective}, which has no bits per byte: choose a recipe of a "
                "decoder, such as gpt-tiny"
            )
        if self.recipe.lora.rank:
            raise ValueError("`recipe` has lora.rank, but the runs begin with random weights: remove it")
        changing = {
            "batch_tokens_start": train.batch_tokens_start > 0,
            "weight_decay_schedule": train.weight_decay_schedule != "constant",
            "length_start": train.length_start > 0,
            "masked_share_end": train.masked_share_end > 0,
        }
        for field in (field for field, changes in changing.items() if changes):
            raise ValueError(
                f"`recipe` has train.{field}, which depends on the length of the run, but shorter runs branch off "
                f"longer ones: remove train.{field}"
            )

    @property
    def unit(self) -> int:
        """The step between widths. It keeps the width of a head even, as rotary positions need."""
        return 4 * self.recipe.model.heads

    def model(self, width: int) -> ModelConfig:
        """Return the model of a width."""
        base = self.recipe.model
        return replace(base, width=width, mlp_width=base.mlp_width * width // base.width)  # 0 stays 0

    def size(self, width: int) -> float:
        """Return the size N of a width: parameters as applied, FLOPs per token / 6."""
        return _flops(self.model(width)) / 6

    def widths(self, largest: int) -> tuple[int, ...]:
        """Return at most SIZES widths up to `largest`, whose sizes are nearly a geometric series."""
        top = self.size(largest)
        span = min(MOST_SPAN, top / self.size(self.unit))
        ladder = range(self.unit, largest + 1, self.unit)
        found = {largest}
        for step in range(1, SIZES):
            target = top / span ** (step / (SIZES - 1))
            above = bisect_left(ladder, target, key=self.size)
            near = ladder[max(0, above - 1) : above + 1]
            found.add(min(near, key=lambda width, target=target: abs(math.log(self.size(width) / target))))  # type: ignore[misc]
        return tuple(sorted(found))

    def recipe_of(self, run: ScaleRun, shortest: int) -> Recipe:
        """Return the recipe of a run of a size whose shortest run has `shortest` tokens.

        Recipes of one width, rate and seed differ only in settings that a run may change when it resumes.
        """
        train = self.recipe.train
        exponent = OPTIMIZERS[train.optimizer].width_exponent
        scale = run.rate * (self.recipe.model.width / run.width) ** exponent
        fifth = shortest // 5
        return replace(
            self.recipe,
            model=self.model(run.width),
            train=replace(
                train,
                tokens=run.tokens,
                words=0,
                minutes=0.0,
                lr=train.lr * scale,
                muon_lr=train.muon_lr * scale,
                # The recipe's share of the run of 2D, but at most 0.4 D, so that it ends before any decay begins.
                warmup_tokens=round(min(2 * shortest * train.warmup_tokens / train.tokens, 2 * fifth)),
                schedule="trapezoid",
                decay_share=DECAY_SHARE,
                min_lr_ratio=0.0,
                seed=run.seed,
                threads=1 if train.device == "cpu" else train.threads,
                validate_every_tokens=run.tokens,
                validation_tokens=self.recipe.model.context_length,  # one block: the finished run is measured
                checkpoint_every_tokens=fifth,
                keep_every_tokens=4 * fifth,  # where the decays of D and 2D begin
                keep_words=0,
                keep_checkpoints=1,
                keep_best=False,
                patience=0,
            ),
        )


@cache
def _flops(model: ModelConfig) -> float:
    return flops_per_token(model)


def vocabulary_for(flops: float, recipe: Recipe) -> int:
    """Return the vocabulary size for runs of `flops` in all: the power of two nearest to the size of Tao et al. 2024.

    It is from 512 to 32,768 entries.
    """
    largest = math.sqrt(flops / 150)  # about the largest size of `lay_out`
    width = math.sqrt(largest / (12 * recipe.model.layers))
    power: int = 2 ** round(math.log2(max(1.0, tao_size(round(largest), round(width)))))
    return min(max(power, VOCABULARIES[0]), VOCABULARIES[1])


@dataclass(frozen=True)
class Machine:
    """The time for the runs, and the speed of training."""

    seconds: float
    """Time for all runs"""
    preparation: float
    """Seconds of the rest of the budget: preparation, starts of runs, and reserve"""
    seconds_per_token: Callable[[int], float]
    """Training time of a token by width, in one process"""
    workers: int
    """Runs that train at a time"""


@dataclass(frozen=True)
class Text:
    """The numbers of tokens of the text."""

    train: int
    held_out: float
    """Estimated from the bytes of the held-out text"""


def seconds_of(layout: Layout, machine: Machine, text: Text) -> float:
    """Return an estimate of the seconds that all runs take."""
    each = layout.seconds_per_token
    branches = sum(MULTIPLES) * DECAY_SHARE + (1 - DECAY_SHARE) * MULTIPLES[-1]
    work = sum(branches * time * tokens for time, tokens in zip(each, layout.tokens, strict=True))
    more = MOST_RATES - 1 + SEEDS - 1
    measured = sum(each) * len(MULTIPLES) + more * each[0]
    # At the smallest size the run of D does not branch off another one.
    work += (more + 1 - DECAY_SHARE) * each[0] * layout.tokens[0] + measured * text.held_out * FORWARD_SHARE
    return max(work / machine.workers, MULTIPLES[-1] * layout.tokens[-1] * each[-1])


def lay_out(family: Family, machine: Machine, text: Text, budget: str) -> Layout:
    """Return the layout of the largest models for which time and text are enough.

    Raises ValueError if the time or the text is too short for any layout. For the time, the message suggests a budget.
    """
    best = None
    width = 2 * family.unit
    while True:
        widths = family.widths(width)
        span = family.size(widths[-1]) / family.size(widths[0])
        if len(widths) == SIZES and span >= LEAST_SPAN:
            layout = _layout(family, widths, 1.0, machine, text)
            if (taken := seconds_of(layout, machine, text)) > machine.seconds:
                break
            best = layout
            if TOKENS_PER_PARAMETER * family.size(width) > EPOCHS * text.train:
                break  # larger models would have too little text
        width += family.unit * max(1, width // (8 * family.unit))
    if best is None:
        raise ValueError(
            f"`budget` is {budget}, which leaves {duration(max(0.0, machine.seconds))} for the runs, but the smallest "
            f"plan ({SIZES} sizes from {family.size(layout.widths[0]):,.0f} to {family.size(layout.widths[-1]):,.0f} "
            f"parameters as applied) takes about {duration(taken)} on this machine: give at least "
            f"`budget='{_enough(taken + machine.preparation)}'`, or a smaller `recipe`"
        )
    return best


def _enough(seconds: float) -> str:
    """Return a budget of `seconds` and a reserve of 20 %."""
    return f"{math.ceil(seconds * 1.2 / 60)}m" if seconds > 60 else f"{math.ceil(seconds * 1.2)}s"


def most_tokens(family: Family, text: Text) -> int:
    """Return the largest D whose longest run reads the text at most EPOCHS times."""
    unit = STEPS_UNIT * family.recipe.step_tokens
    return text.train * EPOCHS // MULTIPLES[-1] // unit * unit


def _layout(family: Family, widths: tuple[int, ...], factor: float, machine: Machine, text: Text) -> Layout:
    top = family.size(widths[-1])
    longest = factor * TOKENS_PER_PARAMETER / MULTIPLES[-1] * top
    unit = STEPS_UNIT * family.recipe.step_tokens
    least, most = LEAST_STEPS * family.recipe.step_tokens, most_tokens(family, text)
    if most < least:
        raise ValueError(
            f"the text has {text.train:,} tokens to train on, but the longest run reads {MULTIPLES[-1] * least:,}, "
            f"which is more than {EPOCHS} times the text: give more text, or a `recipe` with smaller batches"
        )
    wanted = (longest * math.sqrt(top / family.size(width)) for width in widths)
    tokens = tuple(min(max(least, round(each / unit) * unit), most) for each in wanted)
    return Layout(widths, tokens, tuple(map(machine.seconds_per_token, widths)))


def filled(family: Family, layout: Layout, machine: Machine, text: Text) -> Layout:
    """Return the layout with as many more tokens as the time allows, up to four times as many."""
    factors = [2 ** (step / 8) for step in range(17)]
    layouts = [_layout(family, layout.widths, factor, machine, text) for factor in factors]
    return [layouts[0], *(each for each in layouts if seconds_of(each, machine, text) <= machine.seconds)][-1]


def affine_times(sizes: Sequence[float], seconds: Sequence[float]) -> Callable[[float], float]:
    """Return a function from size to seconds per token: a line through two measurements.

    The slope and the value at size 0 are not negative.
    """
    (small, large), (fast, slow) = sizes, seconds
    slope = max(0.0, (slow - fast) / (large - small))
    slope = min(slope, slow / large)
    return lambda size: max(fast - slope * small, 0.0) + slope * size


def read_settings(folder: Path) -> dict[str, Any] | None:
    """Return the settings in scale.json, with the layout; None for a new folder.

    Raises ValueError for a file, a folder with other contents, and a damaged scale.json.
    """
    path = folder / SETTINGS
    if folder.is_file():
        raise ValueError(f"`out` is {folder}, which is a file, not a folder: choose another `out`")
    if not path.exists():
        others = [inside.name for inside in folder.iterdir()] if folder.exists() else []
        if set(others) - {".lock", "vocabularies"}:  # an interrupted start has only a vocabulary
            raise ValueError(f"{folder} is not empty and holds no scaling runs: choose another `out`")
        return None
    settings: dict[str, Any] = read_json(path, "choose another `out`")
    needed: dict[str, Any] = {"budget": (int, float), "recipe": dict, "vocabulary": int, "widths": list, "tokens": list}
    needed["seconds_per_token"] = list
    sound = all(isinstance(settings.get(name), kind) for name, kind in needed.items())
    train = settings["recipe"].get("train", {}) if sound else {}
    if not sound or settings.get("format") != 1 or not {"device", "dtype"} <= train.keys():
        raise ValueError(f"{path} is damaged, or from another version of bytelm: choose another `out`")
    return settings


def settings_of(budget: float, recipe: Recipe, split_rule: str) -> dict[str, Any]:
    """Return the settings that all runs share and that the arguments decide, as values for JSON."""
    facts = {
        "format": 1,
        "budget": budget,
        "recipe": asdict(recipe),
        "vocabulary": recipe.model.vocab_size,
        "split_rule": split_rule,
    }
    settings: dict[str, Any] = json.loads(json.dumps(facts))
    return settings


def text_settings(held_out: list[bytes]) -> dict[str, Any]:
    """Return the facts of the held-out text that all runs share."""
    return {"held_out_bytes": sum(map(len, held_out)), "held_out_sha256": fingerprint(held_out)}


def check_settings(folder: Path, earlier: dict[str, Any], settings: dict[str, Any]) -> None:
    """Raise ValueError if the runs in `folder` have other settings than these."""
    remedies = {
        "budget": ("budget", f"give `budget='{earlier['budget']:.12g}s'`"),
        "vocabulary": ("size of the vocabulary", f"give `vocab_size={earlier['vocabulary']}`"),
        "recipe": ("recipe", "give the same `recipe`"),
        "split_rule": ("split", "give the same `split`"),
        "held_out_sha256": ("held-out text", "give the same corpus and reading options"),
    }
    for field, (name, remedy) in remedies.items():
        if field in settings and earlier.get(field) != settings[field]:
            raise ValueError(f"{folder} holds scaling runs with another {name}: {remedy}, or choose another `out`")


def record_settings(folder: Path, settings: dict[str, Any]) -> None:
    """Write scale.json."""
    write_json(folder / SETTINGS, settings)


def on_device(recipe: Recipe, entries: int, device: Device, dtype: Dtype) -> Recipe:
    """Return the recipe with a vocabulary of `entries`, a device and a dtype."""
    train = replace(recipe.train, device=device, dtype=dtype)
    return replace(recipe, model=replace(recipe.model, vocab_size=entries), train=train)
