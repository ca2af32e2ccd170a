"""Probes: beside scikit-learn, on labels whose layer is known, and on files that do not fit."""

import json

import numpy as np
import pytest
import torch

import bytelm
from lm.introspection.probes import Probe, control_labels, majority_by_type
from pipelines.inspection.instruments.probes import Probes
from pipelines.inspection.labelled_activations import read_labelled
from tests.loaded_runs import induction_run

LETTERS = "abcdefghijklmnopqr"


@pytest.fixture(scope="module")
def induction(trained_gpt):
    """Return a run of the hand-written induction head, which reads letters; layer 0 notes the previous one."""
    return induction_run(bytelm.load_run(trained_gpt))


def letters_file(path, label, seed=0):
    draws = np.random.default_rng(seed).integers(len(LETTERS), size=(60, 12))
    rows = [[LETTERS[i] for i in row] for row in draws]
    labelled = [{"tokens": row, "tags": [label(row, i) for i in range(12)]} for row in rows]
    path.write_text("".join(json.dumps(row) + "\n" for row in labelled))
    return str(path)


@pytest.mark.slow
def test_a_probe_is_the_logistic_regression_of_scikit_learn():
    linear_model = pytest.importorskip("sklearn.linear_model")
    generator = np.random.default_rng(0)
    x = generator.normal(size=(300, 6)) * [1, 2, 3, 1, 1, 0] + 5
    y = (x[:, :3] + generator.normal(size=(300, 3))).argmax(axis=1)
    probe = Probe(torch.from_numpy(x), torch.from_numpy(y), 3, 0.02)
    scale = np.where(x.std(axis=0) < 1e-9, 1, x.std(axis=0))
    peer = linear_model.LogisticRegression(C=1 / (0.02 * 300), tol=1e-8, max_iter=2000).fit(
        (x - x.mean(axis=0)) / scale, y
    )
    np.testing.assert_allclose(probe.weight.numpy(), peer.coef_, atol=1e-4)
    bias = probe.bias.numpy() - probe.bias.numpy().mean()
    np.testing.assert_allclose(bias, peer.intercept_ - peer.intercept_.mean(), atol=1e-4)


def test_the_gradient_of_a_probe_is_zero_at_its_optimum():
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(80, 5, generator=generator), torch.randint(4, (80,), generator=generator)
    probe = Probe(x, y, 4, 0.1)
    error = probe.logits(x).softmax(dim=-1) - torch.eye(4, dtype=torch.float64)[y]
    gradient = error.T @ ((x.double() - probe.mean) / probe.scale) / 80 + 0.1 * probe.weight
    assert gradient.abs().max() < 1e-5 and error.mean(dim=0).abs().max() < 1e-5


def test_control_labels_and_baselines_are_by_type():
    types, labels = ["a", "b", "a", "c", "b", "d"], np.array([0, 1, 0, 1, 0, 1])
    control = control_labels(types, labels, 0)
    assert control[0] == control[2] and control[1] == control[4]
    many = control_labels([str(i) for i in range(4000)], np.array([0, 0, 0, 1]), 0)
    assert many.mean() == pytest.approx(0.25, abs=0.03)
    held_out = np.array([False, False, False, False, True, True])
    assert majority_by_type(types, labels, held_out) == (0.5, 0.0)


def test_probes_find_the_layer_that_holds_a_label(induction, tmp_path):
    own = letters_file(tmp_path / "own.jsonl", lambda row, i: "early" if row[i] < "j" else "late")
    found = Probes(labels=own).look(induction, "")
    assert [layer.accuracy for layer in found.layers[:2]] == [1, 1] and found.by_type == 1
    before = letters_file(tmp_path / "before.jsonl", lambda row, i: "early" if i and row[i - 1] < "j" else "late")
    found = Probes(labels=before).look(induction, "")
    embedding, first, _ = found.layers
    (picture,) = found.pictures()
    assert picture.panels["accuracy, held out"]["accuracy"] == [layer.accuracy for layer in found.layers]
    assert picture.figure().axes
    assert embedding.accuracy < 0.75 and first.accuracy > 0.97 and found.by_type < 0.7
    assert first.selectivity == first.accuracy - first.control
    assert found.trained + found.held_out == 720 and found.of == "word" and found.labels == 2
    assert found.held_out == 12 * found.held_out_documents


def test_activations_are_those_of_the_trace(trained_gpt, tmp_path):
    run = bytelm.load_run(trained_gpt)
    texts = ["import os", "def path(self):", "return x", "if True:\n    pass"] * 10
    rows = [{"text": f"{text} {i // 7}", "label": i % 2, "document": i // 2} for i, text in enumerate(texts)]
    (tmp_path / "texts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_labelled(run, tmp_path / "texts.jsonl", 35)
    assert found.kind == "text" and found.names == ("0", "1") and len(found.labels) == 35
    for place in (0, 21, 34):
        expected = run.trace(rows[place]["text"])["blocks.0.hook_resid_post"][0].mean(dim=0)
        torch.testing.assert_close(found.layers["0"][place], expected, rtol=1e-4, atol=1e-5)
    held_out = {row["document"] for row, out in zip(rows, found.held_out, strict=False) if out}
    assert all((row["document"] in held_out) == out for row, out in zip(rows, found.held_out, strict=False))
    words = [{"words": text.split(), "tags": ["x", "y"]} for text in ("import os", "return x")] * 5
    words = [{**row, "document": i} for i, row in enumerate(words)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in words))
    found = read_labelled(run, tmp_path / "words.jsonl", 100)
    expected = run.trace("import os")["blocks.0.hook_resid_post"][0, -1]
    torch.testing.assert_close(found.layers["0"][1], expected, rtol=1e-4, atol=1e-5)
    assert found.types[:2] == ["import", "os"] and found.labels[:2].tolist() == [0, 1]


def test_an_encoder_is_probed_at_the_first_token_of_a_word(trained_bert, tmp_path):
    run = bytelm.load_run(trained_bert)
    rows = [{"tokens": ["self", "importlib"], "tags": ["x", "y"], "document": i} for i in range(12)]
    (tmp_path / "words.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    found = read_labelled(run, tmp_path / "words.jsonl", 100)
    states, first = run.trace("self importlib")["blocks.0.hook_resid_post"][0], len(run.ids("self")) - 2
    torch.testing.assert_close(found.layers["0"][:2], states[[1, 1 + first]], rtol=1e-4, atol=1e-5)
    assert Probes(labels=str(tmp_path / "words.jsonl")).look(run, "").layers[0].accuracy == 1


def test_files_that_do_not_fit_are_named(trained_gpt, tmp_path):
    run = bytelm.load_run(trained_gpt)
    (tmp_path / "empty.jsonl").write_text("")
    (tmp_path / "few.jsonl").write_text('{"text": "a", "label": 0}\n{"text": "b", "label": 1}\n')
    (tmp_path / "several.jsonl").write_text('{"text": "a", "labels": ["x", "y"]}\n' * 3)
    for words, options in {
        "give a file of labelled words or texts with `labels`": {},
        "which does not exist": {"labels": str(tmp_path / "missing.jsonl")},
        "is empty": {"labels": str(tmp_path / "empty.jsonl")},
        r"2 documents of .* are read, too few to hold out a fifth": {"labels": str(tmp_path / "few.jsonl")},
        "several labels for each text": {"labels": str(tmp_path / "several.jsonl")},
        "`probe_penalty` is 0": {"labels": "x", "probe_penalty": 0.0},
    }.items():
        with pytest.raises(ValueError, match=words):
            bytelm.inspect(run, instruments="probes", **options)
