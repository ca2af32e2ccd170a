"""A run whose model is cut up among its processes: PyTorch's FSDP2 for the trainer."""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lm.blocks import Block
from lm.model import LanguageModel
from pipelines.training.loader import Batch
from pipelines.training.parallel import Kind, Replicas


class Shards(Replicas):
    """Weights, gradients and optimizer state cut by rows among the processes (Zhao et al. 2023).

    Float32 masters are sharded. A block's weights are gathered in the dtype of its activations for as long as the block
    computes, forward and again backward; what is outside of blocks, from forward to backward, in float32. Gradients are
    added up in float32 after every micro-batch, since to keep them whole until the last would cost the memory that this
    is for.
    """

    kind: Kind = "fsdp"

    def __init__(self, device: str) -> None:
        """`device`: the type of those that the processes compute on. A model may come to `wrap` on the CPU."""
        super().__init__()
        self.device = device

    def wrap(self, model: LanguageModel, compiled: bool) -> Callable[..., Tensor]:
        mesh = init_device_mesh(self.device, (self.world_size,))
        policy = MixedPrecisionPolicy(
            param_dtype=None if model.compute_dtype == torch.float32 else model.compute_dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        for block in [module for module in model.modules() if isinstance(module, Block)]:
            if compiled:
                block.compile()  # inside of what gathers its weights, which Dynamo does not trace
            for module in _called_from_outside(block):
                fully_shard(module, mesh=mesh, mp_policy=policy)
            fully_shard(block, mesh=mesh, mp_policy=policy)
        fully_shard(model, mesh=mesh)
        return model

    def _micro_batches(self, batch: Batch, size: int) -> Iterable[Batch]:
        return batch.split(size)

    def clip(self, parameters: Sequence[Tensor], limit: float) -> Tensor:
        norm = self.whole(get_total_norm([parameter.grad for parameter in parameters if parameter.grad is not None]))
        clip_grads_with_norm_(parameters, limit, norm)
        return norm

    def spread(self, function: Callable[[Tensor], Tensor], matrices: Tensor, rows: int) -> Tensor:
        number, own, columns = matrices.shape
        count, height = -(-number // self.world_size), -(-rows // self.world_size)
        parts = matrices.new_zeros(self.world_size * count, height, columns)
        parts[:number, :own] = matrices
        # Rows of zeros, with which the last processes fill theirs up, are at the end of a matrix and stay zeros.
        gathered = self._exchanged(parts).unflatten(0, (self.world_size, count))
        done = function(gathered.transpose(0, 1).flatten(1, 2))
        back = done.unflatten(1, (self.world_size, height)).transpose(0, 1).flatten(0, 1)
        return self._exchanged(back)[:number, :own]

    def place(self, value: Tensor, like: Tensor) -> Tensor:
        if not isinstance(like, DTensor) or value.shape != like.shape:
            return super().place(value, like)
        there = value if self.is_main else torch.empty_like(value, device="cpu")
        return distribute_tensor(there.to(like.device), like.device_mesh, like.placements)

    def whole(self, tensor: Tensor) -> Tensor:
        return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor

    def own(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def release(self, model: LanguageModel) -> None:
        model.reshard()

    @staticmethod
    def _exchanged(parts: Tensor) -> Tensor:
        """The n-th of as many equal parts as there are processes goes to the n-th process."""
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts)
        return received


def _called_from_outside(block: Block) -> list[torch.nn.Module]:
    """The modules with weights that `Attention.keys_values` calls on an encoder's output, before the block runs."""
    cross = block.cross_attention
    modules = [] if cross is None else [cross.key, cross.value, cross.key_norm]
    return [module for module in modules if any(True for _ in module.parameters())]
