"""Training: train and evaluate two small models on the built-in corpus in minutes.

Examples:
    bytelm demo
    bytelm demo --out my-demo --seconds 60
"""

import shutil
from pathlib import Path
from typing import Any

from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb

ENVIRONMENT = PASSIVE_THREADS

SECONDS = 160


@verb
def demo(out: Path = Path("bytelm-demo"), *, seconds: float = SECONDS, fresh: bool = False) -> dict[str, Any]:
    """Train a tokenizer, a small GPT and a small BERT on Python's standard library, evaluate them, write report.html.

    Finished steps of an earlier demo in the folder are reused, and an interrupted step is resumed.

    Args:
        out: Folder for all files.
        seconds: Approximate training time of both models together.
        fresh: Delete an earlier demo in the folder first.
    """
    if fresh and out.exists():
        if not (out / "tokenizer").exists():
            raise ValueError(f"{out} is not a folder of this demo: remove it yourself, or choose another `out`")
        shutil.rmtree(out)
    from pipelines.reporting.demo_steps import run_demo

    return run_demo(out, seconds)
