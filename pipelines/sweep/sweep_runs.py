"""The runs of a sweep: train a model, measure the held-out text, keep the result, and remove the model.

`pipelines.training.run_processes` trains several runs at a time, each in one thread.
"""

import math
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from lm.metrics.units import NATS_PER_BIT
from lm.model import LanguageModel
from pipelines.dataset.reader import TokenDataset, TokenStream
from pipelines.evaluation.planning import objective_of, window_of
from pipelines.evaluation.windows import Objective, WindowSettings, windows_over
from pipelines.files import read_json, write_json
from pipelines.machine import cores_per_operation
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.run.provenance import provenance
from pipelines.sweep.plan import Budget, SweepRun, fingerprint
from pipelines.sweep.vocabularies import stream_of
from pipelines.training.batch_loss import summed_loss
from pipelines.training.pretraining import train

# Numbers of a result that the summary reads.
NUMBERS = (
    *("bits_per_byte", "bytes_per_token", "tokens", "bytes_seen", "epochs", "flops"),
    *("parameters", "embedding_parameters"),
)


@dataclass(frozen=True)
class Work:
    """What the processes of a sweep need: its folder, the budget of each run, and the held-out text."""

    folder: Path
    budget: Budget
    held_out: list[bytes]

    def vocabulary(self, run: SweepRun) -> Path:
        """Return the folder of the dataset of a run."""
        return self.folder / "vocabularies" / run.vocabulary.name

    def run(self, run: SweepRun) -> Path:
        """Return the folder of a run."""
        return self.folder / "runs" / run.name

    def result(self, run: SweepRun) -> dict[str, Any] | None:
        """Return the result of a run; None if it is not finished."""
        path = self.result_file(run)
        if not path.exists():
            return None
        remedy = "remove the file to train the run again"
        result: dict[str, Any] = read_json(path, remedy)
        if missing := [name for name in NUMBERS if not isinstance(result.get(name), (int, float))]:
            raise ValueError(f"{path} is damaged (it has no number {missing[0]}): {remedy}")
        return result

    def result_file(self, run: SweepRun) -> Path:
        """Return the file of the result of a run."""
        return self.folder / "results" / f"{run.name}.json"


def finish(work: Work, run: SweepRun) -> bool:
    """Train or resume a run and write its result; return False if a signal stopped it after it saved a checkpoint."""
    folder, data = work.run(run), work.vocabulary(run)
    recipe = work.budget.recipe_of(run)
    if train(recipe, {data: 1}, folder, "none"):
        return False
    with cores_per_operation(recipe.train.threads):
        result = measure(work, run)
    write_json(work.result_file(run), result)
    shutil.rmtree(folder)  # the models of a sweep can take gigabytes
    return True


def measure(work: Work, run: SweepRun) -> dict[str, Any]:
    """Return the result of a trained run: its size, its training, and the code length of the held-out text."""
    budget, size = work.budget, work.budget.size(run.vocabulary.size)
    held_out = measure_held_out(work.run(run), budget.recipe.train.device, work.held_out)
    train_split = TokenDataset(work.vocabulary(run)).info["splits"]["train"]
    tokens = budget.tokens(run.vocabulary.size)
    return {
        "kind": run.vocabulary.kind,
        "size": run.vocabulary.size,
        "seed": run.seed,
        **held_out,
        "tokens": tokens,
        "steps": tokens // budget.step_tokens,
        "epochs": tokens / train_split["tokens"],
        "bytes_seen": tokens * train_split["bytes"] / train_split["encoded_tokens"],
        "flops": tokens * size.flops_per_token,
        "parameters": size.parameters,
        "embedding_parameters": size.embedding,
    }


def measure_held_out(run: Path, device: str, documents: list[bytes]) -> dict[str, Any]:
    """Return the code length of held-out documents by the model of a run, and the code and machine that measured it."""
    folder = Run(run)
    trained, tok = load_trained(folder, device), folder.tokenizer()
    length = window_of(folder.recipe)
    stream = stream_of(documents, tok, length)
    nats = code_length(trained.model, stream, objective_of(folder, length, tok))
    size = sum(map(len, documents))
    return {
        "bits_per_byte": nats / NATS_PER_BIT / size,
        "nats": nats,
        "held_out_bytes": size,
        "held_out_tokens": stream.tokens - 1,
        "held_out_sha256": fingerprint(documents),
        "bytes_per_token": size / (stream.tokens - 1),
        **provenance(trained.machine.device),
    }


@torch.no_grad()
def code_length(model: LanguageModel, stream: TokenStream, objective: Objective) -> float:
    """Return the nats of all tokens of a stream but the first, in windows without overlap.

    The first token is the separator before the first document, so all text is predicted.
    """
    window = model.config.context_length
    device = next(model.parameters()).device
    windows, _ = windows_over(stream, objective, WindowSettings(window, stride=window, min_context=1))
    return math.fsum(float(summed_loss(model, model, window.batch, device=device)) for window in windows)
