"""Masks of held-out text filled at once and in several steps: the share of right tokens, and how well they fit.

`python -m benchmarks.mask_filling RUN` masks a share of the tokens in blocks of the validation split of an encoder's
dataset, fills them with mask-predict in 1 to 8 steps, and compares the tokens with the text. The tokens fit if the same
model finds them likely: the second number is the perplexity of the filled tokens, each masked alone in the filled
text (a pseudo-perplexity, which the true text has too).
"""

import argparse
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from benchmarks.harness import command_line, heading, table
from lm.decoding.generation import fill_masks
from lm.decoding.packed import InferenceModel, prepare
from lm.metrics.intervals import interval, resampled_sums
from pipelines.dataset.reader import TokenDataset
from pipelines.run.folder import Run
from pipelines.run.loaded_run import LoadedRun, load_run
from pipelines.run.text_ids import known_ids
from tokenizer import CLS, MASK, SEP

SHARES, STEPS = (0.15, 0.3, 0.5), (1, 2, 4, 8)
ROWS = 64


def pseudo_nats(model: InferenceModel, ids: torch.Tensor, places: torch.Tensor, mask: int) -> float:
    """Return the summed nats of the tokens of ids (T,) at `places` (N,), each masked alone."""
    total = 0.0
    for some in places.split(ROWS):
        rows = ids.repeat(len(some), 1)
        rows[torch.arange(len(some)), some] = mask
        hidden = model.model(rows, rows=torch.arange(len(some)) * len(ids) + some)
        p = torch.log_softmax(model.logits(hidden).double(), dim=-1)
        total -= float(p[torch.arange(len(some)), ids[some]].sum())
    return total


@torch.inference_mode()
def measure(run: LoadedRun, blocks: np.ndarray, share: float, steps: Sequence[int]) -> list[tuple[str, ...]]:
    """Return a row for each number of steps, and one for the text itself. Blocks (B, T) are ids of held-out text."""
    special, model, allowed = run.around.special, prepare(run.model), known_ids(run.tokenizer, run.model)
    mask, generator = special[MASK], np.random.default_rng(0)
    right = np.zeros((len(blocks), len(steps)))
    nats = np.zeros((len(blocks), len(steps) + 1))
    masks = np.zeros(len(blocks))
    for row, block in enumerate(blocks):
        text = torch.tensor([special[CLS], *block.tolist(), special[SEP]])
        ordinary = 1 + np.flatnonzero(~np.isin(block, sorted(special.values())))
        count = max(1, round(share * len(ordinary)))
        places = torch.from_numpy(np.sort(generator.choice(ordinary, count, replace=False)))
        masked = text.clone()
        masked[places] = mask
        masks[row], nats[row, -1] = count, pseudo_nats(model, text, places, mask)
        for column, number in enumerate(steps):
            filled = fill_masks(run.model, masked, mask, top=1, allowed=allowed, steps=number)
            ids = masked.clone()
            ids[places] = torch.tensor([one.ids[0] for one in filled])
            right[row, column] = int((ids[places] == text[places]).sum())
            nats[row, column] = pseudo_nats(model, ids, places, mask)
    fits = [f"{math.exp(value):.2f}" for value in nats.sum(0) / masks.sum()]
    gained = resampled_sums(np.column_stack([right - right[:, :1], masks]))
    rows = []
    for column, number in enumerate(steps):
        low, high = interval(100 * gained[:, column] / gained[:, -1])
        beside = f"{low:+.1f} to {high:+.1f}" if column else ""
        shown = f"{100 * right[:, column].sum() / masks.sum():.1f} %"
        rows.append((f"{share:.0%}", str(number), shown, beside, fits[column]))
    return [*rows, (f"{share:.0%}", "the text", "", "", fits[-1])]


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of an encoder")
    parser.add_argument("--blocks", type=int, default=200, help="blocks of the validation split")
    parser.add_argument("--out", type=Path, help="file for the table")
    options = parser.parse_args()
    run = load_run(options.run, device="cpu")
    dataset = TokenDataset(Run(options.run).data)
    stream, length = dataset.split("validation"), dataset.context_length
    chosen = np.random.default_rng(0).permutation(stream.blocks)[: options.blocks]
    blocks = stream.gather(np.sort(chosen) * length, length)
    rows = []
    for share in SHARES:
        rows += measure(run, blocks, share, STEPS)
        for row in rows[-len(STEPS) - 1 :]:
            print(*row, sep=" | ", flush=True)
    if options.out:
        facts = f"{len(blocks)} blocks of {length} tokens; 95 % intervals from the bootstrap over blocks."
        command = command_line("benchmarks.mask_filling", [options.run.name, "--blocks", str(options.blocks)])
        columns = ("masked", "steps", "right", "difference from one step (points)", "perplexity of the filled tokens")
        lines = [*heading("Filling masks in steps", command, facts), *table(columns, rows), ""]
        options.out.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
