"""The size of micro-batches: as large as fits a GPU's memory."""

from collections.abc import Callable

import torch

from lm.task_model import TrainedModel
from pipelines.cli.display import say
from pipelines.recipes.config import TrainConfig
from pipelines.training.batch import Batch
from pipelines.training.batch_loss import LossFunction
from pipelines.training.data import BlockData, TrainingData
from pipelines.training.parallel import OneProcess

DEFAULT_ROWS = 16
MOST_POSITIONS = 65_536  # larger micro-batches are no faster
# Numbers in float32 per parameter beside weights and gradients: two moments of the optimizer, and a temporary.
OPTIMIZER_NUMBERS = 3


def micro_batch_rows(
    loss: LossFunction,
    model: TrainedModel,
    data: TrainingData,
    config: TrainConfig,
    parallel: OneProcess,
    one_shape: bool,
) -> int:
    """Return the rows of the recipe's micro-batch, or of the largest that fits a GPU; `loss` calls the unwrapped model.

    If all batches have `one_shape`, its micro-batches are made as even as their number allows.
    """
    rows = config.micro_batch or DEFAULT_ROWS
    if not config.micro_batch and next(model.parameters()).device.type == "cuda" and isinstance(data, BlockData):
        batch = data.step(0, config.tokens)  # as large as batches and sequences become
        # The smallest over all ranks, because ranks share out validation by it.
        rows = -parallel.max(-largest_micro_batch(loss, batch, model))
        say(f"micro-batches of {rows:,} {data.unit}, as large as is faster and fits the memory")
    if not one_shape:
        return rows
    rank_rows = even(data.size(0, 0)[0], parallel.world_size)
    return even(rank_rows, -(-rank_rows // rows))


def leave_a_tenth(device: torch.device) -> None:
    """Raise torch.OutOfMemoryError if the peak of a GPU since the last reset leaves less than a tenth of its memory.

    Libraries need room for workspaces, and fragmented memory cannot all be used.
    """
    if device.type == "cuda":
        peak, now = torch.cuda.max_memory_allocated(device), torch.cuda.memory_allocated(device)
        torch.cuda.empty_cache()
        torch.empty(peak + peak // 9 - now, dtype=torch.uint8, device=device)


def largest_micro_batch(
    loss: LossFunction,
    batch: Batch,
    model: torch.nn.Module,
    leave_room: Callable[[torch.device], None] = leave_a_tenth,
) -> int:
    """Return the rows of the largest micro-batch that fits the memory of the model's device.

    `batch` is cut into the fewest even parts that fit, forward and backward, together with the optimizer. `leave_room`
    raises torch.OutOfMemoryError if too little memory is left. A part has at most MOST_POSITIONS positions. A single
    row is not tried: if it does not fit, training fails with a clear error.
    """
    rows = len(batch.inputs)
    positions = sum(part.size for part in (batch.inputs, batch.source) if part is not None)

    def fits(parts: int) -> bool:
        size = even(rows, parts)
        return size == 1 or _fits(loss, next(iter(batch.split(size))), model, leave_room)

    parts = min(rows, -(-rows // max(1, MOST_POSITIONS * rows // positions)))
    too_few = parts - 1
    while not fits(parts):
        too_few, parts = parts, 2 * parts
    while parts - too_few > 1:
        middle = (too_few + parts) // 2
        too_few, parts = (too_few, middle) if fits(middle) else (middle, parts)
    return even(rows, parts)


def even(rows: int, parts: int) -> int:
    """Return the rows of each of `parts` even parts; the last may have fewer."""
    return -(-rows // parts)


def _fits(loss: LossFunction, batch: Batch, model: torch.nn.Module, leave_room: Callable[[torch.device], None]) -> bool:
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    device = parameters[0].device
    try:
        if device.type == "cuda":
            torch.cuda.reset_peak_memory_stats(device)
        reserved = [torch.empty_like(parameter) for parameter in parameters for _ in range(OPTIMIZER_NUMBERS)]
        torch.autograd.backward(loss(batch))
        del reserved
        leave_room(device)
    except torch.OutOfMemoryError:
        return False
    finally:
        for parameter in parameters:
            parameter.grad = None
        if device.type == "cuda":
            torch.cuda.empty_cache()
    return True
