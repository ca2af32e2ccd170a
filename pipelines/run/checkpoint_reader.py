"""Find a run's checkpoints and read them, verified against their manifests."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load
from torch import Tensor

from lm.lora import merge_lora
from lm.warn import warn
from pipelines.run.manifest import (
    DamagedCheckpointError,
    Shapes,
    check_run,
    read_manifest,
    read_verified,
    verify_shards,
)
from pipelines.run.retention import checkpoint_folders, find_checkpoint, prefers_best

MODEL, OPTIMIZER, RNG, AVERAGE = (
    "model.safetensors",
    "optimizer.safetensors",
    "rng.safetensors",
    "average.safetensors",
)


def part(name: str) -> str:
    """Return the name of the folder that holds the shards of a file, such as "model" for model.safetensors."""
    return name.removesuffix(".safetensors")


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose named files have been verified."""

    folder: Path
    contents: dict[str, bytes]
    """Content by file name, such as model.safetensors or state.json."""
    shapes: Mapping[str, Shapes]
    """Tensors of a sharded checkpoint by folder of shards; empty for other checkpoints."""

    def __contains__(self, name: str) -> bool:
        return name in self.contents or part(name) in self.shapes

    def tensors(self, name: str) -> dict[str, Tensor]:
        """Return the whole tensors of a verified file, or of its shards, on the CPU.

        Call it once per file: the content of the file is freed.
        """
        if name in self.contents:
            tensors: dict[str, Tensor] = load(self.contents.pop(name))
            return tensors
        from pipelines.run.checkpoint_shards import read_part  # takes a second to import

        return read_part(self.folder / part(name), self.shapes[part(name)])


def read_checkpoint(folder: Path, settings: Mapping[str, Any], *names: str) -> Checkpoint:
    """Return a checkpoint, with the named files or their shards verified against its manifest.

    Leaves out AVERAGE if the run does not average its weights. Raises DamagedCheckpointError, naming the file, if one
    is missing, truncated or altered. Raises ValueError, naming the field of config.toml, if `settings` (the run's
    `fixed_settings`) differ from those in the manifest.
    """
    manifest = read_manifest(folder)
    check_run(folder.parent.parent, manifest, settings)
    averages = {AVERAGE, part(AVERAGE)} & {*manifest.files, *manifest.shapes} or settings.get("train.average", 0) > 0
    contents = {}
    for name in names:
        if part(name) in manifest.shapes:
            verify_shards(folder, manifest, part(name))
        elif name != AVERAGE or averages:
            contents[name] = read_verified(folder, manifest, name)
    return Checkpoint(folder, contents, manifest.shapes)


def newest_whole_checkpoint(run: Path, settings: Mapping[str, Any], *names: str) -> Checkpoint:
    """Return a run's newest checkpoint whose named files are whole.

    Skips damaged checkpoints with a warning that names the file. Raises ValueError if no checkpoint is whole, or if
    `settings` differ (see `read_checkpoint`).
    """
    damaged = ""
    while True:
        folders = checkpoint_folders(run)
        for folder in reversed(folders):
            try:
                return read_checkpoint(folder, settings, *names)
            except DamagedCheckpointError as error:
                if folder.exists():  # else a running training has removed it since
                    damaged = str(error)
                    warn(f"{damaged}: {folder.name} is skipped")
        if checkpoint_folders(run) == folders:
            break
    if damaged:
        raise ValueError(f"{damaged}, and no other checkpoint of {run} is whole: restore one, or train in a new folder")
    raise ValueError(f"{run} has no checkpoint: bytelm pretrain makes one")


def whole_checkpoint(run: Path, settings: Mapping[str, Any], which: str, *names: str) -> Checkpoint:
    """Return the checkpoint `which` with its named files.

    `which` is as for `find_checkpoint`; "newest" is the newest whole one. Raises ValueError if there is no such
    checkpoint, and the errors of `read_checkpoint`.
    """
    folders = checkpoint_folders(run)
    if which == "newest" or (which == "auto" and not prefers_best(folders)):
        return newest_whole_checkpoint(run, settings, *names)
    return read_checkpoint(find_checkpoint(run, which), settings, *names)


def load_weights(run: Path, settings: Mapping[str, Any], which: str = "auto") -> tuple[Path, dict[str, Tensor]]:
    """Return the folder and weights of the checkpoint `which` (see `whole_checkpoint`).

    Averages replace weights, and adapters are folded into the weights.
    """
    folder, weights = load_with_adapters(run, settings, which)
    if rank := settings.get("lora.rank"):
        weights = merge_lora(weights, settings["lora.alpha"] / rank)
    return folder, weights


def load_with_adapters(run: Path, settings: Mapping[str, Any], which: str = "auto") -> tuple[Path, dict[str, Tensor]]:
    """Return the same as `load_weights`, with the adapters beside the weights."""
    checkpoint = whole_checkpoint(run, settings, which, MODEL, AVERAGE)
    weights = checkpoint.tensors(MODEL)
    weights |= checkpoint.tensors(AVERAGE) if AVERAGE in checkpoint else {}
    return checkpoint.folder, weights


def check_weights(folder: Path, model: torch.nn.Module, weights: Mapping[str, Tensor]) -> None:
    """Raise ValueError unless `weights` of the checkpoint `folder` have the names and shapes of the model's."""
    expected = model.state_dict()
    wrong = [name for name in expected if name not in weights or weights[name].shape != expected[name].shape]
    if wrong or len(weights) != len(expected):
        raise ValueError(
            f"{folder} holds the weights of another model ({wrong[0] if wrong else 'more tensors'} does not fit): "
            "the run's config.toml was changed"
        )
