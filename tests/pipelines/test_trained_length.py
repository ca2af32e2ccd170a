"""`bytelm evaluate` with a longer context: losses are those of `transformers` and of plain loops."""

import json
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch

import bytelm
from lm.decoding.packed import prepare
from lm.decoding.state import DecodeState
from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.measurements.trained_length import beyond_trained_length
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_run, load_trained
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.generate import generate
from pipelines.verbs.pretrain import pretrain
from pipelines.verbs.report import report

TRAINED, LONG = 32, 128


@pytest.fixture(scope="module")
def gpt(trained_gpt, tmp_path_factory):
    """Return a copy of the run with evaluations at its own length and at four times this length."""
    folder = shutil.copytree(trained_gpt, tmp_path_factory.mktemp("long") / "gpt")
    evaluate(folder)
    for scaling in ("none", "linear", "ntk", "yarn"):
        evaluate(folder, context=LONG, rotary_scaling=scaling)
    return folder


@pytest.fixture(scope="module")
def long_evaluations(gpt):
    """Return the evaluations at four times the trained length by their scaling."""
    splits = load_run(gpt).run
    contents = json.loads((splits.folder / "evaluation.json").read_text())
    entries = [contents["splits"]["validation"], *(one["numbers"] for one in contents["earlier"])]
    return {entry["rotary_scaling"]: entry for entry in entries if entry["window"] == LONG}


def windows_of_text(dataset_folder):
    """Return the windows of LONG + 1 tokens of the validation split, (N, LONG + 1), if there are at most 64."""
    stream = TokenDataset(dataset_folder).split("validation")
    ids = torch.from_numpy(stream.read(0, stream.tokens).astype(np.int64))
    count = (len(ids) - 1) // LONG
    return torch.stack([ids[i * LONG : (i + 1) * LONG + 1] for i in range(count)])


def nats(logits, targets):
    return torch.nn.functional.cross_entropy(logits.double().transpose(1, 2), targets, reduction="none")


@pytest.mark.parametrize("scaling", ["none", "linear", "ntk", "yarn"])
def test_the_loss_at_every_position_is_that_of_transformers(gpt, long_evaluations, dataset_folder, tmp_path, scaling):
    transformers = pytest.importorskip("transformers")
    folder = tmp_path / "hf"
    export_hf(gpt, out=folder)
    config = transformers.AutoConfig.from_pretrained(folder)
    rope = {**config.rope_parameters, "original_max_position_embeddings": TRAINED}
    rope |= {"none": {}, "ntk": {"rope_type": "dynamic", "factor": 1.0}}.get(
        scaling, {"rope_type": scaling, "factor": LONG / TRAINED}
    )
    # `dynamic` compares with the trained length, the others only hold positions.
    config.max_position_embeddings = TRAINED if scaling == "ntk" else LONG
    config.rope_parameters = rope
    peer = transformers.AutoModelForCausalLM.from_pretrained(folder, config=config).eval()
    texts = windows_of_text(dataset_folder)
    chosen = np.sort(np.random.default_rng(0).choice(len(texts), min(len(texts), 64), replace=False))
    texts = texts[torch.from_numpy(chosen)]
    with torch.no_grad():
        expected = nats(peer(texts[:, :-1]).logits, texts[:, 1:])
    entry = long_evaluations[scaling]["beyond_trained_length"]
    assert entry["texts"] == len(texts)
    assert entry["curves"]["at once"]["loss_by_position"] == pytest.approx(expected.mean(0).tolist(), abs=1e-4)
    assert entry["curves"]["at once"]["loss_by_position_error"][70] == pytest.approx(
        float(expected[:, 70].std() / math.sqrt(len(texts))), rel=1e-3
    )


def test_windows_of_the_trained_length_score_each_token_in_the_first_window_that_predicts_it(
    gpt, long_evaluations, dataset_folder
):
    model = load_trained(Run(gpt)).model
    texts = windows_of_text(dataset_folder)
    chosen = np.sort(np.random.default_rng(0).choice(len(texts), min(len(texts), 64), replace=False))
    texts, losses = texts[torch.from_numpy(chosen)], []
    for position in range(LONG):
        # Windows start at multiples of 8, and the last one ends with the text.
        start = 0 if position < TRAINED else 8 * math.ceil((position - TRAINED + 1) / 8)
        with torch.no_grad():
            logits = model.logits(model(texts[:, start : position + 1])[:, -1:])
        losses.append(nats(logits, texts[:, position + 1 : position + 2]).mean().item())
    for entry in long_evaluations.values():  # the unscaled model reads the windows
        found = entry["beyond_trained_length"]["curves"]["in windows"]["loss_by_position"]
        assert found == pytest.approx(losses, abs=1e-4)
    at_once = long_evaluations["none"]["beyond_trained_length"]["curves"]["at once"]["loss_by_position"]
    assert at_once[:TRAINED] == pytest.approx(losses[:TRAINED], abs=1e-4)


def test_the_numbers_of_a_longer_context_stand_beside_those_of_the_trained_one(gpt, long_evaluations):
    assert set(long_evaluations) == {"none", "linear", "ntk", "yarn"}
    assert all(entry["trained_length"] == TRAINED for entry in long_evaluations.values())
    from pipelines.evaluation.results import Evaluation

    evaluation = Evaluation.read(gpt)
    main = evaluation.main(Run(gpt).facts["dataset_fingerprint"])
    assert (main.window, main.trained_length, main.rotary_scaling) == (TRAINED, None, None)
    assert evaluation.validation.rotary_scaling == "yarn"


def test_the_table_and_the_report_show_the_loss_by_position(gpt, capsys, tmp_path):
    with bytelm.show():
        evaluate(gpt, context=LONG, rotary_scaling="yarn")
    shown = capsys.readouterr().out
    assert "113 to 128" in shown and "33 to 128" in shown
    assert "Beyond 32 tokens, reading at once" in shown
    report(gpt, out=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text()
    assert "Beyond the trained length" in page and "at once, yarn" in page and "in windows" in page


def test_a_loaded_run_reads_a_longer_context_and_stays_as_it_is(gpt, long_evaluations):
    run = load_run(gpt)
    evaluation = run.evaluate(context=LONG, rotary_scaling="ntk").validation
    assert evaluation.cross_entropy == pytest.approx(long_evaluations["ntk"]["cross_entropy"], rel=1e-6)
    assert run.model.config.context_length == run.config.model.context_length == TRAINED


def test_estimates_are_means_over_texts_and_differences_from_windows():
    rng = np.random.default_rng(5)
    losses = {"at once": rng.normal(3.0, 0.1, (40, 64)), "in windows": rng.normal(3.2, 0.1, (40, 64))}
    found = beyond_trained_length(losses, 16)
    assert [(part.first, part.last) for part in found.parts_of_texts] == [
        *((1 + 8 * i, 8 + 8 * i) for i in range(8)),
        (17, 64),
    ]
    whole = found.parts_of_texts[-1]
    assert whole.loss["at once"][0] == pytest.approx(losses["at once"][:, 16:].mean() / math.log(2))
    by_text = (losses["at once"] - losses["in windows"])[:, 16:].mean(axis=1) / math.log(2)
    mean, low, high = whole.difference["at once"]
    assert mean == pytest.approx(by_text.mean())
    half = 1.96 * by_text.std() / math.sqrt(40)
    assert (low, high) == (pytest.approx(mean - half, rel=0.02), pytest.approx(mean + half, rel=0.02))
    assert "is better than reading in windows of 16 tokens" in found.parts()[-1]


def test_differences_of_few_texts_have_no_verdict():
    rng = np.random.default_rng(5)
    losses = {"at once": rng.normal(3.2, 0.1, (40, 64)), "in windows": rng.normal(3.0, 0.1, (40, 64))}
    assert "reading at once is worse than reading in windows" in beyond_trained_length(losses, 16).parts()[-1]
    few = beyond_trained_length({name: nats[:2] for name, nats in losses.items()}, 16).parts()[-1]
    assert "2 texts are too few for an interval" in few
    assert "worse" not in few and "95 %" not in few


def test_models_with_a_document_mask_give_the_reason(tmp_path, small_recipe, dataset_folder):
    """A window beyond the trained length holds several documents, which such a model never reads together."""
    recipe = replace(small_recipe, model=replace(small_recipe.model, document_mask=True))
    pretrain(replace(recipe, train=replace(recipe.train, tokens=256)), data=dataset_folder, out=tmp_path / "gpt")
    found = evaluate(tmp_path / "gpt", context=LONG).validation.beyond_trained_length
    assert "the model has a document mask and does not see earlier documents" in found.left_out


def test_learned_positions_are_refused_before_anything_is_measured(tmp_path, small_recipe, dataset_folder):
    recipe = replace(small_recipe, model=replace(small_recipe.model, positions="learned"))
    pretrain(replace(recipe, train=replace(recipe.train, tokens=256)), data=dataset_folder, out=tmp_path / "gpt")
    with pytest.raises(ValueError, match=r"gpt: `context` is 128, but the model has learned positions.*`init_from`"):
        evaluate(tmp_path / "gpt", context=LONG)
    assert not (tmp_path / "gpt" / "evaluation.json").exists()
    evaluate(tmp_path / "gpt", context=16)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"rotary_scaling": "yarn"}, "`rotary_scaling` is 'yarn', which is for a longer `context`: give both"),
        ({"context": 16, "rotary_scaling": "yarn"}, "give a longer `context`, such as 128"),
        ({"context": 0}, "`context` is 0: give at least 1"),
    ],
)
def test_options_that_do_not_fit_are_refused_by_name(trained_gpt, options, words):
    with pytest.raises(ValueError, match=words):
        evaluate(trained_gpt, **options)


def test_sinks_cost_what_the_predictions_of_generation_with_sinks_cost(gpt, dataset_folder):
    evaluate(gpt, context=LONG, sinks=4)
    entry = json.loads((gpt / "evaluation.json").read_text())["splits"]["validation"]["beyond_trained_length"]
    texts = windows_of_text(dataset_folder)
    chosen = np.sort(np.random.default_rng(0).choice(len(texts), min(len(texts), 64), replace=False))
    texts, model = texts[torch.from_numpy(chosen)], prepare(load_trained(Run(gpt)).model)
    state, losses = DecodeState(model, texts[:, :1], room=LONG, sinks=4), []
    for step in range(1, LONG + 1):
        losses.append(nats(state.logits().unsqueeze(1), texts[:, step : step + 1]).mean().item())
        state.append(texts[:, step])
    assert entry["curves"]["with 4 sinks"]["loss_by_position"] == pytest.approx(losses, abs=1e-4)
    first = entry["curves"]["without sinks"]["loss_by_position"][:TRAINED]
    assert first == pytest.approx(losses[:TRAINED], abs=1e-4)
    assert list(entry["parts_of_texts"][-1]["difference"]) == ["at once", "without sinks", "with 4 sinks"]


def test_generation_with_sinks_continues_beyond_the_context_and_repeats_with_its_seed(gpt):
    options = {"prompt": ["def"], "tokens": 3 * TRAINED, "seed": 3, "probabilities": True}
    first, second, without = (generate(gpt, sinks=sinks, **options)["steps"] for sinks in (4, 4, 0))
    assert first == second
    assert [step["probability"] for step in first[-9:]] != [step["probability"] for step in without[-9:]]
    several = generate(gpt, sinks=4, greedy=True, tokens=60, prompt=["def", "import os"])
    assert several == [generate(gpt, sinks=4, greedy=True, tokens=60, prompt=[each]) for each in ("def", "import os")]


@pytest.mark.parametrize(
    ("verb", "options", "words"),
    [
        (generate, {"sinks": TRAINED}, "`sinks` is 32, but must be from 0 to 31"),
        (generate, {"sinks": -1}, "`sinks` is -1"),
        (evaluate, {"sinks": 4}, "give a longer `context`, such as 128"),
        (evaluate, {"sinks": 40, "context": LONG}, "`sinks` is 40, but must be from 0 to 31"),
    ],
)
def test_sinks_that_do_not_fit_are_refused_by_name(trained_gpt, verb, options, words):
    with pytest.raises(ValueError, match=words):
        verb(trained_gpt, **options)
