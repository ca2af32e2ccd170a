"""The runs of `bytelm scale`: train each from scratch or from a longer run, and score the held-out text.

The folders of finished runs are kept.
"""

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pipelines.files import read_json, whole_folder, write_json
from pipelines.machine import cores_per_operation
from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run
from pipelines.run.metrics_log import read_metrics
from pipelines.scaling.plan import DECAY_SHARE, MOST_RATES, MULTIPLES, RATES, SEEDS, Family, Layout, ScaleRun
from pipelines.sweep.sweep_runs import measure_held_out
from pipelines.training.pretraining import train

NUMBERS = ("bits_per_byte", "size", "tokens", "flops", "epochs")


@dataclass(frozen=True)
class Work:
    """The input of the training processes: the folder, the models, the layout and the held-out text."""

    folder: Path
    family: Family
    layout: Layout
    data: Path
    """Folder of the dataset"""
    held_out: list[bytes]
    train_tokens: int
    """Tokens of the text to train on"""

    def run(self, run: ScaleRun) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / run.name

    def shortest(self, width: int) -> int:
        """Return the tokens D of the shortest run of a width."""
        return self.layout.tokens[self.layout.widths.index(width)]

    def grid(self, width: int, rate: float) -> list[ScaleRun]:
        """Return the runs of a width, the longest first."""
        shortest = self.shortest(width)
        return [ScaleRun(width, multiple * shortest, rate) for multiple in reversed(MULTIPLES)]

    def seeds(self, rate: float) -> list[ScaleRun]:
        """Return the runs of D tokens at the smallest size, one for each seed."""
        return [ScaleRun(self.layout.widths[0], self.layout.tokens[0], rate, seed) for seed in range(SEEDS)]

    def search(self, rates: Sequence[float] = RATES) -> list[ScaleRun]:
        """Return the runs of D tokens at the smallest size, one for each multiple of the learning rate."""
        return [ScaleRun(self.layout.widths[0], self.layout.tokens[0], rate) for rate in rates]

    def finished_search(self) -> list[ScaleRun]:
        """Return the finished runs of the search for a learning rate, from the lowest rate to the highest."""
        rates = [2.0**power for power in range(-MOST_RATES, MOST_RATES + 1)]
        return [run for run in self.search(rates) if self.result(run) is not None]

    def runs(self, rate: float) -> list[ScaleRun]:
        """Return all runs that the law is fitted to, those of the largest models first."""
        grid = [run for width in reversed(self.layout.widths) for run in self.grid(width, rate)]
        return list(dict.fromkeys([*grid, *self.seeds(rate)]))

    def branches(self, run: ScaleRun) -> bool:
        """Return whether a run branches off a longer one. The runs of the search and of other seeds do not."""
        shortest = self.shortest(run.width)
        searched = (run.width, run.tokens) == (self.layout.widths[0], shortest)
        return run.seed == 0 and run.tokens < MULTIPLES[-1] * shortest and not searched

    def result(self, run: ScaleRun) -> dict[str, Any] | None:
        """Return the result of a run; None if it is not finished. Raises ValueError for a damaged file."""
        path = self.folder / "results" / f"{run.name}.json"
        if not path.exists():
            return None
        remedy = "remove the file to measure the run again"
        result: dict[str, Any] = read_json(path, remedy)
        if missing := [name for name in NUMBERS if not isinstance(result.get(name), (int, float))]:
            raise ValueError(f"{path} is damaged (it has no number {missing[0]}): {remedy}")
        return result

    def flops(self, run: ScaleRun) -> float:
        """Return the training FLOPs of a run, including those before a branch."""
        return 6 * self.family.size(run.width) * run.tokens

    def left(self, run: ScaleRun) -> float:
        """Return the planned seconds of training that a run still needs."""
        if self.result(run) is not None:
            return 0.0
        log = self.run(run) / "metrics.jsonl"
        records = read_metrics(log) if log.exists() else []
        share = 1 - records[-1]["tokens"] / run.tokens if records else 1.0
        return min(self._seconds(run) * max(share, 0.0), self.seconds(run))

    def seconds(self, run: ScaleRun) -> float:
        """Return the planned seconds of training of a run; of a run that branches off a longer one, only its decay."""
        return self._seconds(run) * (DECAY_SHARE if self.branches(run) else 1.0)

    def _seconds(self, run: ScaleRun) -> float:
        return self.layout.seconds_per_token[self.layout.widths.index(run.width)] * run.tokens


def finish(work: Work, run: ScaleRun) -> bool:
    """Train or resume a run and write its result; return False if a signal stopped it after it saved a checkpoint."""
    folder = work.run(run)
    recipe = work.family.recipe_of(run, work.shortest(run.width))
    if work.branches(run) and not (folder / "config.toml").exists():
        branch(work, run)
    if train(recipe, {work.data: 1}, folder, "none"):
        return False
    with cores_per_operation(recipe.train.threads):
        held_out = measure_held_out(folder, recipe.train.device, work.held_out)
    result = {
        **run._asdict(),
        "size": work.family.size(run.width),
        "flops": work.flops(run),
        "epochs": run.tokens / work.train_tokens,
        "lr": recipe.train.lr,
        **held_out,
    }
    write_json(work.folder / "results" / f"{run.name}.json", result)
    return True


def branch(work: Work, run: ScaleRun) -> None:
    """Make the folder of a run from a checkpoint of the longest run of its size.

    The checkpoint is from the step where the decay of the shorter run begins. Up to this step both runs have the same
    learning rate. So the shorter run ends with the weights of a run from scratch.
    """
    trunk = work.run(run._replace(tokens=MULTIPLES[-1] * work.shortest(run.width)))
    step = round((1 - DECAY_SHARE) * run.tokens) // work.family.recipe.step_tokens
    checkpoint = Path("checkpoints") / f"step-{step:07d}"
    longer = Run(trunk)
    recipe = work.family.recipe_of(run, work.shortest(run.width))
    with whole_folder(work.run(run), lambda _: False) as partial:
        for name in ("tokenizer.json", "metrics.jsonl"):
            shutil.copyfile(trunk / name, partial / name)
        shutil.copytree(trunk / checkpoint, partial / checkpoint)
        save_config(partial / "config.toml", recipe, longer.facts)
