"""Classifiers fine-tuned from a trained encoder: accuracy, evaluation, files, and errors."""

import io
import json
import math
import re
import shutil
import subprocess
import sys
import warnings
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch
from corpora.labelled import read_labelled
from hypothesis import given
from hypothesis import strategies as st
from lm.classification import accuracy_interval
from pipelines.run.classifier import load_classifier
from pipelines.verbs.classify import classify
from scipy import stats

from lm.metrics.predictions import token_nll
from pipelines.recipes.config import FinetuneConfig
from pipelines.recipes.recipe import save_config
from pipelines.run.folder import Run
from pipelines.training.finetuning import SORTED_BATCHES, epochs
from pipelines.verbs.finetune import finetune
from tests.pipelines.training_cases import accept_config

MODULES = ("argparse", "calendar", "decimal")
SETTINGS = FinetuneConfig(epochs=4, lr=3e-3, batch_size=8, device="cpu", dtype="float32")


def write(path, rows):
    path.write_text("".join(json.dumps({"text": t, "label": y}) + "\n" for t, y in rows), encoding="utf-8")
    return path


def test_every_epoch_reads_all_texts_in_a_new_order_in_batches_of_similar_length():
    lengths = np.random.default_rng(0).integers(1, 500, size=1000)
    config = FinetuneConfig(epochs=3, batch_size=8)
    batches = list(epochs(lengths, config))
    orders = np.concatenate(batches).reshape(3, 1000)
    assert all(sorted(order) == list(range(1000)) for order in orders.tolist())
    first, second = ({frozenset(batch.tolist()) for batch in batches[i * 125 : i * 125 + 125]} for i in (0, 1))
    assert len(first & second) < 5  # batches of other texts, not only the same batches in another order
    spread = np.mean([np.ptp(lengths[batch]) for batch in batches])
    assert spread < 4 * 500 / SORTED_BATCHES  # by chance it would be 390
    firsts = [lengths[batch[0]] for batch in batches]
    assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 0.3  # batches are not in order of length
    again = np.concatenate(list(epochs(lengths, config))).reshape(3, 1000)
    other = np.concatenate(list(epochs(lengths, replace(config, seed=1)))).reshape(3, 1000)
    assert (again == orders).all()
    assert not (other == orders).all()


def test_the_loss_shown_while_a_classifier_trains_is_a_mean_over_batches(tmp_path, trained_bert, passages, printed):
    """Weights that do not move have the loss of the whole training text; the loss of a text varies."""
    still = FinetuneConfig(epochs=2, lr=1e-12, batch_size=1, dropout=0.0, device="cpu", dtype="float32", seed=5)
    finetune(trained_bert, data=passages[0], test=passages[0], out=tmp_path / "out", settings=still)
    said = printed.readouterr()
    shown = float(re.findall(r"fine-tuning: .* loss ([\d.]+)", said.out + said.err)[-1])
    classifier = load_classifier(tmp_path / "out", "cpu")
    labelled = read_labelled(passages[0])
    targets = torch.tensor([classifier.labels.index(label) for label in labelled.labels])
    losses = token_nll(classifier.logits(labelled.texts), targets)
    assert shown == pytest.approx(float(losses.mean()), abs=0.5 * float(losses.std()))


@given(st.integers(1, 3000), st.data())
def test_the_interval_of_an_accuracy_is_wilsons(texts, data):
    right = data.draw(st.integers(0, texts))
    expected = stats.binomtest(right, texts).proportion_ci(0.95, method="wilson")
    assert accuracy_interval(right / texts, texts) == pytest.approx((expected.low, expected.high), abs=1e-9)


@pytest.mark.parametrize(("warmup", "warned"), [(0.95, True), (0.5, False)])
def test_a_warm_up_of_all_steps_is_named(tmp_path, trained_bert, passages, warmup, warned):
    """90 texts in batches of 16 make 6 steps."""
    settings = replace(SETTINGS, epochs=1, batch_size=16, warmup=warmup)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        finetune(trained_bert, data=passages[0], test=passages[1], out=tmp_path / "out", settings=settings)
    said = [str(each.message) for each in caught]
    words = (
        "`warmup=0.95` lasts until the last of 6 steps, so the learning rate ends at its peak: lower `warmup`, or "
        "raise `epochs`"
    )
    assert (words in said) == warned


@pytest.fixture(scope="module")
def passages(tmp_path_factory, text_folder):
    """Return 90 training and 60 test passages of 60 characters, labelled by which of three modules they are from."""
    folder = tmp_path_factory.mktemp("passages")
    sources = [sorted(text_folder.glob("*.txt"))[i].read_text() for i in (0, 20, 40)]
    rows = [(source[60 * i : 60 * (i + 1)], label) for i in range(50) for label, source in enumerate(sources)]
    return write(folder / "train.jsonl", rows[:90]), write(folder / "test.jsonl", rows[90:])


@pytest.fixture(scope="module")
def trained_classifier(tmp_path_factory, trained_bert, passages):
    """Return (folder, evaluation) of a classifier."""
    folder = tmp_path_factory.mktemp("classifiers") / "modules"
    return folder, finetune(trained_bert, data=passages[0], test=passages[1], out=folder, settings=SETTINGS)


def test_a_saved_classifier_reproduces_its_evaluation(trained_classifier, passages):
    folder, result = trained_classifier
    test = read_labelled(passages[1])
    labels, probabilities = load_classifier(folder).predict(test.texts)
    right = sum(label == said for label, said in zip(test.labels, labels, strict=True))
    assert result["accuracy"] == pytest.approx(right / len(test))
    own = probabilities[np.arange(len(test)), test.labels]
    assert result["cross_entropy"] == pytest.approx(-np.log(own).mean(), rel=1e-5)
    assert result["cross_entropy_bits"] == pytest.approx(result["cross_entropy"] / math.log(2))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0)
    mistakes = Counter(pair for pair in zip(test.labels, labels, strict=True) if pair[0] != pair[1])
    assert {(c["label"], c["predicted"]): c["times"] for c in result["confusions"]} == mistakes


def test_a_classifier_learns_to_tell_two_words_apart(tmp_path, trained_bert):
    rows = [(f"{word} {i} {word} = {i}", word) for i in range(40) for word in ("import", "return")]
    result = finetune(
        trained_bert, data=write(tmp_path / "rows.jsonl", rows), out=tmp_path / "out", settings=SETTINGS, held_out=0.3
    )
    assert result["accuracy"] > 0.95
    assert result["macro_f1"] > 0.95
    assert load_classifier(tmp_path / "out").predict(["return 99", "import 99"])[0] == ["return", "import"]


def test_the_evaluation_includes_baselines_and_the_same_model_from_scratch(
    trained_classifier, tmp_path, trained_bert, passages
):
    _, result = trained_classifier
    assert result["most_frequent"]["accuracy"] == pytest.approx(1 / 3)
    assert result["most_frequent"]["cross_entropy"] == pytest.approx(math.log(3))
    assert 0 <= result["naive_bayes"]["accuracy"] <= 1
    scratch = finetune(
        trained_bert, data=passages[0], test=passages[1], out=tmp_path / "s", from_scratch=True, settings=SETTINGS
    )
    assert result["scratch"] == {name: scratch[name] for name in result["scratch"]}
    assert scratch["scratch"] is None and scratch["checkpoint"] is None


def test_the_folder_has_everything_to_use_the_classifier(trained_classifier, tmp_path, trained_bert):
    folder, result = trained_classifier
    assert sorted(path.name for path in folder.iterdir()) == [
        "config.toml",
        "evaluation.json",
        "labels.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
    ]
    assert json.loads((folder / "evaluation.json").read_text()) == result
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1  # the same permissions for all files
    moved = shutil.copytree(folder, tmp_path / "moved")
    assert load_classifier(moved).tokenizer.fingerprint == Run(trained_bert).tokenizer().fingerprint


def test_the_same_seed_makes_the_same_classifier(trained_classifier, tmp_path, trained_bert, passages):
    weights = [(trained_classifier[0] / "model.safetensors").read_bytes()]
    for name, seed in (("again", 0), ("other", 1)):
        settings = replace(SETTINGS, seed=seed)
        out = tmp_path / name
        finetune(trained_bert, data=passages[0], test=passages[1], out=out, settings=settings, compare_scratch=False)
        weights.append((out / "model.safetensors").read_bytes())
    assert weights[0] == weights[1] != weights[2]


def test_texts_beyond_the_context_are_cut_and_counted(tmp_path, trained_bert):
    rows = [("a" if i % 2 else "a b c " * 100, i % 2) for i in range(8)]
    data = write(tmp_path / "rows.jsonl", rows)
    settings = replace(SETTINGS, epochs=1)
    with pytest.warns(UserWarning, match=r"of the .* texts of .* are in .* too"):
        result = finetune(trained_bert, data=data, test=data, out=tmp_path / "out", settings=settings)
    assert result["cut"] == {"train": 4, "test": 4}
    assert result["cut_to"] == 32
    classifier = load_classifier(tmp_path / "out")
    long = torch.from_numpy(classifier.predict(["a b c " * 100])[1])
    longer = torch.from_numpy(classifier.predict(["a b c " * 200])[1])
    assert torch.equal(long, longer)


def test_classify_ranks_labels_for_arguments_and_for_lines(trained_classifier, in_process, passages):
    folder, _ = trained_classifier
    texts = [text.replace("\n", " ") for text in read_labelled(passages[1]).texts[:3]]
    labels, probabilities = load_classifier(folder).predict(texts)
    given = in_process("classify", folder, *texts, "--json", "--top", "2")
    piped = in_process("classify", folder, "--json", "--top", "2", stdin="".join(text + "\n" for text in texts))
    assert given.stdout == piped.stdout
    results = [json.loads(line) for line in given.stdout.splitlines()]
    assert [result["label"] for result in results] == labels
    for result, row in zip(results, probabilities, strict=True):
        assert [label["probability"] for label in result["labels"]] == pytest.approx(sorted(row)[:-3:-1])
    assert f"{labels[0]} {probabilities[0].max():.0%}" in in_process("classify", folder, texts[0]).stdout


def test_lines_of_standard_input_end_at_lf_and_cr_lf_only(trained_classifier, monkeypatch):
    plain = ("a\rb", "\rc", "d\x0b\x0c\x1c\x85\u2028e", "last\r")
    for end, texts in (("\n", plain), ("\r\n", ("f\r", *plain))):
        data = end.join(texts).encode()
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
        assert classify(trained_classifier[0]) == classify(trained_classifier[0], texts)


def test_a_line_that_is_not_utf8_is_named(trained_classifier, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"good\r\n\xff\xfe abc\n")))
    with pytest.raises(ValueError, match=r"line 2 of standard input is not UTF-8 \(invalid start byte\): convert it"):
        classify(trained_classifier[0])


def test_a_full_disk_is_a_one_line_error_and_leaves_nothing(bytelm, tmp_path, trained_bert):
    """A limit on file sizes makes writing fail as a full disk does."""
    rows = write(tmp_path / "rows.jsonl", [(f"text {i}", "xy"[i % 2]) for i in range(40)])
    command = ["finetune", str(trained_bert), "--data", str(rows), "--out", str(tmp_path / "out"), "--device", "cpu"]
    code = (
        "import resource, sys; from pipelines.cli.dispatch import main; import torch; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)); sys.exit(main({command!r}))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "model.safetensors could not be written" in done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["rows.jsonl"]


def refused(rows, run, tmp_path, match, **options):
    with pytest.raises(ValueError, match=match):
        finetune(run, data=write(tmp_path / "rows.jsonl", rows), out=tmp_path / "out", settings=SETTINGS, **options)
    assert sorted(path.name for path in tmp_path.iterdir() if "test" not in path.name) == ["rows.jsonl"]


def test_unusable_training_rows_are_refused_by_name(tmp_path, trained_bert, trained_gpt):
    two = [("a", "x"), ("b", "y")]
    refused(two, trained_gpt, tmp_path, "has a model of architecture 'decoder'")
    refused([("a", "x"), ("b", "x")], trained_bert, tmp_path, "all texts of .* have the label 'x'")
    refused(
        two, trained_bert, tmp_path, "no text of .*rows.jsonl is held out: raise `held_out` from 1e-09", held_out=1e-9
    )
    refused(two, trained_bert, tmp_path, "`held_out` is 1.5", held_out=1.5)
    test = write(tmp_path / "test.jsonl", [("a", "z")])
    refused(two, trained_bert, tmp_path, "test.jsonl has the label 'z', which no text of", test=test)
    refused(two, trained_bert, tmp_path, 'has no field "body"', text_field="body")


def test_a_folder_that_is_no_classifier_is_left_alone(tmp_path, trained_bert, passages):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ValueError, match="exists already: choose another `out`"):
        finetune(trained_bert, data=passages[0], out=tmp_path, settings=SETTINGS)
    with pytest.raises(ValueError, match="holds no classifier"):
        load_classifier(tmp_path)
    assert (tmp_path / "mine").read_text() == "mine"


def test_an_existing_classifier_is_replaced_only_on_request(trained_classifier, tmp_path, trained_bert):
    folder = shutil.copytree(trained_classifier[0], tmp_path / "mine")
    rows = [(f"{word} {i}", word) for i in range(20) for word in ("yes", "no")]
    options = {"data": write(tmp_path / "rows.jsonl", rows), "out": folder, "compare_scratch": False}
    settings = replace(SETTINGS, epochs=1)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    with pytest.raises(ValueError, match=r"mine exists already: choose another `out` .*`overwrite`"):
        finetune(trained_bert, **options, settings=settings)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    finetune(trained_bert, **options, overwrite=True, settings=settings)
    assert load_classifier(folder).labels == ["no", "yes"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["mine", "rows.jsonl"]
    with pytest.raises(ValueError, match="exists already: choose another `out`"):
        finetune(trained_bert, **options | {"out": trained_bert}, overwrite=True, settings=settings)


def test_classify_reports_texts_that_it_cuts(trained_classifier, printed):
    words = "1 of 2 texts is longer than the 32 tokens that the classifier reads: the rest was cut off"
    with pytest.warns(UserWarning, match=words):
        classify(trained_classifier[0], ("a b c " * 100, "short"), as_json=True)
    assert [json.loads(line)["cut"] for line in printed.readouterr().out.splitlines()] == [True, False]


def test_damaged_files_are_named(trained_classifier, tmp_path):
    folder = shutil.copytree(trained_classifier[0], tmp_path / "copy")
    weights = (folder / "model.safetensors").read_bytes()
    (folder / "model.safetensors").write_bytes(weights[: len(weights) // 2])
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or altered"):
        load_classifier(folder)
    labels = (folder / "labels.json").read_text()
    (folder / "labels.json").write_text('["x",')
    with pytest.raises(ValueError, match=r"labels\.json is truncated or altered"):
        load_classifier(folder)
    (folder / "labels.json").write_text(labels)
    with pytest.raises(ValueError, match=r"model\.safetensors is truncated or altered"):
        load_classifier(folder)
    manifest = (folder / "manifest.json").read_text()
    (folder / "manifest.json").unlink()
    with pytest.raises(ValueError, match=r"manifest\.json is missing or damaged"):
        load_classifier(folder)
    (folder / "manifest.json").write_text(manifest)
    config = (folder / "config.toml").read_text()
    (folder / "config.toml").write_text(config.replace("heads =", "hands ="))
    with pytest.raises(ValueError, match=r"config.toml is damaged"):
        load_classifier(folder)


def test_an_encoder_whose_attention_has_no_dropout_is_fine_tuned_without_it(tmp_path, trained_bert, passages):
    folder = shutil.copytree(trained_bert, tmp_path / "bert")
    run = Run(folder)
    model = replace(run.recipe.model, dropout=0.0, attention="closed_form")
    save_config(folder / "config.toml", replace(run.recipe, model=model), run.facts)
    accept_config(folder)
    with pytest.raises(ValueError, match=r"model\.attention = 'closed_form', .* `dropout` is 0\.1: give `dropout=0`"):
        finetune(folder, data=passages[0], out=tmp_path / "out", settings=SETTINGS)
    assert not (tmp_path / "out").exists()
    settings = replace(SETTINGS, dropout=0.0, epochs=1)
    finetune(folder, data=passages[0], out=tmp_path / "out", settings=settings, compare_scratch=False)
    assert load_classifier(tmp_path / "out").model.config.attention == "closed_form"


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 0},
        {"lr": 0.0},
        {"batch_size": 0},
        {"dropout": 1.0},
        {"warmup": -0.1},
        {"grad_clip": -1.0},
        {"seed": 2**63},
    ],
)
def test_conflicting_options_are_refused_by_name(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        FinetuneConfig(**options)


def test_the_command_prints_a_table_for_people(in_process, tmp_path, trained_bert, passages):
    done = in_process(
        "finetune", trained_bert, "--data", passages[0], "--test", passages[1], "--out", tmp_path / "out",
        "--epochs", "1", "--dtype", "float32", "--pooling", "first",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    for words in ("90 texts to train on, 60 to test on, 3 labels", "accuracy", "the same from scratch", "naive Bayes"):
        assert words in done.stdout
    assert "In brackets: 95 % intervals over the test texts. Each model was trained once" in done.stdout
    result = json.loads((tmp_path / "out" / "evaluation.json").read_text())
    low, high = result["accuracy_interval"]
    assert f"{result['accuracy']:.1%} ({low:.1%} to {high:.1%})" in done.stdout
    assert load_classifier(tmp_path / "out").config.pooling == "first"
