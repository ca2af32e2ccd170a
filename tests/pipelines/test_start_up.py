"""Verbs import only what they need."""

import json
import subprocess
import sys

CODE = """
import json, sys
from pipelines.cli.dispatch import main

for command in json.loads(sys.argv[1]):
    status = main(command)
    if status:
        raise SystemExit(status)
    found = [name for name in ("torch._dynamo", "sympy", "pandas", "matplotlib") if name in sys.modules]
    print("imported after", command[0], found)
"""


def imported(*commands):
    """Run commands in one process; return a line for each with the large libraries imported so far."""
    words = [sys.executable, "-c", CODE, json.dumps([[*map(str, command)] for command in commands])]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return [line for line in done.stdout.splitlines() if line.startswith("imported after")]


def test_training_does_not_import_torch_compile_or_pandas(tmp_path, dataset_folder):
    shape = ("--model.layers", 1, "--model.width", 32, "--model.heads", 2, "--model.context-length", 32)
    length = ("--train.tokens", 2048, "--train.batch-tokens", 512)
    pretrain = ("pretrain", "gpt-tiny", "--data", dataset_folder, *shape, *length)
    found = imported(
        *((*pretrain, "--out", tmp_path / name, "--train.optimizer", name) for name in ("adamw", "muon")),
        ("evaluate", tmp_path / "adamw"),
        ("generate", tmp_path / "adamw", "--prompt", "import", "--tokens", 3),
    )
    assert found == [f"imported after {verb} []" for verb in ("pretrain", "pretrain", "evaluate", "generate")]
