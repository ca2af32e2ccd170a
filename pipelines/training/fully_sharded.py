"""FSDP and HSDP: the strategies that shard a model among its processes, with PyTorch's FSDP2."""

from collections.abc import Callable, Iterable, Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.nn.utils import clip_grads_with_norm_, get_total_norm

from lm.blocks import Block
from lm.task_model import TrainedModel
from pipelines.training.batch import Batch
from pipelines.training.parallel import Kind, Replicas


class FullySharded(Replicas):
    """FSDP: weights, gradients and optimizer state are sharded by rows (Zhao et al. 2023).

    HSDP shards them within each node and replicates them across nodes: only sums of gradients leave a node.

    Master weights are float32. A block's weights are gathered in the dtype of its activations while it computes,
    forward and backward. Weights outside of blocks, and weights that blocks share, are gathered in float32 from forward
    to backward. Gradients are summed in float32: within a node after every micro-batch, because whole gradients would
    take the memory that sharding saves, unless the recipe asks for them; across nodes once a step.
    """

    def __init__(self, device: str, per_node: int, whole_gradients: bool) -> None:
        """`device`: type of the device that processes compute on. `wrap` accepts a model on the CPU.

        Each `per_node` consecutive ranks hold a whole model. `whole_gradients`: see TrainConfig.
        """
        super().__init__()
        self.device, self.whole_gradients = device, whole_gradients
        self.parts, replicas = per_node, self.world_size // per_node
        self.kind: Kind = "fsdp" if replicas == 1 else "hsdp"
        shape, names = ((replicas, per_node), ("replicas", "parts")) if replicas > 1 else ((per_node,), ("parts",))
        self._mesh = init_device_mesh(device, shape, mesh_dim_names=names)
        # Checkpoints are written in the background, where a group of their own keeps messages apart.
        self.checkpoint_group = dist.new_group(backend="gloo")

    def wrap(self, model: TrainedModel, compiled: bool) -> Callable[..., Tensor]:
        mesh = self._mesh
        policy = MixedPrecisionPolicy(
            param_dtype=None if model.compute_dtype == torch.float32 else model.compute_dtype,
            reduce_dtype=torch.float32,
            cast_forward_inputs=False,
        )
        for block in [module for module in model.modules() if isinstance(module, Block)]:
            if compiled:
                block.compile()  # inside the gathering of its weights, which Dynamo does not trace
            if model.config.layer_groups:  # FSDP cannot gather one weight for several blocks
                continue
            for module in _called_from_outside(block):
                fully_shard(module, mesh=mesh, mp_policy=policy)
            fully_shard(block, mesh=mesh, mp_policy=policy)
        self._sharded = fully_shard(model, mesh=mesh)
        return model

    def clip(self, parameters: Sequence[Tensor], limit: float) -> Tensor:
        gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
        norm = get_total_norm(gradients)
        norm = norm.full_tensor() if isinstance(norm, DTensor) else norm
        clip_grads_with_norm_(parameters, limit, norm)
        return norm

    def spread(self, function: Callable[[Tensor], Tensor], matrices: Tensor, rows: int) -> Tensor:
        number, local_rows, columns = matrices.shape
        count, height = -(-number // self.parts), -(-rows // self.parts)
        parts = matrices.new_zeros(self.parts * count, height, columns)
        parts[:number, :local_rows] = matrices
        # The last ranks pad with rows of zeros. These are at the end of a whole matrix, and stay zeros.
        gathered = self._exchange(parts).view(self.parts, count, height, columns)
        results = function(gathered.transpose(0, 1).flatten(1, 2))
        back = results.reshape(count, self.parts, height, columns).transpose(0, 1).flatten(0, 1)
        return self._exchange(back)[:number, :local_rows]

    def distribute(self, value: Tensor, like: Tensor) -> Tensor:
        if isinstance(value, DTensor):
            return value
        if not isinstance(like, DTensor) or value.shape != like.shape:
            return super().distribute(value, like)
        source = value if self.is_main else torch.empty_like(value, device="cpu")
        return distribute_tensor(source.to(like.device), like.device_mesh, like.placements)

    def to_local(self, tensor: Tensor) -> Tensor:
        return tensor.to_local() if isinstance(tensor, DTensor) else tensor

    def reshard(self, model: TrainedModel) -> None:
        assert isinstance(model, FSDPModule)
        model.reshard()

    def _micro_batches(self, batch: Batch, rows: int) -> Iterable[Batch]:
        micros = list(batch.split(rows))
        for number, micro in enumerate(micros, 1):
            last = number == len(micros)
            self._sharded.set_requires_gradient_sync(last or not self.whole_gradients)
            self._sharded.set_requires_all_reduce(last)  # across nodes
            yield micro

    def _exchange(self, parts: Tensor) -> Tensor:
        """Send the n-th of equal parts to the n-th rank of this rank's model; return the parts received."""
        parts = parts.contiguous()
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts, group=self._mesh.get_group("parts"))
        return received


def _called_from_outside(block: Block) -> list[torch.nn.Module]:
    """Return the modules with weights that `Attention.keys_values` calls before the block runs."""
    cross = block.cross_attention
    modules = [] if cross is None else [cross.key, cross.value, cross.key_norm]
    return [module for module in modules if any(True for _ in module.parameters())]
