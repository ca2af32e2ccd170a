"""Sharded parts of a checkpoint: every rank writes and reads its own rows, and no rank gathers a tensor.

A part, such as the weights, is a folder of safetensors files, one per rank, in the format of PyTorch's distributed
checkpoints. Each file records where its rows belong, so any number of processes can read it. PyTorch's reader trusts
the files that it finds: if the first shard is missing, it fills tensors with wrong values. So call
`verify_shards` first.
"""

from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any, TypeVar
from warnings import catch_warnings, simplefilter

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.tensor import DTensor

from pipelines.files import file_sha256
from pipelines.run.manifest import DamagedCheckpointError, Shapes

Result = TypeVar("Result")


def write_part(folder: Path, tensors: Mapping[str, Tensor], group: dist.ProcessGroup) -> dict[str, str]:
    """Write this rank's rows of tensors into the existing `folder`; return the SHA-256 of all files by name.

    All ranks call it with the same names. Tensors that are not sharded are written once. Raises OSError on all ranks if
    one of them fails.
    """
    if not tensors:  # the optimizer state before the first step
        return {}
    writer = HuggingFaceStorageWriter(str(folder), save_distributed=True)
    try:
        save(dict(tensors), storage_writer=writer, process_group=group)
    except CheckpointException as error:  # derives from BaseException, which handlers of errors do not catch
        raise _first_error(error) from None

    def checksums() -> dict[str, str]:
        own = folder.glob(f"shard-{group.rank() + 1:05d}-*")  # shards of other nodes may not be visible yet
        return {path.name: file_sha256(path) for path in own}

    files = {name: checksum for of_rank in on_all_ranks(checksums, group) for name, checksum in of_rank.items()}
    assert files, "the names of PyTorch's shards have changed"
    return files


def read_part(
    folder: Path, shapes: Shapes, like: Mapping[str, Tensor] | None = None, group: dist.ProcessGroup | None = None
) -> dict[str, Tensor]:
    """Return the tensors of a verified part by name: on the CPU, or where `like` has a tensor, on its device.

    A tensor is sharded like the DTensor of its name and shape in `like`. All ranks of `group` call it; without a group
    this process reads whole tensors. Raises DamagedCheckpointError if the files hold other shapes than the manifest.
    """
    reader = HuggingFaceStorageReader(str(folder))
    _check_shapes(folder, reader.read_metadata().state_dict_metadata, shapes)
    tensors = {name: _empty(dtype, sizes, (like or {}).get(name)) for name, (dtype, sizes) in shapes.items()}
    if tensors:
        with catch_warnings():
            simplefilter("ignore", UserWarning)  # about reading without a process group
            try:
                load(dict(tensors), storage_reader=reader, process_group=group, no_dist=group is None)
            except CheckpointException as error:
                raise _first_error(error) from None
    return tensors


def shapes_of(tensors: Mapping[str, Tensor]) -> Shapes:
    """Return the manifest's entry for a part: dtypes and whole shapes."""
    return {name: [str(value.dtype).removeprefix("torch."), list(value.shape)] for name, value in tensors.items()}


def on_all_ranks(action: Callable[[], Result], group: dist.ProcessGroup) -> list[Result]:
    """Return the results of `action` on all ranks, by rank; raise OSError on all ranks if one of them raised it."""
    result: Any = None
    error = ""
    try:
        result = action()
    except OSError as raised:
        error = str(raised)
    outcomes: list[Any] = [None] * group.size()
    dist.all_gather_object(outcomes, (result, error), group=group)
    for rank, (_, error) in enumerate(outcomes):
        if error:
            raise OSError(f"process {rank}: {error}")
    return [result for result, _ in outcomes]


def _empty(dtype: str, sizes: list[int], like: Tensor | None) -> Tensor:
    if like is None:
        return torch.empty(sizes, dtype=getattr(torch, dtype))
    if isinstance(like, DTensor) and list(like.shape) == sizes:
        return torch.empty_like(like, dtype=getattr(torch, dtype), requires_grad=False)
    return torch.empty(sizes, dtype=getattr(torch, dtype), device=like.device)


def _check_shapes(folder: Path, found: Mapping[str, Any], shapes: Shapes) -> None:
    """Raise DamagedCheckpointError unless the shards hold exactly the rows of tensors with these shapes."""
    for name in sorted(found.keys() ^ shapes.keys()):
        raise DamagedCheckpointError(f"{folder} and its manifest differ in the tensor {name}: restore both from a copy")
    for name, (dtype, sizes) in shapes.items():
        tensor = found[name]
        assert isinstance(tensor, TensorStorageMetadata)
        rows = sum(prod(chunk.sizes) for chunk in tensor.chunks)
        kind = str(tensor.properties.dtype).removeprefix("torch.")
        if (kind, list(tensor.size), rows) != (dtype, sizes, prod(sizes)):
            raise DamagedCheckpointError(f"{folder}: the shards of {name} do not have the shape in the manifest")


def _first_error(error: CheckpointException) -> OSError:
    """Return the error of the first rank that failed."""
    rank, (cause, _) = next(iter(error.failures.items()))
    if isinstance(cause, OSError):
        return OSError(f"process {rank}: {cause}")
    return OSError(f"process {rank}: {type(cause).__name__}: {cause}")
