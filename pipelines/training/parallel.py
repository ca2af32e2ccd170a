"""Strategies that compute and apply the gradient of a batch: one process, and replicas in several processes.

A strategy takes the loss as a function. Each rank reads its rows of every batch and computes their part of the loss;
the gradients are summed over ranks. Only rank 0 touches the run's folder. Small values (weights of batches, losses,
signals) are exchanged through gloo on the CPU, which does not wait for a GPU. `threads` and `shards` hold the other
strategies, and `launch` starts several processes.
"""

import inspect
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

from lm.optim.optimizer_settings import OptimizerKind
from lm.optim.optimizers import Optimizers
from lm.task_model import TrainedModel
from pipelines.training.batch import Batch, Shard
from pipelines.training.batch_loss import LossFunction

# Both were renamed in torch 2.13.
all_gather_single = getattr(dist, "all_gather_single", None) or dist.all_gather_into_tensor
_ddp_options = inspect.signature(DistributedDataParallel.__init__).parameters
SYNC_BUFFERS = "forward_sync_buffers" if "forward_sync_buffers" in _ddp_options else "broadcast_buffers"
Kind = Literal["none", "ddp", "fsdp", "hsdp"]
Files = Mapping[str, Mapping[str, Tensor]]
Json = TypeVar("Json")


class OneProcess:
    """Training in one process, and the interface of all strategies. Collective operations return their input."""

    kind: Kind = "none"
    rank, world_size = 0, 1
    device = ""
    """Device type of all ranks; empty if the machine decides."""
    checkpoint_group: dist.ProcessGroup | None = None
    """The ranks that write checkpoints together, each its own rows; None if rank 0 writes whole tensors."""

    @property
    def is_sharded(self) -> bool:
        """Whether each rank has only its own rows of the weights, and writes them to checkpoints itself."""
        return self.checkpoint_group is not None

    @property
    def is_main(self) -> bool:
        """Whether this is rank 0, which prints, and reads and writes the run's folder."""
        return self.rank == 0

    @property
    def workers(self) -> str:
        """The threads or processes that share the work, as text; empty for one."""
        return ""

    @property
    def shard(self) -> Shard:
        """The rows of a batch that this rank reads."""
        return Shard(self.rank, self.world_size)

    def wrap(self, model: TrainedModel, compiled: bool) -> Callable[..., Tensor]:
        """Return the function that computes hidden states, with torch.compile if `compiled`.

        Call it before the optimizer is built: it may replace the model's parameters.
        """
        forward: Callable[..., Tensor] = torch.compile(model) if compiled else model
        return forward

    def gradient(self, loss: LossFunction, batch: Batch, rows: int, weight: float, scale: Tensor | float) -> Tensor:
        """Store the gradient of the batch's mean loss, times `scale`, in the parameters.

        The batch goes through the model in micro-batches of at most `rows` rows. `weight` is the sum of the weights
        over all ranks. Returns this rank's part of the mean loss in nats, unscaled, without gradient.
        """
        total = torch.zeros(())
        for micro in self._micro_batches(batch, rows):
            part = loss(micro) / weight
            # DDP and FSDP take the mean over ranks; the gradient needs the sum.
            torch.autograd.backward(part * (scale * self.world_size))
            total = total + part.detach()
        return total

    @torch.no_grad()
    def measure(self, loss: LossFunction, batch: Batch) -> float:
        """Return this rank's part of the summed loss of a batch in nats, without a gradient."""
        return float(loss(batch))

    def clip(self, parameters: Sequence[Tensor], limit: float) -> Tensor:
        """Scale the gradient of all parameters to an L2 norm of at most `limit`; return its norm before, a scalar."""
        return clip_grad_norm_(parameters, limit)

    def optimizer_shares(self, kind: OptimizerKind) -> int:
        """Return the number of shares of the optimizers that `update` steps at the same time."""
        return 1

    def update(self, optimizers: Optimizers) -> None:
        """Update every parameter that has a gradient."""
        optimizers.step()

    def spread(self, function: Callable[[Tensor], Tensor], matrices: Tensor, rows: int) -> Tensor:
        """Return `function` of whole matrices with `rows` rows, of which each rank computes some.

        Input and output (N, this rank's rows, columns) are this rank's rows.
        """
        return function(matrices)

    def sum(self, value: float) -> float:
        """Return the sum over all ranks, in float64."""
        return value

    def max(self, value: int) -> int:
        """Return the maximum over all ranks."""
        return value

    def broadcast(self, value: Json) -> Json:
        """Return the value of rank 0, which must be JSON."""
        return value

    def broadcast_shapes(self, files: Files) -> Files:
        """Return rank 0's tensors; on other ranks tensors of their shapes and dtypes on the meta device."""
        return files

    def distribute(self, value: Tensor, like: Tensor) -> Tensor:
        """Return rank 0's `value` on the device of `like`, and sharded like it if both have one shape.

        A value that is sharded already is returned unchanged.
        """
        return value.to(like.device)

    def to_local(self, tensor: Tensor) -> Tensor:
        """Return this rank's part of a tensor that may be sharded."""
        return tensor

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        """Return the tensors of all ranks, by rank: small tensors of one shape on the CPU."""
        return [tensor]

    def reshard(self, model: TrainedModel) -> None:
        """Free weights that were gathered for forward passes without a backward pass."""

    def _micro_batches(self, batch: Batch, rows: int) -> Iterable[Batch]:
        """Yield at most `rows` rows at a time; a backward pass follows each."""
        return batch.split(rows)


ONE_PROCESS = OneProcess()


class Replicas(OneProcess):
    """DDP: a whole model on each rank; gradients are summed during the backward pass (Li et al. 2020)."""

    kind: Kind = "ddp"

    def __init__(self) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()

    @property
    def workers(self) -> str:
        return f"{self.world_size} processes ({self.kind})"

    def wrap(self, model: TrainedModel, compiled: bool) -> Callable[..., Tensor]:
        # Buffers are tables of positions, equal on all ranks.
        options: dict[str, Any] = {SYNC_BUFFERS: False, "gradient_as_bucket_view": True}
        self._wrapped = DistributedDataParallel(model, **options)
        forward: Callable[..., Tensor] = torch.compile(self._wrapped) if compiled else self._wrapped
        return forward

    def spread(self, function: Callable[[Tensor], Tensor], matrices: Tensor, rows: int) -> Tensor:
        count = -(-len(matrices) // self.world_size)
        local = matrices[self.rank * count : (self.rank + 1) * count]
        padded = matrices.new_zeros(count, *matrices.shape[1:])
        padded[: len(local)] = local
        results = function(padded).contiguous()
        gathered = results.new_empty(self.world_size * count, *results.shape[1:])
        all_gather_single(gathered, results)
        return gathered[: len(matrices)]

    def sum(self, value: float) -> float:
        return float(_all_reduced(torch.tensor(value, dtype=torch.float64), dist.ReduceOp.SUM))

    def max(self, value: int) -> int:
        return int(_all_reduced(torch.tensor(value), dist.ReduceOp.MAX))

    def broadcast(self, value: Json) -> Json:
        text = bytearray(json.dumps(value).encode() if self.is_main else b"")
        message = torch.zeros(self.max(len(text)), dtype=torch.uint8)
        if self.is_main:
            message[:] = torch.frombuffer(text, dtype=torch.uint8)
        dist.broadcast(message, src=0)
        received: Json = json.loads(message.numpy().tobytes())
        return received

    def broadcast_shapes(self, files: Files) -> Files:
        shapes = {
            name: {key: (str(value.dtype).removeprefix("torch."), list(value.shape)) for key, value in tensors.items()}
            for name, tensors in files.items()
        }
        received = self.broadcast(shapes)
        if self.is_main:
            return files
        return {
            name: {
                key: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
                for key, (dtype, shape) in tensors.items()
            }
            for name, tensors in received.items()
        }

    def distribute(self, value: Tensor, like: Tensor) -> Tensor:
        received = value if self.is_main else torch.empty_like(value, device="cpu")
        dist.broadcast(received, src=0)
        return received.to(like.device)

    def all_gather(self, tensor: Tensor) -> list[Tensor]:
        parts = [torch.empty_like(tensor) for _ in range(self.world_size)]
        dist.all_gather(parts, tensor)
        return parts

    def _micro_batches(self, batch: Batch, rows: int) -> Iterable[Batch]:
        *before, last = batch.split(rows)
        for micro in before:
            with self._wrapped.no_sync():
                yield micro
        yield last


def _all_reduced(value: Tensor, operation: dist.ReduceOp.RedOpType) -> float:
    dist.all_reduce(value, operation)
    return value.item()
