"""Entropy calibration: the entropy on generated texts equals the closed form for the model's distribution."""

import itertools
import json
import math
import shutil

import numpy as np
import pytest
import torch

from corpora.synthetic import MarkovSource
from lm.config import ModelConfig
from lm.model import LanguageModel
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.measurements.entropy_calibration import entropy_calibration, half_octaves
from pipelines.verbs.evaluate import evaluate

SOURCE = MarkovSource(1, 6, seed=3, concentration=0.7)


def markov_model(source, context_length):
    """Return a decoder that predicts exactly the distributions of a Markov chain of order 1.

    Its blocks add nothing, so a hidden state depends on one token only.
    """
    config = ModelConfig(
        vocab_size=source.symbols,
        context_length=context_length,
        layers=1,
        width=32,
        heads=2,
        positions="none",
        bias=False,
        tied_head=False,
        zero_projections=True,
    )
    model = LanguageModel(config, seed=0).eval()
    with torch.no_grad():
        hidden = model(torch.arange(source.symbols)[:, None])[:, 0]
        logs = torch.from_numpy(np.log(source.table)).float()
        model.head.weight.copy_(torch.linalg.lstsq(hidden, logs).solution.T)
        found = torch.softmax(model.logits(hidden), dim=-1)
    assert found.numpy() == pytest.approx(source.table, abs=1e-4)
    return model


def stream_of(source, tokens, context_length):
    ids = source.sample(tokens, np.random.default_rng(1)).astype(np.uint16)
    return TokenStream([ids], context_length)


def test_a_model_of_the_source_has_the_entropy_rate_at_every_position():
    found = entropy_calibration(markov_model(SOURCE, 64), stream_of(SOURCE, 100_000, 64), 64, 600)
    for row in found.positions:
        size = (row.last - row.first + 1) * 600
        for column in ("generated", "validation"):
            assert getattr(row, column)[0] == pytest.approx(SOURCE.entropy_rate_bits, abs=6 / math.sqrt(size))
        low, high = row.difference[1:]
        assert low - 0.05 < 0 < high + 0.05
    whole = found.positions[-1]
    assert (whole.first, whole.last) == (1, 64)
    assert whole.generated[0] == pytest.approx(SOURCE.entropy_rate_bits, rel=0.01)


def test_a_model_of_another_source_drifts_to_its_own_entropy_rate():
    model_source = MarkovSource(1, 6, seed=5, concentration=0.7)
    found = entropy_calibration(markov_model(model_source, 64), stream_of(SOURCE, 100_000, 64), 64, 600)
    last = found.positions[-2]
    crossed = -(SOURCE.stationary[:, None] * SOURCE.table * np.log2(model_source.table)).sum()
    assert last.generated[0] == pytest.approx(model_source.entropy_rate_bits, rel=0.02)
    assert last.validation[0] == pytest.approx(crossed, rel=0.02)
    assert last.difference[0] == pytest.approx(model_source.entropy_rate_bits - crossed, rel=0.05)
    low, high = last.difference[1:]
    assert low < last.difference[0] < high < 0


def test_the_entropies_of_all_positions_add_up_to_the_entropy_of_all_texts():
    """Chain rule: the expected value is a sum over all 81 texts of a transformer with random weights."""
    config = ModelConfig(vocab_size=3, context_length=4, layers=2, width=16, heads=2, initialization="xavier")
    torch.manual_seed(0)
    model = LanguageModel(config, seed=0).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    stream = TokenStream([np.zeros(401, np.uint16)], 4)  # every text begins with token 0
    found = entropy_calibration(model, stream, 4, 3000)
    texts = torch.tensor([[0, *text] for text in itertools.product(range(3), repeat=4)])
    with torch.no_grad():
        logs = torch.log_softmax(model.logits(model(texts[:, :-1])).double(), dim=-1)
    own = logs.gather(-1, texts[:, 1:, None])[..., 0]
    joint = own.sum(dim=1).exp()
    assert float(joint.sum()) == pytest.approx(1, abs=1e-5)
    exact = [float(-(joint * own[:, position]).sum()) / math.log(2) for position in range(4)]
    rows = found.positions
    assert [(row.first, row.last) for row in rows] == [(1, 1), (2, 2), (3, 3), (4, 4), (1, 4)]
    for row, bits in zip(rows, [*exact, sum(exact) / 4], strict=True):
        assert row.generated[0] == pytest.approx(bits, abs=0.02)
        assert row.generated[1] - 0.01 <= bits <= row.generated[2] + 0.01
    assert max(exact) - min(exact) > 0.05


def test_more_texts_than_windows_do_not_narrow_the_interval_of_the_loss_on_real_text():
    model, windows = markov_model(SOURCE, 64), 30
    stream = stream_of(SOURCE, windows * 64 + 1, 64)
    once, often = (entropy_calibration(model, stream, 64, texts).positions[-1] for texts in (windows, 20 * windows))
    widths = [row.validation[2] - row.validation[1] for row in (once, often)]
    assert widths[1] == pytest.approx(widths[0], rel=0.2)


def test_the_first_position_and_the_real_text_need_no_generation(trained_gpt, dataset_folder, tmp_path):
    """All windows are drawn, so the means equal the loss by position over whole windows."""
    run = shutil.copytree(trained_gpt, tmp_path / "gpt")
    numbers = evaluate(run, entropy_calibration=10).to_json()["splits"]["validation"]
    windows = (numbers["tokens"]) // 32
    found = evaluate(run, entropy_calibration=windows).to_json()["splits"]["validation"]
    curve = np.array(numbers["curves"]["loss_by_position"]) / math.log(2)
    for row in found["entropy_calibration"]["positions"]:
        assert row["validation"][0] == pytest.approx(curve[row["first"] - 1 : row["last"]].mean(), rel=0.01)
    assert numbers["entropy_calibration"]["texts"] == 10
    assert evaluate(run, entropy_calibration=10).to_json()["splits"]["validation"] == numbers


def test_bins_are_half_octaves_up_to_the_window():
    assert half_octaves(1) == [(1, 1)]
    assert half_octaves(32) == [(1, 1), (2, 2), (3, 3), (4, 5), (6, 7), (8, 10), (11, 15), (16, 22), (23, 31), (32, 32)]
    for window in range(1, 300):
        covered = [p for first, last in half_octaves(window) for p in range(first, last + 1)]
        assert covered == list(range(1, window + 1))


def test_models_without_entropy_calibration_give_the_reason(tmp_path, trained_bert, trained_t5, trained_translator):
    for run, architecture in (
        (trained_bert, "encoder"),
        (trained_t5, "encoder-dec"),
        (trained_translator, "encoder-dec"),
    ):
        copy = shutil.copytree(run, tmp_path / run.parent.name / run.name)
        found = evaluate(copy, entropy_calibration=2, beams=0).to_json()["splits"]["validation"]["entropy_calibration"]
        assert found["positions"] is None and f"model's architecture is {architecture}" in found["left_out"]


@pytest.mark.parametrize("text", ["a b c", "x" * 40], ids=["less than a window", "one window"])
def test_a_split_shorter_than_two_windows_gives_the_reason(tmp_path, printed, trained_gpt, text):
    run = shutil.copytree(trained_gpt, tmp_path / "gpt")
    (tmp_path / "short.txt").write_text(text)
    found = evaluate(run, corpus=(str(tmp_path / "short.txt"),), entropy_calibration=2).splits["short.txt"]
    assert "longer than two windows" in found.entropy_calibration.left_out
    assert "short.txt: no entropy calibration: the split has" in " ".join(printed.readouterr().out.split())


def test_the_table_shows_intervals_and_the_definition(in_process, tmp_path, trained_gpt):
    run = shutil.copytree(trained_gpt, tmp_path / "gpt")
    done = in_process("evaluate", run, "--entropy-calibration", "4", "--explain")
    assert done.returncode == 0, done.stderr
    found = json.loads((run / "evaluation.json").read_text())["splits"]["validation"]["entropy_calibration"]
    value, low, high = found["positions"][-1]["difference"]
    assert f"{value:.3f} ({low:.3f} to {high:.3f})" in done.stdout and "1 to 32" in done.stdout
    assert "equal for a calibrated model" in " ".join(done.stdout.split())
    refused = in_process("evaluate", run, "--entropy-calibration", "1")
    assert refused.returncode != 0 and "--entropy-calibration is 1, but must be at least 2" in refused.stderr
