"""Text that a run was trained on is noticed when it is scored, and its share is reported."""

import json
import shutil
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.documents import text_of_stream
from pipelines.evaluation.measurements.trained_text import TrainingText
from pipelines.evaluation.results import Evaluation
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report
from pipelines.verbs.train_tokenizer import train_tokenizer
from tokenizer import Tokenizer


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, text_folder, dataset_folder, tokenizer_folder):
    """Return a folder with two documents of the training split, one of the validation split and a new one."""
    recorded = TokenDataset(dataset_folder).split("validation")
    tok = Tokenizer.load(tokenizer_folder)
    validation = tok.decode_bytes(recorded.read(0, recorded.tokens)).replace(b"<|endoftext|>", b"")
    paths = sorted(text_folder.glob("*.txt"))
    seen = [path for path in paths if path.read_bytes() not in validation]
    unseen = [path for path in paths if path.read_bytes() in validation]
    folder = tmp_path_factory.mktemp("corpus") / "mixed"
    folder.mkdir()
    for path in (*seen[:2], unseen[0]):
        shutil.copy(path, folder)
    (folder / "new.txt").write_text("This text is new. " * 100)
    return folder, seen[:2]


@pytest.fixture
def run(tmp_path, trained_gpt):
    copy = shutil.copytree(trained_gpt, tmp_path / "gpt")
    (copy / "evaluation.json").unlink(missing_ok=True)
    return copy


def sentence(folder, seen, run="gpt"):
    total = sum(path.stat().st_size for path in folder.iterdir())
    share = sum(path.stat().st_size for path in seen) / total
    return (
        f"{share:.1%} of this text (2 documents) was also in the training text of {run}: the loss on it is not that of "
        f"held-out text."
    )


def test_documents_of_the_training_split_are_noticed(in_process, run, corpus):
    folder, seen = corpus
    done = in_process("evaluate", run, "--corpus", folder)
    assert done.returncode == 0, done.stderr
    assert f"mixed: {sentence(folder, seen)}" in done.stderr
    numbers = Evaluation.read(run).to_json()["splits"]["mixed"]
    assert numbers["trained_documents"] == 2
    assert f"{numbers['trained_share']:.1%}" in sentence(folder, seen)
    assert sentence(folder, seen) in report([run]).read_text()
    export_hf(run, out=run.parent / "export")
    assert f"**mixed**: {sentence(folder, seen)}" in (run.parent / "export" / "README.md").read_text()


def test_the_validation_split_is_held_out(in_process, run):
    done = in_process("evaluate", run)
    assert done.returncode == 0 and "held-out text" not in done.stderr
    numbers = Evaluation.read(run).to_json()["splits"]["validation"]
    assert (numbers["trained_documents"], numbers["trained_share"]) == (0, 0.0)


def test_both_runs_of_a_comparison_are_checked(tmp_path, in_process, run, corpus, small_recipe, tokenizer_folder):
    """The other run was trained on other text, and then on the corpus."""
    folder, seen = corpus
    other = shutil.copytree(run, tmp_path / "other")
    done = in_process("evaluate", run, "--corpus", folder, "--against", other)
    assert sentence(folder, seen, "gpt") in " ".join(done.stdout.split())
    assert sentence(folder, seen, "other") in " ".join(done.stdout.split())


def test_the_text_of_the_run_that_a_run_started_from_counts_too(tmp_path, run, corpus, small_recipe, tokenizer_folder):
    folder, _ = corpus
    (tmp_path / "words.txt").write_text("".join(f"line {i} of another text\n" for i in range(2000)))
    build_dataset(
        [str(tmp_path / "words.txt")], tokenizer=tokenizer_folder, context_length=32, out=tmp_path / "other-data"
    )
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=2560))
    pretrain(recipe, data=tmp_path / "other-data", out=tmp_path / "tuned", init_from=run)
    with pytest.warns(UserWarning, match=r"\(2 documents\) was also in the training text of tuned"):
        evaluate(tmp_path / "tuned", corpus=(str(folder),))


def test_a_tokenizer_that_loses_text_recognises_its_training_text(tmp_path, corpus, text_folder):
    folder, _ = corpus
    train_tokenizer([str(text_folder)], vocab_size=600, kind="wordpiece", pattern="bert-uncased", out=tmp_path / "tok")
    build_dataset([str(text_folder)], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    build_dataset(
        [str(folder)], tokenizer=tmp_path / "tok", context_length=8, split="tail:0.1", out=tmp_path / "scored"
    )
    tok, data, scored = Tokenizer.load(tmp_path / "tok"), TokenDataset(tmp_path / "data"), tmp_path / "scored"
    stream = TokenDataset(scored).split("train")
    found = TrainingText([data], tok).share(stream, text_of_stream(stream, tok, data.info["separator"]))
    assert found.trained_documents == 2


@pytest.fixture(scope="module")
def two_letters(tmp_path_factory):
    """Return a tokenizer of the letters a and b with a few merges."""
    return Tokenizer.train(["ab" * 9 + "ba" * 5 + "aab" * 7], vocab_size=266)


@settings(max_examples=15)
@given(
    train=st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=40),
    validation=st.lists(st.text("ab", min_size=1, max_size=7), min_size=1, max_size=20),
    sampled=st.booleans(),
)
def test_the_share_is_that_of_a_set_of_documents(tmp_path_factory, two_letters, train, validation, sampled):
    """Short texts of two letters: many have the same letters in another order."""
    folder = tmp_path_factory.mktemp("letters")
    two_letters.save(folder / "tok")
    train, validation = [*train, "a" * 100], [*validation, "b" * 100]  # at least one block, whose tail is cut
    for name, texts in (("train", train), ("validation", validation)):
        lines = "".join(json.dumps({"text": text}) + "\n" for text in texts)
        (folder / f"letters.{name}.jsonl").write_text(lines)
    options = {"dropout": 0.5} if sampled else {}
    build_dataset(
        [str(folder / "letters.*.jsonl")], tokenizer=folder / "tok", context_length=2, out=folder / "data", **options
    )
    data = TokenDataset(folder / "data")
    stream = data.split("validation")
    text = text_of_stream(stream, two_letters, data.info["separator"])
    found = TrainingText([data], two_letters).share(stream, text)
    known = np.array([each in set(train) for each in validation])
    sizes = np.array([len(each) for each in validation])
    assert found.trained_documents == known.sum()
    assert found.trained_share == pytest.approx(sizes @ known / sizes.sum(), abs=0.02)
