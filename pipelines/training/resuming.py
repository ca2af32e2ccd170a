"""Restore a run from a checkpoint, in any number of processes."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from lm.optim.averaging import WeightAverage
from lm.optim.optimizers import Optimizers
from pipelines.files import parse_json
from pipelines.run.checkpoint_reader import AVERAGE, MODEL, OPTIMIZER, RNG, check_weights, newest_whole_checkpoint, part
from pipelines.run.manifest import Shapes
from pipelines.run.retention import STATE
from pipelines.training.parallel import ONE_PROCESS, OneProcess


def set_weights(
    folder: Path, model: torch.nn.Module, weights: Mapping[str, Tensor], parallel: OneProcess = ONE_PROCESS
) -> None:
    """Load `weights` of the checkpoint `folder` into `model` on all ranks; ValueError if names or shapes do not fit.

    Only rank 0 needs `weights`; the other ranks receive them.
    """
    if parallel.is_main:
        check_weights(folder, model, weights)
    _fill(model.state_dict(), parallel.broadcast_shapes({MODEL: weights})[MODEL], parallel)


def resume(
    run: Path | None,
    model: torch.nn.Module,
    optimizers: Optimizers,
    settings: Mapping[str, Any],
    average: WeightAverage | None = None,
    parallel: OneProcess = ONE_PROCESS,
) -> dict[str, Any]:
    """Restore model, optimizers, average and random generators from a run's newest whole checkpoint.

    Returns the content of its state.json. Raises ValueError if the checkpoint's manifest has other `settings` (the
    run's `fixed_settings`). Only rank 0 needs `run` and `settings`.
    """
    state: dict[str, Any] = {}
    files: dict[str, Mapping[str, Tensor]] = {}
    where = ""
    shapes: Mapping[str, Shapes] = {}
    if parallel.is_main:
        assert run is not None
        checkpoint = newest_whole_checkpoint(run, settings, MODEL, OPTIMIZER, RNG, AVERAGE, STATE)
        where = str(checkpoint.folder.resolve())
        state = parse_json(checkpoint.contents[STATE], f"{checkpoint.folder / STATE}", f"remove {checkpoint.folder}")
        shapes = checkpoint.shapes if parallel.is_sharded else {}
        names = [name for name in (MODEL, OPTIMIZER, RNG, AVERAGE) if name in checkpoint and part(name) not in shapes]
        files = {name: checkpoint.tensors(name) for name in names}
    state, where, shapes = parallel.broadcast((state, where, shapes))
    files = {**parallel.broadcast_shapes(files), **_own_rows(Path(where), shapes, model, average, parallel)}
    if parallel.is_main:
        check_weights(Path(where), model, files[MODEL])
    _fill(model.state_dict(), files[MODEL], parallel)
    _set_optimizer_state(model, optimizers, files[OPTIMIZER], parallel)
    if average is not None and AVERAGE in files:
        _fill(average.weights, files[AVERAGE], parallel)
        average.steps = state["averaged_steps"]
    _set_rng_state(files[RNG], parallel)
    return state


def _own_rows(
    folder: Path,
    shapes: Mapping[str, Shapes],
    model: torch.nn.Module,
    average: WeightAverage | None,
    parallel: OneProcess,
) -> dict[str, Mapping[str, Tensor]]:
    """Return this rank's rows of the tensors of a sharded checkpoint, by file name and key."""
    if not shapes:
        return {}
    from pipelines.run.checkpoint_shards import read_part

    parameters = dict(model.named_parameters())
    moments = {key: parameters[key.rpartition("/")[0]] for key in shapes[part(OPTIMIZER)]}
    like = {MODEL: model.state_dict(), OPTIMIZER: moments, AVERAGE: average.weights if average else {}}
    return {
        name: read_part(folder / part(name), shapes[part(name)], tensors, parallel.checkpoint_group)
        for name, tensors in like.items()
        if part(name) in shapes
    }


def _fill(targets: Mapping[str, Tensor], values: Mapping[str, Tensor], parallel: OneProcess = ONE_PROCESS) -> None:
    for name, target in targets.items():
        target.detach().copy_(parallel.distribute(values[name], target))


def _set_optimizer_state(
    model: torch.nn.Module, optimizers: Optimizers, saved: Mapping[str, Tensor], parallel: OneProcess
) -> None:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    for parameter, state in optimizers.state():
        prefix = f"{names[id(parameter)]}/"
        mine = {key.removeprefix(prefix): value for key, value in saved.items() if key.startswith(prefix)}
        state.clear()
        state |= {key: parallel.distribute(value, parameter) for key, value in mine.items()}


def _set_rng_state(saved: Mapping[str, Tensor], parallel: OneProcess) -> None:
    """Restore this rank's generators; a rank that the checkpoint lacks keeps its own."""
    like = torch.get_rng_state()  # on the CPU, as are the states of a GPU's generators
    states = {name: parallel.distribute(state, like) for name, state in saved.items()}
    suffix = f".{parallel.rank}" if parallel.rank else ""
    if f"cpu{suffix}" in states:
        torch.set_rng_state(states[f"cpu{suffix}"])
    if f"cuda{suffix}" in states and torch.cuda.is_available():
        torch.cuda.set_rng_state(states[f"cuda{suffix}"])
    if f"mps{suffix}" in states and torch.backends.mps.is_available():
        torch.mps.set_rng_state(states[f"mps{suffix}"])
