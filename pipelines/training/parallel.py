"""One run on several processes, and its twin on one: whatever the trainer asks of the others.

torchrun starts the processes, one a GPU or some on a CPU. Each reads its rows of every batch and computes their part of
the loss; PyTorch's DistributedDataParallel adds up the gradients, or FSDP2 (`fully_shard`), which also leaves each
process only its share of weights, gradients and optimizer state. Only the main process touches the run's folder. Small
agreements (weights of batches, losses, signals) go through gloo, so that a GPU need not be waited for.
"""

import inspect
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from lm.model import LanguageModel
from lm.optim.optimizers import Optimizers
from pipelines.cli.display import messages
from pipelines.training.loader import Batch, Share

# By their names since torch 2.13, or before.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_ddp_options = inspect.signature(DistributedDataParallel.__init__).parameters
SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _ddp_options else "broadcast_buffers"
Kind = Literal["none", "ddp", "fsdp"]
Files = Mapping[str, Mapping[str, Tensor]]
SHARED_STORE = "TORCHELASTIC_USE_AGENT_STORE"
LAUNCH = "torchrun --standalone --nproc-per-node 2 --no-python bytelm pretrain ..."


class OneProcess:
    """A run on one device. What is shared, told or gathered among processes is here simply there."""

    kind: Kind = "none"
    rank, world_size = 0, 1

    @property
    def is_main(self) -> bool:
        """Whether this is the process that speaks, and that reads and writes the run's folder."""
        return self.rank == 0

    @property
    def workers(self) -> str:
        """Who shares the work, in words; nothing where nobody does."""
        return ""

    @property
    def share(self) -> Share:
        """Which rows of a batch this process reads."""
        return Share(self.rank, self.world_size)

    def wrap(self, model: LanguageModel, compiled: bool) -> Callable[..., Tensor]:
        """What to call for the hidden states of `model`; `compiled`, by torch.compile. It comes before the optimizer:
        the model's parameters may be others afterwards."""
        return torch.compile(model) if compiled else model

    def gradient(
        self, batch: Batch, size: int, loss_of: Callable[[Batch], Tensor], scaled: Callable[[Tensor], Tensor]
    ) -> Tensor:
        """Leave in the parameters the gradient of a batch's loss, the sum over all processes of `loss_of` of at most
        `size` rows at a time, `scaled`; this process's part of that sum, without its gradient and not scaled."""
        total = torch.zeros(())
        for micro in self._micro_batches(batch, size):
            loss = loss_of(micro)
            self._backward(scaled(loss))
            total = total + loss.detach()
        return total

    def measure(self, batch: Batch, loss_of: Callable[[Batch], Tensor]) -> float:
        """Return this process's part of the loss of a batch, without a gradient."""
        with torch.no_grad():
            return float(loss_of(batch))

    def _micro_batches(self, batch: Batch, size: int) -> Iterable[Batch]:
        """At most `size` rows at a time, each to be followed by its `_backward`."""
        return batch.split(size)

    def _backward(self, loss: Tensor) -> None:
        """Add the gradient of this process's part of the loss, which becomes that of the sum over all."""
        loss.backward()

    def clip(self, parameters: Sequence[Tensor], limit: float) -> Tensor:
        """Scale the whole gradient of all parameters down to an L2 norm of `limit`; the norm it had, a scalar."""
        return clip_grad_norm_(parameters, limit)

    def shares(self, muon: bool) -> int:
        """Return the number of shares that `update` steps in parallel; `muon`: whether one optimizer is Muon."""
        return 1

    def update(self, optimizers: Optimizers) -> None:
        """Update every parameter that has a gradient."""
        optimizers.step()

    def spread(self, function: Callable[[Tensor], Tensor], matrices: Tensor, rows: int) -> Tensor:
        """`function` of a stack of matrices (N, `rows`, columns), of which each process works on some. Given are, and
        returned, as many of the rows as this process has of each parameter."""
        return function(matrices)

    def sum(self, value: float) -> float:
        """The sum over all processes, in float64."""
        return value

    def largest(self, value: int) -> int:
        """The largest over all processes."""
        return value

    def tell(self, value: Any) -> Any:
        """What the main process gives, which JSON can spell."""
        return value

    def outline(self, files: Files) -> Files:
        """The main process's tensors; elsewhere their shapes and dtypes, on the meta device."""
        return files

    def place(self, value: Tensor, like: Tensor) -> Tensor:
        """The main process's `value` on the device of `like`, and sharded as it is where both have one shape."""
        return value.to(like.device)

    def whole(self, tensor: Tensor) -> Tensor:
        """All of a tensor that may be sharded."""
        return tensor

    def own(self, tensor: Tensor) -> Tensor:
        """This process's share of a tensor that may be sharded."""
        return tensor

    def gather(self, tensor: Tensor) -> list[Tensor]:
        """What each process gives, by rank: small tensors of one shape on the CPU."""
        return [tensor]

    def release(self, model: LanguageModel) -> None:
        """After forward passes that no backward pass follows: give back weights that were gathered for them."""


ALONE = OneProcess()


class Replicas(OneProcess):
    """A whole model in each process, and gradients added up while the backward pass still runs (Li et al. 2020)."""

    kind: Kind = "ddp"

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    @property
    def workers(self) -> str:
        return f"{self.world_size} processes ({self.kind})"

    def wrap(self, model: LanguageModel, compiled: bool) -> Callable[..., Tensor]:
        # Buffers are tables of positions, the same everywhere.
        self._wrapped = DistributedDataParallel(model, gradient_as_bucket_view=True, **{SYNC_BUFFERS: False})
        return torch.compile(self._wrapped) if compiled else self._wrapped

    def _micro_batches(self, batch: Batch, size: int) -> Iterable[Batch]:
        *before, last = batch.split(size)
        for micro in before:
            with self._wrapped.no_sync():
                yield micro
        yield last

    def _backward(self, loss: Tensor) -> None:
        # PyTorch takes the mean over processes, and the loss is a sum.
        (loss * self.world_size).backward()

    def spread(self, function: Callable[[Tensor], Tensor], matrices: Tensor, rows: int) -> Tensor:
        count = -(-len(matrices) // self.world_size)
        mine = matrices.new_zeros(count, *matrices.shape[1:])
        own = matrices[self.rank * count : (self.rank + 1) * count]
        mine[: len(own)] = own
        done = function(mine).contiguous()
        all_of_them = done.new_empty(self.world_size * count, *done.shape[1:])
        all_gather_single(all_of_them, done)
        return all_of_them[: len(matrices)]

    def sum(self, value: float) -> float:
        return self._reduced(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.SUM)

    def largest(self, value: int) -> int:
        return self._reduced(torch.tensor(value), dist.ReduceOp.MAX)

    def tell(self, value: Any) -> Any:
        told = bytearray(json.dumps(value).encode() if self.is_main else b"")
        message = torch.zeros(self.largest(len(told)), dtype=torch.uint8)
        if self.is_main:
            message[:] = torch.frombuffer(told, dtype=torch.uint8)
        dist.broadcast(message, src=0)
        return json.loads(message.numpy().tobytes())

    def outline(self, files: Files) -> Files:
        looks = {
            name: {key: [str(value.dtype).removeprefix("torch."), *value.shape] for key, value in tensors.items()}
            for name, tensors in files.items()
        }
        told = self.tell(looks)
        if self.is_main:
            return files
        return {
            name: {
                key: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
                for key, (dtype, *shape) in tensors.items()
            }
            for name, tensors in told.items()
        }

    def place(self, value: Tensor, like: Tensor) -> Tensor:
        there = value if self.is_main else torch.empty_like(value, device="cpu")
        dist.broadcast(there, src=0)
        return there.to(like.device)

    def gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor)
        return parts

    @staticmethod
    def _reduced(value: Tensor, how: dist.ReduceOp) -> Any:
        dist.all_reduce(value, how)
        return value.item()


@contextmanager
def processes(kind: Kind, device: str) -> Iterator[OneProcess]:
    """The processes of this job, which torchrun started, or the only one. `device` is the recipe's, perhaps "auto".

    Only the main process prints. Raises ValueError where `kind` and the way the job was started do not fit together,
    ConnectionError in a process that has lost another one. A FloatingPointError, which all raise alike, is left to the
    main process; the others end.
    """
    started = int(os.environ.get("WORLD_SIZE", "1")) if "RANK" in os.environ else 0
    if kind == "none":
        if started > 1:
            raise ValueError(f"torchrun started {started} processes, which would all do the same: give --parallel")
        yield OneProcess()
        return
    if not started:
        raise ValueError(f"--parallel {kind} is for processes that torchrun starts: {LAUNCH} --parallel {kind}")
    backend = "cpu:gloo,cuda:nccl" if _takes_a_gpu(device) else "gloo"
    rank, quiet = int(os.environ["RANK"]), messages.quiet
    try:
        dist.init_process_group(backend, **_meeting_point())
        messages.quiet = quiet or rank > 0
        yield Replicas() if kind == "ddp" else _shards("cuda" if "cuda" in backend else "cpu")
    except FloatingPointError:
        if rank == 0:
            raise
        raise SystemExit(0) from None
    except RuntimeError as error:
        if isinstance(error, dist.DistError) or "gloo" in str(error).lower():
            raise ConnectionError(
                f"process {rank} has lost another one of the job: the same command goes on from the newest "
                f"checkpoint ({str(error).strip().splitlines()[0][:200]})"
            ) from error
        raise
    finally:
        messages.quiet = quiet
        if dist.is_initialized():
            dist.destroy_process_group()


def _shards(device: str) -> OneProcess:
    # FSDP takes half a second to import: no other run should wait for it.
    from pipelines.training.shards import Shards

    return Shards(device)


def _meeting_point() -> dict[str, Any]:
    """Where processes find each other, if not where torchrun says: it keeps one store through its restarts, in which
    they would find the addresses of processes that are gone. On several nodes restarts are not counted alike, and
    TORCH_DISABLE_SHARE_RDZV_TCP_STORE=1 has torchrun make a new store for each."""
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    if attempt == 0 or os.environ.get("GROUP_WORLD_SIZE") != "1" or os.environ.get(SHARED_STORE) != "True":
        return {}
    store = dist.TCPStore(os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]), is_master=False)
    rank, world_size = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    return {"store": dist.PrefixStore(f"attempt {attempt}", store), "rank": rank, "world_size": world_size}


def _takes_a_gpu(device: str) -> bool:
    """Whether processes compute on GPUs; if so this one takes its own. ValueError when there are too few."""
    if device == "cpu" or not torch.cuda.is_available():
        return False
    number, there = int(os.environ.get("LOCAL_RANK", "0")), torch.cuda.device_count()
    if number >= there:
        asked = os.environ.get("LOCAL_WORLD_SIZE", "more")
        raise ValueError(
            f"torchrun started {asked} processes here, and there are {there} GPUs: --nproc-per-node {there}"
        )
    torch.cuda.set_device(number)
    return True
