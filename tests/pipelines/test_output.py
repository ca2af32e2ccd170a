"""What is printed, when, and what happens where it cannot be."""

import json
import os
import subprocess

import pytest

from pipelines.display import show
from tests.conftest import BYTELM
from tests.pipelines.test_cli import assert_refused

PRETRAIN = (
    "pretrain", "gpt-tiny", "--model.layers", "1", "--model.width", "32", "--model.heads", "2",
    "--model.context-length", "32", "--train.batch-tokens", "256", "--train.log-every-steps", "5",
    "--train.device", "cpu", "--train.dtype", "float32",
)  # fmt: skip


@pytest.fixture
def shell(tmp_path):
    """Runs a shell command, in which $BYTELM is the installed command, in an empty folder."""

    def run(command, **environment):
        variables = {**os.environ, "BYTELM": str(BYTELM), **environment}
        return subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def checkpoint_tokens(run):
    return max(json.loads(path.read_text())["tokens"] for path in run.glob("checkpoints/*/state.json"))


def test_verbs_called_from_python_print_nothing(text_folder, tmp_path, capsys):
    from pipelines.build_dataset import build_dataset
    from pipelines.corpus import list_corpora
    from pipelines.params import described, params
    from pipelines.tokenize import tokenize
    from pipelines.train_tokenizer import train_tokenizer

    train_tokenizer([str(text_folder)], vocab_size=300, out=tmp_path / "tok")
    build_dataset([str(text_folder)], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    tokenize("some text", tokenizer=tmp_path / "tok")
    tokenize("some text", tokenizer=tmp_path / "tok", as_json=True)
    params(described("gpt2")[0])
    list_corpora()
    assert capsys.readouterr().out == ""


def test_verbs_called_from_python_print_inside_show(text_folder, tmp_path, capsys):
    from pipelines.corpus import list_corpora
    from pipelines.train_tokenizer import train_tokenizer

    with show():
        train_tokenizer([str(text_folder)], vocab_size=300, out=tmp_path / "tok")
    assert "bytes per token" in capsys.readouterr().out
    with show(quiet=True):
        train_tokenizer([str(text_folder)], vocab_size=300, out=tmp_path / "tok", overwrite=True)
        assert capsys.readouterr().out == ""
        list_corpora()
    assert "stdlib" in capsys.readouterr().out
    list_corpora()
    assert capsys.readouterr().out == ""


def test_quiet_turns_off_messages_and_leaves_results_and_errors(bytelm, text_folder, tokenizer_folder):
    command = ("build-dataset", text_folder, "--tokenizer", tokenizer_folder, "--context-length", "32", "--out", "data")
    done = bytelm(*command, "--quiet")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert_refused(bytelm(*command, "-q"), "data exists already")
    assert "tokens, 9 bytes" in bytelm("tokenize", "import os", "--tokenizer", tokenizer_folder, "-q").stdout


@pytest.mark.parametrize("output", ["| head -1", ">/dev/full", "1>&-"])
def test_training_goes_on_to_its_end_when_its_output_cannot_be_written(shell, dataset_folder, tmp_path, output):
    options = f"--data {dataset_folder} --out run --train.tokens 200k --train.log-every-steps 1"
    done = shell(f"set -o pipefail; $BYTELM {' '.join(PRETRAIN)} {options} {output}")
    assert done.returncode == 0
    assert done.stderr == ""
    assert checkpoint_tokens(tmp_path / "run") >= 200_000


def test_training_without_a_reader_still_fails_with_its_own_status(shell, dataset_folder, tmp_path):
    options = f"--data {dataset_folder} --out run --train.tokens 200k --train.lr 1e30 --train.nonfinite stop"
    done = shell(f"set -o pipefail; $BYTELM {' '.join(PRETRAIN)} {options} | head -1")
    assert done.returncode == 1
    assert "not finite" in done.stderr


def test_a_dataset_is_built_though_nobody_reads_the_messages(shell, text_folder, tokenizer_folder, tmp_path):
    options = f"--tokenizer {tokenizer_folder} --context-length 32 --out data"
    done = shell(f"set -o pipefail; $BYTELM build-dataset {text_folder} {options} | true")
    assert (done.returncode, done.stderr) == (0, "")
    assert (tmp_path / "data" / "dataset.json").exists()


@pytest.mark.parametrize("output", [">/dev/full", "1>&-"])
@pytest.mark.parametrize("command", ["--help", "--version", "tokenize --help", "corpus list", "params gpt2 --json"])
def test_a_result_that_cannot_be_written_is_an_error(shell, command, output):
    said = "No space left on device" if output == ">/dev/full" else "Bad file descriptor"
    done = shell(f"$BYTELM {command} {output}")
    assert done.returncode == 1
    assert done.stderr.endswith(f"{said}: standard output\n")
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("command", ["--help", "tokenize --help", "corpus list", "params gpt2", "params gpt2 --json"])
def test_a_reader_that_has_seen_enough_is_no_error(shell, command):
    done = shell(f"set -o pipefail; $BYTELM {command} | true")
    assert (done.returncode, done.stderr) == (0, "")
