"""Training: train and evaluate two small models on the built-in corpus in minutes.

Examples:
    bytelm demo
    bytelm demo --out my-demo --minutes 0.5
"""

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb
from pipelines.verbs.train import check_length, train

if TYPE_CHECKING:
    from pipelines.evaluation.results import Evaluation

ENVIRONMENT = PASSIVE_THREADS

MINUTES = 1.4
CORPUS = "stdlib"


@verb
def demo(
    out: Path = Path("bytelm-demo"), *, minutes: float | None = None, fresh: bool = False
) -> "dict[str, Evaluation]":
    """Run `bytelm train` on Python's standard library, with a small GPT and a small BERT.

    The same command reuses finished steps in the folder and resumes an interrupted step.

    Args:
        out: Folder for all files.
        minutes: Training time of each model; by default 1.4, or that of an earlier demo in the folder if it is longer.
        fresh: Delete an earlier demo in the folder first.
    """
    from pipelines.first_model.record import Record  # --help does not need it

    if minutes is not None:
        check_length("`minutes`", minutes)
    if fresh and out.exists():
        text = Record.read(out).text
        if text is None or text.corpus != (CORPUS,):
            raise ValueError(f"{out} is not a folder of this demo: remove it yourself, or choose another `out`")
        shutil.rmtree(out)
    minutes = minutes or max([MINUTES, *(before.minutes or 0.0 for before in Record.read(out).models.values())])
    return train([CORPUS], out=out, kind=("gpt", "bert"), minutes=minutes)
