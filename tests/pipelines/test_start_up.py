"""Verbs import only what they need."""

import subprocess
import sys

CODE = """
import sys
from pipelines.cli.dispatch import main

status = main(sys.argv[1:])
print("imported", *(name for name in ("torch._dynamo", "sympy", "pandas", "matplotlib") if name in sys.modules))
raise SystemExit(status)
"""


def imported(*arguments):
    words = [sys.executable, "-c", CODE, *map(str, arguments)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()[-1].split()[1:]


def test_training_does_not_import_torch_compile_or_pandas(tmp_path, dataset_folder):
    shape = ("--model.layers", 1, "--model.width", 32, "--model.heads", 2, "--model.context-length", 32)
    length = ("--train.tokens", 2048, "--train.batch-tokens", 512)
    for optimizer in ("adamw", "muon"):
        out = ("--out", tmp_path / optimizer, "--train.optimizer", optimizer)
        assert imported("pretrain", "gpt-tiny", "--data", dataset_folder, *out, *shape, *length) == []
    assert imported("evaluate", tmp_path / "adamw") == []
    assert imported("generate", tmp_path / "adamw", "--prompt", "import", "--tokens", 3) == []
