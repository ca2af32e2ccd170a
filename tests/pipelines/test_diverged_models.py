"""Models with huge losses are evaluated to numbers that every JSON parser reads; those without numbers are named."""

import json
import math
import shutil

import pytest
import torch
from safetensors.torch import load_file, save

from pipelines.run.retention import latest_checkpoint
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.report import report
from tests.pipelines.training_cases import rewrite


def refuse(constant):
    raise AssertionError(f"{constant} is no JSON")


def strict(line):
    return json.loads(line, parse_constant=refuse)


def numbers_of(run):
    return strict((run / "evaluation.json").read_text())["splits"]["validation"]


@pytest.fixture
def scaled(tmp_path):
    """Return copy(run, factor): a copy of a run whose final norm is multiplied by `factor`."""

    def copy(run, factor):
        out = shutil.copytree(run, tmp_path / f"{run.name}-{factor}")
        (out / "evaluation.json").unlink(missing_ok=True)
        folder = latest_checkpoint(out)
        weights = load_file(folder / "model.safetensors")
        norms = ("head.norm.weight", "decoder.final_norm.weight")  # the last one before the logits
        norm = next(name for name in norms if name in weights)
        weights[norm] *= factor
        rewrite(folder, model=save(weights))
        return out

    return copy


@pytest.mark.parametrize("factor", [30, 1000])
def test_an_overconfident_model_has_numbers_that_any_parser_reads(in_process, scaled, trained_gpt, factor):
    run = scaled(trained_gpt, factor)
    done = in_process("evaluate", run, "--json", "--breakdown", "--against", trained_gpt)
    assert done.returncode == 0, done.stderr
    numbers = strict(done.stdout)["splits"]["validation"]
    assert numbers == numbers_of(run)
    assert 0 < numbers["kl_unigram_bits"] < math.inf
    assert 0 < numbers["kl_bits"] < numbers["reverse_kl_bits"] < math.inf
    nats = numbers["cross_entropy"]
    if nats < 709:
        assert numbers["perplexity"] == pytest.approx(math.exp(nats))
        assert "overflow" not in numbers
    else:
        assert numbers["perplexity"] is None
        assert numbers["overflow"] == ["perplexity"]
        assert numbers["intervals"]["perplexity"] == [None, None]
        low, high = numbers["intervals"]["cross_entropy"]
        assert 709 < low < nats < high


def test_the_scale_of_1000_overflows(scaled, trained_gpt):
    run = scaled(trained_gpt, 1000)
    assert evaluate(run).to_json()["splits"]["validation"]["overflow"] == ["perplexity"]


def test_a_perplexity_that_overflows_is_shown_as_a_power_of_e(in_process, scaled, trained_gpt):
    run = scaled(trained_gpt, 1000)
    done = in_process("evaluate", run)
    assert done.returncode == 0, done.stderr
    low, high = numbers_of(run)["intervals"]["cross_entropy"]
    powers = [f"e^{nats:,.1f}" for nats in (numbers_of(run)["cross_entropy"], low, high)]
    assert "{} ({} to {})".format(*powers) in done.stdout
    assert "A perplexity above 1.8e308 is written as a power of e" in done.stdout
    page = report([run])
    assert powers[0] in page.read_text()


def test_the_words_and_the_pseudo_perplexity_overflow_too(scaled, tmp_path, trained_gpt, trained_bert):
    text = tmp_path / "words.txt"
    text.write_text("Wholly unforeseeable sesquipedalian vocabulary, zyxwvut. " * 40)
    [numbers] = evaluate(scaled(trained_gpt, 3000), corpus=(str(text),), unit="word").to_json()["splits"].values()
    assert numbers["overflow"] == ["perplexity", "word_perplexity", "word_perplexity_with_line_ends"]
    nats = numbers["cross_entropy"] * numbers["tokens"] / numbers["words"]
    assert numbers["word_cross_entropy"] == pytest.approx(nats)
    numbers = evaluate(scaled(trained_bert, 3000)).to_json()["splits"]["validation"]
    assert numbers["pseudo_perplexity"] is None
    assert numbers["pseudo_cross_entropy"] > 709
    assert "pseudo_perplexity" in numbers["overflow"]


def test_a_text_scored_by_an_overconfident_model_is_json(in_process, scaled, trained_gpt):
    run = scaled(trained_gpt, 1000)
    done = in_process("score", run, "zyxwvut sesquipedalian", "--json")
    assert done.returncode == 0, done.stderr
    totals = strict(done.stdout)["totals"]
    assert totals["perplexity"] is None
    assert -totals["log_probability_nats"] / totals["tokens"] > 709
    done = in_process("score", run, "zyxwvut sesquipedalian")
    assert f"perplexity e^{-totals['log_probability_nats'] / totals['tokens']:,.1f}" in done.stdout


def broken(run, out):
    shutil.copytree(run, out)
    (out / "evaluation.json").unlink(missing_ok=True)
    folder = latest_checkpoint(out)
    weights = load_file(folder / "model.safetensors")
    weights["embedding.weight"][5] = torch.nan
    rewrite(folder, model=save(weights))
    return out


@pytest.mark.parametrize("place", [0, 1])
def test_a_model_without_numbers_is_named_and_the_other_run_is_evaluated(in_process, tmp_path, trained_gpt, place):
    good = shutil.copytree(trained_gpt, tmp_path / "good")
    (good / "evaluation.json").unlink(missing_ok=True)
    bad = broken(trained_gpt, tmp_path / "bad")
    runs = [good, bad] if place else [bad, good]
    done = in_process("evaluate", *runs)
    assert done.returncode == 1
    sentence = f"bytelm evaluate: {bad}: the model's logits are not finite: its training diverged, choose an earlier"
    assert sentence in done.stderr and "Traceback" not in done.stderr
    assert "cross-entropy, bits per token" in done.stdout
    assert numbers_of(good)["tokens"] > 0
    assert not (bad / "evaluation.json").exists()
    done = in_process("evaluate", *runs, "--json")
    assert [strict(line)["run"] for line in done.stdout.splitlines()] == ["good"]
    assert done.returncode == 1


@pytest.mark.parametrize("tokenizer", ["the same", "another"])
def test_a_run_keeps_its_numbers_if_the_run_to_compare_with_has_none(
    in_process, tmp_path, trained_gpt, wordpiece_run, tokenizer
):
    good = shutil.copytree(trained_gpt, tmp_path / "good")
    (good / "evaluation.json").unlink(missing_ok=True)
    bad = broken(trained_gpt if tokenizer == "the same" else wordpiece_run, tmp_path / "bad")
    done = in_process("evaluate", good, "--against", bad)
    assert done.returncode == 1
    assert f"bytelm evaluate: {bad}: the model's logits are not finite" in done.stderr
    assert "Traceback" not in done.stderr
    assert f"validation: perplexity {numbers_of(good)['perplexity']:,.2f}" in done.stdout
    assert "difference" not in numbers_of(good) and "kl_bits" not in numbers_of(good)
    saved = strict((good / "evaluation.json").read_text())
    assert saved["measured"]["validation"]["against"] is None
    with pytest.raises(ValueError, match=f"{bad}: the model's logits are not finite"):
        evaluate(good, against=bad)
    assert numbers_of(good)["tokens"] > 0
