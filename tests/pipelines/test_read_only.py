"""A folder that cannot be written is noticed before the work: the input of each command here would end it later."""

import os
import shutil
import subprocess

import pytest


@pytest.fixture(scope="module")
def run(trained_bert, tmp_path_factory):
    """Return a run whose checkpoints are damaged, so that a command that begins to work fails with another error."""
    folder = shutil.copytree(trained_bert, tmp_path_factory.mktemp("damaged") / "run")
    for path in folder.rglob("*.safetensors"):
        path.write_bytes(b"")
    return folder


@pytest.fixture
def read_only(tmp_path):
    """Return read_only(folder), which lets nobody write there, not even root."""
    mounted = []

    def close(folder):
        folder.chmod(0o555)
        if os.access(folder, os.W_OK):
            for options in (["--bind", folder, folder], ["-o", "remount,bind,ro", folder]):
                if shutil.which("mount") is None or subprocess.run(["mount", *options], check=False).returncode:
                    pytest.skip("root writes everywhere, and mounting is not permitted here")
                mounted.append(folder)
        return folder

    yield close
    for folder in mounted[::2]:
        subprocess.run(["umount", folder], check=True)


COMMANDS = {
    "train-tokenizer": ["damaged.txt", "--vocab-size", 300, "--out", "OUT/tok"],
    "train-tokenizer --save-counts": [
        "damaged.txt",
        "--vocab-size",
        300,
        "--out",
        "tok",
        "--save-counts",
        "OUT/counts",
    ],
    "build-dataset": ["damaged.txt", "--tokenizer", "TOK", "--context-length", 8, "--out", "OUT/data"],
    "build-dataset --shard-size": [
        *("damaged.txt", "--tokenizer", "TOK", "--context-length", 8, "--out", "OUT/new/data", "--shard-size", "1M")
    ],
    "entropy": ["damaged.txt", "--out", "OUT/page.html"],
    "embed": ["RUN", "damaged.txt", "--out", "OUT/vectors.parquet"],
    "score": ["RUN", "a lamp", "--parquet", "OUT/scores.parquet"],
    "report": ["RUN", "--out", "OUT/page.html"],
    "export-hf": ["RUN", "--out", "OUT/hf"],
    "export-onnx": ["RUN", "--out", "OUT/model.onnx"],
    "import-hf": ["RUN", "--out", "OUT/run"],
    "finetune": ["RUN", "--data", "damaged.txt", "--out", "OUT/run"],
}


@pytest.mark.parametrize("command", COMMANDS)
def test_an_output_folder_that_cannot_be_written_is_noticed_before_the_work(
    command, run, read_only, in_process, tmp_path, tokenizer_folder
):
    (tmp_path / "damaged.txt").write_bytes(b"\xff\xff" * 100)
    (tmp_path / "out").mkdir()
    folder = read_only(tmp_path / "out")
    names = {"RUN": str(run), "TOK": str(tokenizer_folder)}
    words = [str(names.get(word, word)).replace("OUT", str(folder)) for word in COMMANDS[command]]
    done = in_process(command.split()[0], *words)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"{folder} is not writable (" in done.stderr
    assert "): choose another --" in done.stderr
    assert list(folder.iterdir()) == []


def test_a_run_that_cannot_be_written_is_noticed_before_its_evaluation(run, read_only, in_process, tmp_path):
    folder = read_only(shutil.copytree(run, tmp_path / "run"))
    done = in_process("evaluate", folder)
    assert (done.returncode, done.stderr.count("\n")) == (1, 1)
    assert f"evaluation.json, but {folder} is not writable (" in done.stderr


def test_an_output_file_that_is_a_folder_is_noticed_before_the_work(run, in_process, tmp_path):
    (tmp_path / "damaged.txt").write_bytes(b"\xff\xff" * 100)
    (tmp_path / "out").mkdir()
    words = ["damaged.txt", "--vocab-size", "300", "--out", "tok", "--overwrite", "--save-counts", "out"]
    for command in (["train-tokenizer", *words], ["report", run, "--out", "out"]):
        done = in_process(*command)
        assert (done.returncode, done.stderr.count("\n")) == (1, 1)
        assert "is a folder: name" in done.stderr
