"""`bytelm train` makes everything from a text with one command, and `bytelm demo` does so on the built-in corpus."""

import json
import re
import shlex
import shutil
import signal
import subprocess
import time

import pytest

import bytelm
from lm.costs import flops_per_token, meta_model
from pipelines.dataset.reader import TokenDataset
from pipelines.run.folder import Run
from pipelines.verbs.demo import demo
from tests.conftest import BYTELM, runner_in_process

TOKENS = "4k"
FILES = ("tokenizer/tokenizer.json", "data/dataset.json", "gpt/evaluation.json", "report.html")


@pytest.fixture(scope="module")
def trained(tmp_path_factory, text_folder):
    """Return the folder in which `bytelm train` made a GPT and a BERT of `text_folder`, and its output."""
    folder = tmp_path_factory.mktemp("train")
    (folder / "my text").mkdir()
    for path in sorted(text_folder.iterdir())[::4]:
        shutil.copy(path, folder / "my text")
    with pytest.MonkeyPatch.context() as patch:
        done = runner_in_process(folder, patch)("train", "my text", "--kind", "gpt", "bert", "--tokens", TOKENS)
    assert done.returncode == 0, done.stderr
    return folder, done.stdout


@pytest.fixture
def copied(tmp_path, trained):
    """Return a copy of the folder of `trained`."""
    shutil.copytree(trained[0], tmp_path / "copy")
    return tmp_path / "copy"


def commands(output):
    """Return the commands that a training printed."""
    return [shlex.split(line.removeprefix("$ ")) for line in output.splitlines() if line.startswith("$ ")]


def test_one_command_makes_everything_from_a_text(trained):
    folder, output = trained
    for path in (*FILES, "bert/evaluation.json"):
        assert (folder / "my" / path).exists(), path
    numbers = json.loads((folder / "my" / "gpt" / "evaluation.json").read_text())["splits"]["validation"]
    for words in (f"{numbers['bits_per_byte']:.3f}", "bigram", "zstd -19, given train", "pseudo-perplexity"):
        assert words in output
    assert re.search(
        r"It was trained on 4\.1k tokens in 0:\d\d: its machine \(.*\) trains [\d,]+ tokens a second", output
    )
    assert ": its machine (" in (folder / "my" / "report.html").read_text(encoding="utf-8")


def test_the_choices_and_the_time_are_told_before_the_work(trained):
    before = trained[1].partition("$ ")[0]
    for row in ("text", "vocabulary", "context", "gpt", "bert", "training", "time"):
        assert re.search(rf"^{row} ", before, re.M), row
    assert "my text: 1" in before and "Latin 100%" in before


@pytest.mark.slow
def test_the_printed_commands_make_the_same_files(trained, tmp_path, in_process):
    folder, output = trained
    shutil.copytree(folder / "my text", tmp_path / "my text")
    for _, *words in commands(output):
        done = in_process(*words)
        assert done.returncode == 0, done.stderr
    for path in ("tokenizer/tokenizer.json", "data/dataset.json"):
        assert (tmp_path / "my" / path).read_bytes() == (folder / "my" / path).read_bytes(), path
    for kind in ("gpt", "bert"):
        ours, theirs = Run(tmp_path / "my" / kind), Run(folder / "my" / kind)
        assert ours.recipe == theirs.recipe
        losses = [[each["loss"] for each in run.metrics()] for run in (ours, theirs)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)
        assert {path.name for path in ours.folder.iterdir()} == {path.name for path in theirs.folder.iterdir()}


def test_a_repeated_command_reuses_what_is_there(copied, in_process):
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*.safetensors")}
    assert len(before) >= 4
    done = in_process("train", "my text", "--kind", "gpt", "bert", cwd=copied)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("exists already") == 4
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*.safetensors")} == before
    models = json.loads((copied / "my" / "train.json").read_text())["models"]
    assert [model["minutes"] for model in models.values()] == [None, None]


def test_more_tokens_extend_the_training(copied, in_process):
    done = in_process("train", "my text", "--tokens", "6k", cwd=copied)
    assert done.returncode == 0, done.stderr
    assert "extended from 4 ktok to 6 ktok" in done.stdout
    assert Run(copied / "my" / "gpt").recipe.train.tokens == 6000
    evaluation = json.loads((copied / "my" / "gpt" / "evaluation.json").read_text())
    assert evaluation["checkpoint"] > "step-0000004"


def test_flops_are_those_of_the_steps_and_may_only_grow(copied, in_process):
    shutil.rmtree(copied / "my" / "gpt")
    (copied / "my" / "train.json").unlink()
    done = in_process("train", "my text", "--flops", "2e10", "--seed", "3", cwd=copied)
    assert done.returncode == 0, done.stderr
    recipe = Run(copied / "my" / "gpt").recipe
    assert recipe.train.tokens * flops_per_token(meta_model(recipe.model)) == pytest.approx(2e10, rel=1e-3)
    assert recipe.train.seed == 3 and recipe.train.minutes == 0
    assert re.search(r"^bits per byte of the validation text, .*: [\d.]+", done.stdout, re.M)
    assert "its train.seed is 3, not 7" in in_process("train", "my text", "--seed", "7", cwd=copied).stderr
    less = in_process("train", "my text", "--flops", "1e10", cwd=copied)
    assert "my/gpt is a training of 2e+10 FLOPs, which --flops 1e+10 would shorten" in less.stderr
    record = json.loads((copied / "my" / "train.json").read_text())
    record["models"]["gpt"] |= {"tokens": 2 * recipe.train.tokens}  # as after an extension in tokens
    (copied / "my" / "train.json").write_text(json.dumps(record))
    less = in_process("train", "my text", "--flops", "3e10", cwd=copied)
    assert "my/gpt is a training of 4e+10 FLOPs, which --flops 3e+10 would shorten" in less.stderr


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (["--tokens", "2k"], "my/gpt is a training of 4,000 tokens, which --tokens 2000 would shorten"),
        (["--minutes", "1e-4"], "minutes, which --minutes 0.0001 would shorten: leave the option out, give more"),
        (["--flops", "1e8"], "FLOPs, which --flops 1e+08 would shorten: leave the option out, give more"),
        (["--split", "tail:0.2"], "my was made from another text (--split was left out, and is tail:0.2 now)"),
        (["--out", "my/gpt"], "--out my/gpt is a run: give a folder for runs, such as my"),
        (["--minutes", "1", "--tokens", "5k"], "--minutes and --tokens both say how long to train"),
        (["--flops", "1e9", "--tokens", "5k"], "--flops and --tokens both say how long to train"),
        (["--minutes", "0"], "--minutes is 0, but must be above 0"),
        (["--split", "none"], "--split none leaves no validation text"),
        (["--kind"], "--kind"),
    ],
)
def test_a_contradiction_is_one_sentence_and_changes_nothing(trained, in_process, words, complaint):
    folder, _ = trained
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = in_process("train", "my text", *words, cwd=folder)
    assert done.returncode in (1, 2)
    assert complaint in done.stderr and done.stderr.count("\n") == 1
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_the_record_of_a_training_keeps_its_length_through_a_refusal_and_a_loss(copied, in_process):
    record, recipe = copied / "my" / "train.json", Run(copied / "my" / "gpt").recipe
    before = json.loads(record.read_text())["models"]
    done = in_process("train", "my text", "--tokens", "6k", "--seed", "7", cwd=copied)
    assert "its train.seed is 0, not 7" in done.stderr
    assert json.loads(record.read_text())["models"] == before
    record.unlink()
    done = in_process("train", "my text", cwd=copied)
    assert done.returncode == 0, done.stderr
    assert Run(copied / "my" / "gpt").recipe == recipe
    assert json.loads(record.read_text())["models"]["gpt"]["tokens"] == recipe.train.tokens


def test_a_changed_text_is_refused(trained, copied, in_process):
    (copied / "my text" / "more.txt").write_text("more\n" * 100)
    done = in_process("train", "my text", cwd=copied)
    assert done.returncode == 1
    assert re.search(r"it had [\d,]+ documents of [\d,]+ bytes in all, and has [\d,]+ documents of", done.stderr)
    assert f"the corpus was {trained[0] / 'my text'}, and is {copied / 'my text'} now" in done.stderr


def test_files_that_are_not_read_are_told_once(trained, tmp_path, in_process):
    shutil.copytree(trained[0] / "my text", tmp_path / "text")
    (tmp_path / "text" / "picture.png").write_bytes(b"")
    done = in_process("train", "text", "--tokens", "2k")
    assert done.returncode == 0, done.stderr
    assert (done.stdout + done.stderr).count("skipped: 1 .png") == 1


def test_a_dataset_of_another_text_is_not_trained_on(copied, in_process):
    (copied / "other.txt").write_text("".join(f"Line {number} of another text.\n" for number in range(2000)))
    (copied / "my" / "train.json").unlink()
    before = {path: path.stat().st_mtime_ns for path in copied.rglob("*")}
    done = in_process("train", "other.txt", "--tokens", "6k", cwd=copied)
    assert done.returncode == 1
    assert "my/data was made from another text or split (my text, tail:0.1)" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in copied.rglob("*")} == before


@pytest.mark.parametrize("verb", ["train", "scale", "sweep-vocabulary"])
def test_the_folder_for_the_results_is_outside_the_text(text_folder, tmp_path, in_process, verb):
    folder = shutil.copytree(text_folder, tmp_path / "text")
    words = ["--budget", "1h"] if verb == "scale" else []
    done = in_process(verb, ".", "--out", "results", *words, cwd=folder)
    assert done.returncode == 1
    assert "--out results is inside the corpus ., so its files would become text: give a folder outside" in done.stderr
    assert not (folder / "results").exists()
    done = in_process(verb, ".", "--out", "results", "--suffix", ".md", *words, cwd=folder)
    assert "holds no .md file" in done.stderr


def test_a_timed_training_has_the_tokens_that_it_read(copied, in_process):
    record = json.loads((copied / "my" / "train.json").read_text())
    record["models"]["gpt"] |= {"minutes": 1.0, "tokens": 1000}
    (copied / "my" / "train.json").write_text(json.dumps(record))
    done = in_process("train", "my text", "--tokens", "3k", cwd=copied)
    assert "my/gpt is a training of 4,096 tokens, which --tokens 3000 would shorten" in done.stderr
    record["models"]["gpt"] |= {"tokens": 9000}
    (copied / "my" / "train.json").write_text(json.dumps(record))
    done = in_process("train", "my text", "--tokens", "6k", cwd=copied)
    assert "my/gpt is a training of 9,000 tokens planned for 1 minutes, which --tokens 6000" in done.stderr


def test_too_little_text_is_one_sentence(tmp_path, in_process):
    (tmp_path / "short.txt").write_text("A short text.\n" * 70)
    done = in_process("train", "short.txt")
    assert done.returncode == 1
    assert "short.txt has 882 bytes of text to train on, and a model needs at least 10,000" in done.stderr
    assert not (tmp_path / "my").exists()


def test_a_dry_run_tells_the_choices_and_writes_nothing(text_folder, tmp_path, in_process):
    done = in_process("train", text_folder, "--dry-run")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^time +about \d+:\d\d: vocabulary 0:0\d, dataset 0:0\d, gpt \d+:\d\d, ", done.stdout, re.M)
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("sign", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_the_same_command_resumes_a_training_that_was_stopped(text_folder, tmp_path, sign):
    words = [BYTELM, "train", text_folder, "--tokens", "60k", "--out", "my"]
    with subprocess.Popen(words, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        deadline = time.monotonic() + 200
        while not list(tmp_path.glob("my/gpt/checkpoints/step-*/manifest.json")) and time.monotonic() < deadline:
            time.sleep(0.05)
        process.send_signal(sign)
        _, errors = process.communicate(timeout=100)
    if sign != signal.SIGKILL:
        assert process.returncode == 128 + sign
        assert "my keeps the finished steps, and the same command resumes from them" in errors
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "resuming from step" in done.stdout
    assert all((tmp_path / "my" / path).exists() for path in FILES)


def test_python_returns_the_evaluations_of_the_context_of_the_training(copied, monkeypatch):
    monkeypatch.chdir(copied)
    assert bytelm.evaluate("my/gpt", context=16, compressors=True).validation.trained_length
    found = bytelm.train("my text", out="my", tokens=4000)
    written = json.loads((copied / "my" / "gpt" / "evaluation.json").read_text())
    assert found["gpt"].validation.trained_length is None
    assert found["gpt"].validation.bits_per_byte == written["splits"]["validation"]["bits_per_byte"]


@pytest.mark.slow
def test_the_demo_makes_everything_from_the_built_in_corpus(tmp_path, bytelm):
    done = bytelm("demo", "--minutes", "0.05", timeout=600)
    assert done.returncode == 0, done.stderr
    for path in (*FILES, "bert/evaluation.json"):
        assert (tmp_path / "bytelm-demo" / path).exists(), path
    assert TokenDataset(tmp_path / "bytelm-demo" / "data").split("train").tokens > 1_000_000


def test_the_demo_keeps_the_time_of_an_earlier_demo(tmp_path, monkeypatch):
    asked = []
    monkeypatch.setattr("pipelines.verbs.demo.train", lambda corpus, minutes, **options: asked.append(minutes))
    demo(tmp_path)
    (tmp_path / "train.json").write_text(json.dumps({"text": None, "models": {"gpt": {"minutes": 3, "tokens": 9}}}))
    demo(tmp_path)
    demo(tmp_path, minutes=5)
    assert asked == [1.4, 3, 5]


def test_fresh_refuses_a_folder_that_is_not_a_demo(tmp_path, in_process):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "precious").write_text("x")
    done = in_process("demo", "--out", "mine", "--fresh")
    assert done.returncode == 1
    assert "is not a folder of this demo" in done.stderr
    assert (tmp_path / "mine" / "precious").exists()


def test_fresh_deletes_no_other_training_and_nothing_before_the_options_are_checked(copied, in_process):
    record = copied / "my" / "train.json"
    done = in_process("demo", "--out", copied / "my", "--fresh")
    assert done.returncode == 1 and "is not a folder of this demo" in done.stderr
    content = json.loads(record.read_text())
    content["text"]["corpus"] = ["stdlib"]
    record.write_text(json.dumps(content))
    done = in_process("demo", "--out", copied / "my", "--fresh", "--minutes", "0")
    assert done.returncode == 1 and "--minutes is 0, but must be above 0" in done.stderr
    assert record.exists()
