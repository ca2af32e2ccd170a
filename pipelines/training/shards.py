"""FSDP: the strategy that shards a model among its processes, with PyTorch's FSDP2."""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lm.blocks import Block
from lm.model import LanguageModel
from pipelines.training.batch import Batch
from pipelines.training.parallel import Kind, Replicas


class Shards(Replicas):
    """FSDP: weights, gradients and optimizer state are sharded by rows (Zhao et al. 2023).

    Master weights are float32. A block's weights are gathered in the dtype of its activations while it computes,
    forward and backward. Weights outside of blocks are gathered in float32 from forward to backward. Gradients are
    summed in float32 after every micro-batch: whole gradients would take the memory that sharding saves.
    """

    kind: Kind = "fsdp"

    def __init__(self, device: str) -> None:
        """`device`: type of the device that processes compute on. `wrap` accepts a model on the CPU."""
        super().__init__()
        self.device = device
        # Checkpoints are written in the background, where a group of their own keeps messages apart.
        self.checkpoint_group = dist.new_group(backend="gloo")

    def wrap(self, model: LanguageModel, compiled: bool) -> Callable[..., Tensor]:
        mesh = init_device_mesh(self.device, (self.world_size,))
        policy = MixedPrecisionPolicy(
            param_dtype=None if model.compute_dtype == torch.float32 else model.compute_dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        for block in [module for module in model.modules() if isinstance(module, Block)]:
            if compiled:
                block.compile()  # inside the gathering of its weights, which Dynamo does not trace
            for module in _called_from_outside(block):
                fully_shard(module, mesh=mesh, mp_policy=policy)
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh)
        return model

    def clip(self, parameters: Sequence[Tensor], limit: float) -> Tensor:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = get_total_norm(gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        clip_grads_with_norm_(parameters, limit, norm)
        return norm

    def spread(self, function: Callable[[Tensor], Tensor], matrices: Tensor, rows: int) -> Tensor:
        number, local_rows, columns = matrices.shape
        count, height = -(-number // self.world_size), -(-rows // self.world_size)
        parts = matrices.new_zeros(self.world_size * count, height, columns)
        parts[:number, :local_rows] = matrices
        # The last ranks pad with rows of zeros. These are at the end of a whole matrix, and stay zeros.
        gathered = _exchanged(parts).view(self.world_size, count, height, columns)
        results = function(gathered.transpose(0, 1).flatten(1, 2))
        back = results.reshape(count, self.world_size, height, columns).transpose(0, 1).flatten(0, 1)
        return _exchanged(back)[:number, :local_rows]

    def distribute(self, value: Tensor, like: Tensor) -> Tensor:
        if isinstance(value, DTensor):
            return value
        if not isinstance(like, DTensor) or value.shape != like.shape:
            return super().distribute(value, like)
        source = value if self.is_main else torch.empty_like(value, device="cpu")
        return distribute_tensor(source.to(like.device), like.device_mesh, like.placements)

    def to_local(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def reshard(self, model: LanguageModel) -> None:
        assert isinstance(model, FSDPModule)
        model.reshard()

    def _micro_batches(self, batch: Batch, rows: int) -> Iterable[Batch]:
        return batch.split(rows)


def _exchanged(parts: Tensor) -> Tensor:
    """Send the n-th of `world_size` equal parts to rank n; return the parts received."""
    parts = parts.contiguous()
    received = torch.empty_like(parts)
    dist.all_to_all_single(received, parts)
    return received


def _called_from_outside(block: Block) -> list[torch.nn.Module]:
    """Return the modules with weights that `Attention.keys_values` calls before the block runs."""
    cross = block.cross_attention
    modules = [] if cross is None else [cross.key, cross.value, cross.key_norm]
    return [module for module in modules if any(True for _ in module.parameters())]
