"""`bytelm scale`: plans within a time, runs that branch off longer ones, and the law that is fitted to them."""

import json
import math
import re
from dataclasses import asdict, replace
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from corpora import open_corpus
from lm.costs import flops_per_token, meta_model
from lm.lora_config import LoraConfig
from lm.metrics.scaling_law import ScalingLaw, fit
from pipelines.dataset.reader import TokenDataset
from pipelines.recipes.recipe import load_recipe, save_config
from pipelines.run.checkpoint_reader import load_weights
from pipelines.run.folder import Run
from pipelines.scaling import preparation, scale_summary
from pipelines.scaling.picture import figure_of
from pipelines.scaling.plan import (
    EPOCHS,
    LEAST_SPAN,
    MULTIPLES,
    Family,
    Layout,
    Machine,
    ScaleRun,
    Text,
    affine_times,
    check_settings,
    filled,
    lay_out,
    on_device,
    record_settings,
    seconds_of,
    settings_of,
    text_settings,
)
from pipelines.scaling.preparation import Asked, plan_in_words, prepare
from pipelines.scaling.scale_summary import sentences, summarize
from pipelines.sweep.plan import Budget
from pipelines.sweep.vocabularies import held_out_documents
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.scale import scale, seconds_of_budget

LAYOUT = Layout((8, 16, 24, 32, 40), (2560, 2560, 1280, 1280, 1280), (1e-5,) * 5)
ENTRIES = 300


@pytest.fixture(scope="module")
def tiny(tmp_path_factory, small_recipe):
    """Return a recipe file of a decoder that takes 128 tokens a step."""
    path = tmp_path_factory.mktemp("recipe") / "tiny.toml"
    model = replace(small_recipe.model, dropout=0.0, context_length=16)
    save_config(path, replace(small_recipe, model=model, train=replace(small_recipe.train, batch_tokens=128)), {})
    return str(path)


@pytest.fixture(scope="module", autouse=True)
def few_draws():
    """Let a bootstrap draw 40 samples instead of 500."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scale_summary, "summarize", partial(summarize, draws=40))
        yield


@pytest.fixture(scope="module")
def scaled(tmp_path_factory, text_folder, tiny):
    """Return the folder of scaling runs with the layout LAYOUT, and their summary."""
    out = tmp_path_factory.mktemp("scale") / "out"
    out.mkdir()
    source, recipe = open_corpus(str(text_folder)), on_device(load_recipe(tiny), ENTRIES, "cpu", "float32")
    settings = settings_of(60.0, recipe, source.split_rule) | text_settings(held_out_documents(source))
    record_settings(out, settings | asdict(LAYOUT))
    return out, scale(str(text_folder), budget="1m", recipe=tiny, out=out, workers=1)


def results(folder):
    return [json.loads(path.read_text()) for path in sorted(folder.glob("results/*.json"))]


def run_names(folder):
    return {path.name for path in (folder / "runs").iterdir()}


def test_every_size_is_trained_on_three_amounts_of_text(scaled):
    out, summary = scaled
    expected = {(w, k * d) for w, d in zip(LAYOUT.widths, LAYOUT.tokens, strict=True) for k in MULTIPLES}
    assert {(run.width, run.tokens) for run in summary.runs} == expected
    assert [run.seed for run in summary.runs if (run.width, run.tokens) == (8, 2560)] == [0, 1, 2]
    assert json.loads((out / "results.json").read_text()) == json.loads(json.dumps(summary.to_json()))


def test_all_runs_have_the_learning_rate_that_was_best_at_the_smallest_size(scaled, tiny):
    out, summary = scaled
    assert summary.rate == float(min(summary.rates, key=summary.rates.get))
    recipe = load_recipe(tiny)
    for result in results(out):
        assert result["lr"] == pytest.approx(recipe.train.lr * result["rate"] * recipe.model.width / result["width"])


@pytest.mark.parametrize(("optimizer", "factor"), [("adamw", 4), ("muon", 2)])
def test_narrow_models_get_the_higher_learning_rates_that_their_optimizer_needs(optimizer, factor):
    recipe = load_recipe("gpt-tiny")
    train = replace(recipe.train, optimizer=optimizer, muon_lr=recipe.train.muon_lr * (optimizer == "muon"))
    family = Family(replace(on_device(recipe, ENTRIES, "cpu", "float32"), train=train))
    narrow, wide = (family.recipe_of(ScaleRun(width, 10**6), 10**6).train for width in (32, 128))
    assert (narrow.lr, narrow.muon_lr) == pytest.approx((factor * train.lr, factor * train.muon_lr))
    assert (wide.lr, wide.muon_lr) == (train.lr, train.muon_lr)


@pytest.mark.parametrize("multiple", [1, 2])
def test_a_run_that_branches_off_ends_with_the_weights_of_one_that_trained_alone(scaled, tiny, tmp_path, multiple):
    out, summary = scaled
    run = ScaleRun(24, 1280 * multiple, summary.rate)
    family = Family(on_device(load_recipe(tiny), ENTRIES, "cpu", "float32"))
    recipe = family.recipe_of(run, 1280)
    pretrain(recipe, data=out / "vocabularies" / f"bpe-{ENTRIES}", out=tmp_path / "alone")
    weights = []
    for folder in (out / "runs" / run.name, tmp_path / "alone"):
        weights.append(load_weights(folder, Run(folder).settings)[1])
    assert weights[0].keys() == weights[1].keys()
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    trained = [record for record in Run(out / "runs" / run.name).metrics() if record["split"] == "train"]
    assert trained[-1]["tokens"] == run.tokens


def test_sizes_and_flops_count_weights_as_applied(scaled):
    out, _ = scaled
    for result in results(out):
        model = Run(out / "runs" / ScaleRun(*(result[name] for name in ScaleRun._fields)).name).recipe.model
        assert result["size"] == pytest.approx(flops_per_token(meta_model(model)) / 6)
        assert result["flops"] == pytest.approx(6 * result["size"] * result["tokens"])


def test_all_runs_are_measured_on_the_same_bytes(scaled):
    assert len({result["held_out_sha256"] for result in results(scaled[0])}) == 1


@pytest.mark.slow
def test_the_same_command_restores_a_lost_run_and_keeps_the_others(scaled, text_folder, tiny):
    out, summary = scaled
    lost = out / "results" / f"{ScaleRun(16, 5120, summary.rate).name}.json"
    times = {path.name: path.stat().st_mtime_ns for path in out.glob("results/*.json") if path != lost}
    lost.unlink()
    again = scale(str(text_folder), budget="60s", recipe=tiny, out=out, workers=1)
    assert again == summary
    assert {path.name: path.stat().st_mtime_ns for path in out.glob("results/*.json") if path != lost} == times


@pytest.mark.parametrize("budget", ["300h", "1h30m", "0.1s"])
def test_a_refusal_names_a_budget_that_is_accepted(tmp_path, budget):
    with pytest.raises(ValueError, match="another budget") as refusal:
        check_settings(tmp_path, {"budget": seconds_of_budget(budget), "vocabulary": 300}, {"budget": 60.0})
    (given,) = re.findall(r"`budget='(.*)'`", str(refusal.value))
    assert seconds_of_budget(given) == seconds_of_budget(budget)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"budget": "2m"}, "another budget: give `budget='60s'`"),
        ({"recipe": "gpt-tiny"}, "another recipe: give the same `recipe`"),
        ({"vocab_size": 320}, "another size of the vocabulary: give `vocab_size=300`"),
        ({"split": "tail:0.2"}, "another split: give the same `split`"),
    ],
)
@pytest.mark.parametrize("dry_run", [False, True])
def test_other_settings_are_refused_before_the_text_is_encoded(scaled, text_folder, tiny, given, message, dry_run):
    with pytest.raises(ValueError, match=message):
        scale(str(text_folder), **{"budget": "1m", "recipe": tiny, "out": scaled[0], "dry_run": dry_run, **given})
    assert [folder.name for folder in (scaled[0] / "vocabularies").iterdir()] == ["bpe-300"]


def test_a_dry_run_shows_the_plan_of_started_runs(scaled, text_folder, tiny, printed):
    assert scale(str(text_folder), budget="1m", recipe=tiny, out=scaled[0], dry_run=True) is None
    shown = printed.readouterr().out
    assert "would resume the runs" in shown and "BPE with 300 entries" in shown
    assert all(re.search(rf"^ *{width} ", shown, re.M) for width in LAYOUT.widths)


def test_the_vocabulary_of_an_interrupted_start_is_made_anew(text_folder, tiny, tmp_path, monkeypatch):
    sources = [open_corpus(str(text_folder), split=split) for split in ("tail:0.5", "tail:0.1")]
    asked = [Asked(load_recipe(tiny), source, "1m", 60.0, 0.0, ENTRIES, 1) for source in sources]
    monkeypatch.setattr(preparation, "_measured_layout", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        prepare(asked[0], tmp_path)
    monkeypatch.setattr(preparation, "_measured_layout", lambda *_: LAYOUT)
    work = prepare(asked[1], tmp_path)
    assert TokenDataset(work.data).info["corpus"]["split_rule"] == "tail:0.1"


def test_a_damaged_result_is_named(scaled, text_folder, tiny):
    path = next(scaled[0].glob("results/*.json"))
    content = path.read_text()
    path.write_text("{}")
    try:
        with pytest.raises(ValueError, match=f"{path.name} is damaged .* remove the file"):
            scale(str(text_folder), budget="1m", recipe=tiny, out=scaled[0])
    finally:
        path.write_text(content)


def test_the_pictures_show_runs_law_and_prediction(scaled):
    out, summary = scaled
    assert (out / "scaling.png").read_bytes().startswith(b"\x89PNG")
    assert "bits per byte, held out" in (out / "scaling.svg").read_text()
    loss, size = figure_of(summary, "title").axes
    drawn = sorted(y for line in loss.lines if line.get_marker() == "o" for y in line.get_ydata())
    assert drawn == sorted(run.bits_per_byte for run in summary.runs)
    assert size.get_ylabel() == "parameters as applied"


# Plans


def family_of(recipe="gpt-tiny"):
    return Family(on_device(load_recipe(recipe), 1024, "cpu", "float32"))


def machine_of(seconds, workers=2, family=None):
    """Return a machine of 30 GFLOP/s, on which a token takes 20 microseconds more."""
    family = family or family_of()
    return Machine(seconds, 10.0, lambda width: 2e-5 + 6 * family.size(width) / 3e10, workers)


@settings(max_examples=20)
@given(st.floats(600, 1e6), st.integers(1, 4), st.floats(1e5, 1e9))
def test_a_plan_takes_no_more_than_its_time_and_repeats_text_at_most_four_times(seconds, workers, tokens):
    family, text = family_of(), Text(round(tokens), 1e5)
    machine = machine_of(seconds, workers, family)
    layout = filled(family, lay_out(family, machine, text, "some time"), machine, text)
    assert seconds_of(layout, machine, text) <= seconds
    assert MULTIPLES[-1] * max(layout.tokens) <= EPOCHS * text.train
    assert len(layout.widths) == 5
    assert family.size(layout.widths[-1]) >= LEAST_SPAN * family.size(layout.widths[0])
    assert all(each % (5 * family.recipe.step_tokens) == 0 for each in layout.tokens)


def test_more_time_gives_larger_models_and_more_tokens():
    family, text = family_of(), Text(10**9, 1e5)
    layouts = [lay_out(family, machine_of(seconds, 2, family), text, "") for seconds in (1e3, 1e4, 1e5)]
    largest = [(layout.widths[-1], layout.tokens[-1]) for layout in layouts]
    assert largest == sorted(largest)
    assert len(set(largest)) == 3


def test_a_short_text_gets_small_models_whatever_the_time():
    family, text = family_of(), Text(200_000, 1e4)
    hours, days = (lay_out(family, machine_of(seconds, 2, family), text, "") for seconds in (1e4, 1e6))
    assert hours == days
    assert family.size(days.widths[-1]) < 2 * EPOCHS * text.train / 8


@pytest.mark.parametrize("seconds", [-5.0, 20.0])
def test_a_budget_that_is_too_small_is_refused_with_one_that_fits(seconds):
    family, text = family_of(), Text(10**8, 1e5)
    with pytest.raises(ValueError, match=r"`budget` is 20s, .* give at least `budget='\d+m'`") as error:
        lay_out(family, machine_of(seconds), text, "20s")
    enough = seconds_of_budget(str(error.value).partition("budget='")[2].partition("'")[0])
    assert lay_out(family, machine_of(enough - 10), text, "")


def test_a_text_that_the_longest_run_would_repeat_too_often_is_refused():
    with pytest.raises(ValueError, match="more than 4 times the text: give more text"):
        lay_out(family_of(), machine_of(1e4), Text(10_000, 1e4), "2h")


def test_a_plan_that_the_text_limits_says_so():
    family = family_of()
    unit = 5 * family.recipe.step_tokens
    for tokens, machine, limited in ((12 * unit - 1, machine_of(1e6), True), (10**8, machine_of(1e4), False)):
        text = Text(tokens, 1e4)
        layout = filled(family, lay_out(family, machine, text, ""), machine, text)
        said = "\n".join(plan_in_words(family, layout, machine, text))
        assert ("no run reads it more than 4 times" in said) == limited


def test_a_recipe_of_an_adapter_is_refused(tiny):
    recipe = replace(load_recipe(tiny), lora=LoraConfig(rank=2))
    with pytest.raises(ValueError, match="begin with random weights: remove it"):
        Family(recipe)
    with pytest.raises(ValueError, match="begin with random weights: remove it"):
        Budget(recipe, 1e12)


def test_times_of_sizes_lie_on_a_line_through_both_measurements():
    times = affine_times([1e5, 1e6], [3e-5, 12e-5])
    assert [times(1e5), times(1e6), times(2e6)] == pytest.approx([3e-5, 12e-5, 22e-5])
    faster = affine_times([1e5, 1e6], [1e-6, 12e-5])  # more than proportional: no negative time at 0
    assert 0 <= faster(0) <= faster(1e5)


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("45m", 2700), ("2h", 7200), ("1h30m", 5400), ("1.5H", 5400), (" 2m5s ", 125)]
)
def test_budgets_are_times(text, seconds):
    assert seconds_of_budget(text) == seconds


@pytest.mark.parametrize("text", ["", "2", "0m", "-2h", "h", "2h30", "1e3s", "30m2h", "٢h", "nan"])
def test_other_budgets_are_refused(text):
    with pytest.raises(ValueError, match="must be a time above 0 such as 90s"):
        seconds_of_budget(text)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"recipe": "bert-tiny"}, "objective masked-token, which has no bits per byte"),
        ({"workers": 0}, "`workers` is 0"),
        ({"vocab_size": 0}, "`vocab_size` is 0"),
        ({"split": "none"}, "leaves no validation text"),
    ],
)
def test_bad_arguments_are_refused_before_any_work(text_folder, tmp_path, given, message):
    with pytest.raises(ValueError, match=message):
        scale(str(text_folder), **{"budget": "1h", "out": tmp_path / "out", **given})
    assert not (tmp_path / "out").exists()


def test_a_folder_of_something_else_is_refused(text_folder, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no scaling runs"):
        scale(str(text_folder), budget="1h", out=tmp_path)


# Summaries


def made_results(law, noise=()):
    """Return results of five sizes and three numbers of tokens with the losses of a law, and of three seeds."""
    found = []
    for width, size in zip((16, 32, 64, 128, 256), (1e5, 2e5, 4e5, 8e5, 1.6e6), strict=True):
        for multiple in MULTIPLES:
            tokens = round(multiple * 3.2e6 * math.sqrt(1.6e6 / size))
            loss = law.loss(size, tokens) + (noise[len(found)] if len(noise) else 0.0)
            same = {"width": width, "size": size, "tokens": tokens, "flops": 6 * size * tokens, "epochs": tokens / 1e7}
            found.append({**same, "bits_per_byte": loss, "seed": 0, "rate": 1.0})
    return found, [found[0], *({**found[0], "seed": seed} for seed in (1, 2))]


LAW = ScalingLaw(1.0, 30.0, 0.3, 60.0, 0.3)


def test_a_summary_of_exact_losses_has_the_law_and_what_follows_from_it():
    found, seeds = made_results(LAW)
    summary = summarize(found, seeds, found[:1], draws=40)
    assert {name: each.value for name, each in summary.law.items()} == pytest.approx(vars(LAW), rel=1e-6)
    largest = summary.held_out
    assert (largest.run.size, largest.run.tokens) == (1.6e6, 12_800_000)
    assert largest.predicted.value == pytest.approx(largest.run.bits_per_byte, rel=1e-9)
    for best in summary.best:
        assert best.size.value == pytest.approx(LAW.best_size(best.flops), rel=1e-6)
        assert 6 * best.size.value * best.tokens.value == pytest.approx(best.flops)
        assert best.bits_per_byte.value == pytest.approx(LAW.loss(best.size.value, best.tokens.value))
    assert summary.doubling.value == pytest.approx(LAW.loss(1e6, 1e7) - LAW.loss(1e6, 2e7))
    assert summary.entropy_is_identified
    assert "not a measured entropy" in str(summary)


def test_the_largest_run_is_predicted_without_it():
    found, seeds = made_results(LAW, torch.randn(15, generator=torch.Generator().manual_seed(0)).numpy() * 0.01)
    summary = summarize(found, seeds, found[:1], draws=40)
    others = [*found[:-1], *seeds[1:]]
    law = fit(*([each[name] for each in others] for name in ("size", "tokens", "bits_per_byte")))
    assert summary.held_out.predicted.value == pytest.approx(law.loss(1.6e6, 12_800_000))
    changed = summarize([*found[:-1], {**found[-1], "bits_per_byte": 9.0}], seeds, found[:1], draws=40)
    assert changed.held_out.predicted == summary.held_out.predicted
    assert "outside the 95 % interval" in str(changed)


def test_an_entropy_that_the_runs_do_not_identify_is_not_printed_as_one():
    found, seeds = made_results(LAW, torch.randn(15, generator=torch.Generator().manual_seed(1)).numpy() * 0.05)
    summary = summarize(found, seeds, found[:1], draws=40)
    assert not summary.entropy_is_identified
    assert "do not read it as the entropy of the text" in str(summary)


def test_a_law_at_a_bound_recommends_no_size():
    found, seeds = made_results(ScalingLaw(1.0, 0.0, 0.3, 60.0, 0.3), [1e-4 * (i // 3) for i in range(15)])
    summary = summarize(found, seeds, found[:1], draws=40)
    assert "size_factor" in summary.at_bounds
    assert any("A at a bound of the fit" in line for line in sentences(summary))
    assert summary.best[0].size.value == 0
    json.dumps(summary.to_json(), allow_nan=False)


def test_the_end_of_a_search_is_said():
    found, seeds = made_results(LAW)
    search = [{**found[0], "rate": rate, "bits_per_byte": 3 - rate} for rate in (0.5, 1.0)]
    assert "The highest rate tried is the best" in str(summarize(found, seeds, search, draws=40))


def test_a_law_that_does_not_describe_the_runs_is_said():
    found, seeds = made_results(LAW, [0.1 * (-1) ** i for i in range(15)])
    seeds = [{**seed, "bits_per_byte": seed["bits_per_byte"] + 0.001 * seed["seed"]} for seed in seeds]
    summary = summarize(found, seeds, found[:1], draws=10)
    assert "so the law does not describe these runs" in str(summary)
    exact, seeds = made_results(LAW)
    seeds = [{**seed, "bits_per_byte": seed["bits_per_byte"] + 0.001 * seed["seed"]} for seed in seeds]
    assert "does not describe" not in str(summarize(exact, seeds, exact[:1], draws=10))
