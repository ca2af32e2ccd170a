"""Delete parts of a run's model while it is scored."""

from collections.abc import Iterator, Sequence

import numpy as np
from torch import Tensor

from lm.introspection.deletion import Means, check_parts, mean_activations
from lm.model import LanguageModel
from pipelines.cli.waiting import doing
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.planning import Plan, objective_of
from pipelines.evaluation.windows import windows_per_batch
from pipelines.training.batch import model_inputs
from pipelines.training.batch_loss import to_device
from pipelines.training.batch_objectives import MaskedToken, NextToken

MEAN_TOKENS = 32_768
SEED = 0


def part_means(model: LanguageModel, parts: Sequence[str], plan: Plan, zero: bool) -> Means | None:
    """Return what `deletions` of `parts` needs: means over about MEAN_TOKENS tokens of the training split of a plan.

    None if `zero`. An encoder reads masked blocks, as in training. Raises ValueError for a part that the model lacks,
    for means without training data, and for an encoder-decoder.
    """
    check_parts(model, parts)
    if zero:
        return None
    if plan.training is None:
        raise ValueError("the training data of the run are missing, and means need them: give `ablation='zero'`")
    stream, objective = plan.training.split("train"), objective_of(plan.run, plan.windows.window, plan.run.tokenizer())
    assert isinstance(stream, TokenStream) and isinstance(objective, NextToken | MaskedToken), "checked by check_parts"
    doing("computing the means of the deleted parts")
    return mean_activations(model, _windows(model, stream, objective), parts)


def _windows(
    model: LanguageModel, stream: TokenStream, objective: NextToken | MaskedToken
) -> Iterator[dict[str, Tensor]]:
    """Yield the inputs of batches of random windows of a stream, without repetition."""
    length = objective.length
    windows = max(1, stream.tokens // length)
    count = min(windows, max(1, MEAN_TOKENS // length))
    numbers = np.sort(np.random.default_rng(SEED).choice(windows, count, replace=False))
    together = windows_per_batch(length)
    for first in range(0, count, together):
        chosen = numbers[first : first + together]
        draws = np.stack((0 * chosen + SEED, 0 * chosen, chosen), axis=1)  # of the masks
        batch = objective.batch(stream, length * chosen, draws)
        yield to_device(model_inputs(batch), model.embedding.weight.device)
