"""Write checkpoints: folders that appear whole or not at all, are verified, and are read without unpickling.

`checkpoints/step-NNNNNNN/` holds model.safetensors, optimizer.safetensors (state by parameter name), rng.safetensors,
average.safetensors (if the run averages its weights), state.json (step, blocks consumed, seconds, ...) and
manifest.json (see `pipelines.run.manifest`). Rank 0 writes and reads whole tensors, so the files do not depend on the
world size.

FSDP never gathers a tensor: each rank writes and reads its own rows (see `pipelines.run.checkpoint_shards`). Its
checkpoints have the folders of shards model/, optimizer/ and average/ instead of files. Both kinds resume with any
strategy.
"""

import hashlib
import json
import shutil
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import save
from torch import Tensor

from lm.optim.averaging import WeightAverage
from lm.optim.optimizers import Optimizers
from pipelines.recipes.config import TrainConfig
from pipelines.run.checkpoint_reader import AVERAGE, MODEL, OPTIMIZER, RNG, part
from pipelines.run.manifest import MANIFEST, Shapes, manifest_json
from pipelines.run.retention import STATE, checkpoint_folders, checkpoints_to_keep
from pipelines.training.parallel import ONE_PROCESS, OneProcess
from tokenizer.formats.whole_files import make_folder, naming, publish

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup

Snapshot = Mapping[str, Mapping[str, Tensor]]
"""Tensors by file name and key, on the CPU."""


def take_snapshot(
    model: torch.nn.Module,
    optimizers: Optimizers | None = None,
    average: WeightAverage | None = None,
    parallel: OneProcess = ONE_PROCESS,
) -> Snapshot:
    """Return the tensors of each file, copied to the CPU, so that training can continue while they are written.

    Without `optimizers` the optimizer state is empty. All ranks must call it. Only rank 0 gets the tensors; with FSDP
    every rank gets its own rows, as DTensors.
    """
    files: dict[str, Mapping[str, Tensor]] = {
        MODEL: model.state_dict(),
        OPTIMIZER: _optimizer_state(model, optimizers),
        RNG: _rng_state(parallel),
    }
    if average is not None:
        files[AVERAGE] = average.weights
    snapshot: dict[str, dict[str, Tensor]] = {name: {} for name in files}
    for name, tensors in files.items():
        for key, value in tensors.items():
            if parallel.is_main or parallel.is_sharded:
                snapshot[name][key] = value.detach().clone() if value.device.type == "cpu" else value.detach().cpu()
    return snapshot


def write_checkpoint(
    run: Path,
    snapshot: Snapshot,
    state: Mapping[str, Any],
    config: TrainConfig,
    settings: Mapping[str, Any],
) -> Path:
    """Write the checkpoint of `state["step"]`, then remove the checkpoints that `config` does not keep.

    `settings` are the run's `fixed_settings`, which the manifest records. An error while writing, such as a full disk,
    leaves the earlier checkpoints unchanged and no partial one.
    """
    folder, partial = _folders(run, state["step"])
    with _removed_on_error(partial, folder):
        _make_partial(partial)
        files = {name: _write(partial / name, save(dict(tensors))) for name, tensors in snapshot.items()}
        _publish(partial, folder, files, state, settings)
    _remove_old(run, folder, config)
    return folder


def write_sharded_checkpoint(
    run: Path,
    snapshot: Snapshot,
    state: Mapping[str, Any],
    config: TrainConfig,
    settings: Mapping[str, Any],
    group: "ProcessGroup",
) -> None:
    """`write_checkpoint` of all ranks together: each writes its rows, and rank 0 the rest.

    The folder gets its final name after every rank has finished. If one rank fails, all raise OSError.
    """
    from pipelines.run.checkpoint_shards import on_all_ranks, shapes_of, write_part

    main = group.rank() == 0
    folder, partial = _folders(run, state["step"])
    parts = {part(name): tensors for name, tensors in snapshot.items() if name != RNG}
    files: dict[str, str] = {}

    def publish() -> None:
        files[RNG] = _write(partial / RNG, save(dict(snapshot[RNG])))
        shapes = {name: shapes_of(tensors) for name, tensors in parts.items()}
        _publish(partial, folder, files, state, settings, shapes)
        _remove_old(run, folder, config)

    with _removed_on_error(partial, folder) if main else nullcontext():
        on_all_ranks(lambda: _make_partial(partial, *parts) if main else None, group)
        on_all_ranks(lambda: _require_shared(partial), group)
        for name, tensors in parts.items():
            shards = write_part(partial / name, tensors, group)
            files |= {f"{name}/{shard}": checksum for shard, checksum in shards.items()}
        on_all_ranks(lambda: publish() if main else None, group)


def _folders(run: Path, step: int) -> tuple[Path, Path]:
    """Return the folder of a checkpoint, and the folder in which it is written."""
    folder = run / "checkpoints" / f"step-{step:07d}"
    return folder, folder.with_name(f"partial-{step:07d}")


def _make_partial(partial: Path, *parts: str) -> None:
    for leftover in partial.parent.glob("partial-*"):  # from a process that was killed while saving
        shutil.rmtree(leftover)
    make_folder(partial.parent)
    partial.mkdir()
    for name in parts:
        (partial / name).mkdir()


def _require_shared(partial: Path) -> None:
    if not partial.is_dir():
        raise OSError(f"{partial}, made by process 0, is not here: all nodes must share the file system of `out`")


def _publish(
    partial: Path,
    folder: Path,
    files: dict[str, str],
    state: Mapping[str, Any],
    settings: Mapping[str, Any],
    shapes: Mapping[str, Shapes] | None = None,
) -> None:
    """Write state.json and the manifest of `files`, then give the folder its final name."""
    state = {**state, "date": datetime.now(UTC).isoformat(timespec="seconds")}
    files[STATE] = _write(partial / STATE, (json.dumps(state, allow_nan=False) + "\n").encode())
    _write(partial / MANIFEST, manifest_json(files, settings, shapes).encode())
    if folder.exists():
        shutil.rmtree(folder)
    publish(partial, folder)


def _remove_old(run: Path, newest: Path, config: TrainConfig) -> None:
    keep = checkpoints_to_keep(run, newest, config)
    for old in checkpoint_folders(run):
        if old not in keep:
            shutil.rmtree(old)


@contextmanager
def _removed_on_error(partial: Path, folder: Path) -> Iterator[None]:
    """Remove `partial` if an error leaves the context; the message of an OSError then names `folder`."""
    try:
        yield
    except BaseException as error:
        shutil.rmtree(partial, ignore_errors=True)
        if isinstance(error, OSError):
            raise naming(error, folder) from None
        raise


class CheckpointWriter:
    """Writes checkpoints one at a time in a background thread, while training continues."""

    def __init__(
        self,
        run: Path | None,
        config: TrainConfig,
        settings: Mapping[str, Any],
        group: "ProcessGroup | None" = None,
    ) -> None:
        """Without a run nothing is written. With a `group`, all of its ranks write sharded checkpoints together."""
        self.run, self.config, self.settings, self.group = run, config, settings, group
        self._thread: threading.Thread | None = None
        self._written = threading.Event()
        self._error: BaseException | None = None

    def write(self, snapshot: Snapshot, state: Mapping[str, Any]) -> None:
        """Start to write a checkpoint, after waiting for the one before; raises that one's error."""
        self.wait()
        if self.run is None:
            return
        self._written.clear()
        self._thread = threading.Thread(target=self._write, args=(self.run, snapshot, state), name="checkpoint")
        self._thread.start()

    def check(self) -> None:
        """Raise the error of the background thread, if any, without waiting."""
        if self._error is not None:
            error, self._error = self._error, None
            raise error

    def wait(self) -> None:
        """Wait until the checkpoint is on disk; raise its error."""
        self.join()
        self.check()

    def join(self) -> None:
        """Wait for the background thread without raising its error."""
        if self._thread is not None:
            self._written.wait()  # before Python 3.13, a join that a signal interrupts marks the thread as ended
            self._thread.join()
            self._thread = None

    def _write(self, run: Path, snapshot: Snapshot, state: Mapping[str, Any]) -> None:
        try:
            if self.group is None:
                write_checkpoint(run, snapshot, state, self.config, self.settings)
            else:
                write_sharded_checkpoint(run, snapshot, state, self.config, self.settings, self.group)
        except BaseException as error:  # the training thread raises it in `check`
            self._error = error
        finally:
            self._written.set()


def _optimizer_state(model: torch.nn.Module, optimizers: Optimizers | None) -> dict[str, Tensor]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return {
        f"{names[id(parameter)]}/{key}": torch.as_tensor(value)
        for parameter, state in (optimizers.state() if optimizers else ())
        for key, value in state.items()
    }


def _rng_state(parallel: OneProcess) -> dict[str, Tensor]:
    """Return the generators' states of all ranks: `cpu`, and `cuda` or `mps` of a GPU; rank n > 0 appends `.n`."""
    state = {"cpu": torch.get_rng_state()}
    if torch.cuda.is_available() and torch.cuda.is_initialized():
        state["cuda"] = torch.cuda.get_rng_state()
    if torch.backends.mps.is_available():
        state["mps"] = torch.mps.get_rng_state()
    gathered = {name: parallel.all_gather(local) for name, local in state.items()}
    return {f"{name}.{n}" if n else name: state for name, states in gathered.items() for n, state in enumerate(states)}


def _write(path: Path, contents: bytes) -> str:
    """Write a file and return its SHA-256."""
    path.write_bytes(contents)
    return hashlib.sha256(contents).hexdigest()


def writers_folder(folder: Path | None, parallel: OneProcess) -> Path | None:
    """Return the run's folder on the ranks that write checkpoints: on all ranks if they are sharded.

    `folder`: the run's folder on rank 0, None on the others.
    """
    if not parallel.is_sharded:
        return folder
    known = parallel.broadcast(str(folder.resolve()) if folder else "")
    return Path(known) if known else None
