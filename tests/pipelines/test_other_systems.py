"""The main verbs run without the parts of Python that only Unix has."""

import os
import shutil
import subprocess
import sys

from pipelines.run.retention import checkpoint_folders
from tests.conftest import REPOSITORY

# Python imports it in every process, children included.
WITHOUT_UNIX = """
import multiprocessing, os, sys
for name in ("fcntl", "grp", "pwd", "resource", "termios"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "O_DIRECTORY", "sched_getaffinity", "sysconf"):
    if hasattr(os, name):
        delattr(os, name)
multiprocessing.set_start_method("spawn")
"""
VERBS = """
import sys, warnings
warnings.simplefilter("ignore")
from pipelines.cli.dispatch import main
assert sys.modules["fcntl"] is None
train = "--train.batch-tokens 256 --train.micro-batch 4 --train.warmup-tokens 256 --train.threads 1 --train.device cpu"
train += " --train.dtype float32 --model.context-length 32 --model.layers 1 --model.width 32"
train += " --train.checkpoint-every-tokens 256"
for command in (
    "train-tokenizer texts --vocab-size 300 --memory 2G --out tok",
    "build-dataset texts --tokenizer tok --context-length 32 --out data",
    f"pretrain gpt-tiny --data data --out run --train.tokens 512 {train}",
    "pretrain --out run --train.tokens 1024",
    "evaluate run --device cpu",
    "generate run --prompt the --tokens 4 --device cpu",
    "runs .",
):
    assert main(command.split()) == 0, command
"""


def test_the_main_verbs_run_without_what_only_unix_has(tmp_path, text_folder):
    (tmp_path / "site").mkdir()
    (tmp_path / "site" / "sitecustomize.py").write_text(WITHOUT_UNIX, encoding="utf-8")
    shutil.copytree(text_folder, tmp_path / "texts")
    path = os.pathsep.join([str(tmp_path / "site"), str(REPOSITORY)])
    done = subprocess.run(
        [sys.executable, "-c", VERBS],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        encoding="utf-8",
    )
    assert done.returncode == 0, done.stderr
    assert len(checkpoint_folders(tmp_path / "run")) >= 1
    assert (tmp_path / "run" / "evaluation.json").exists()
    assert "finished" in done.stdout
    assert not list(tmp_path.glob("*.lock"))
