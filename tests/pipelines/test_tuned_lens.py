"""The tuned lens: what it learns of a model whose last layer is a known affine map, and how its training ends."""

import math

import pytest
import torch
import torch.nn.functional as F  # noqa: N812

import bytelm
from lm.introspection.lens import lens_logits
from lm.introspection.tuned_lens import LensTraining, TunedLens
from pipelines.inspection.bounded_training import train
from pipelines.inspection.instruments.tuned_lens import measured
from pipelines.inspection.own_text import OwnText
from tests.lm.introspection_cases import TINY, randomised, some_ids


def test_an_untrained_lens_is_the_logit_lens():
    model = randomised(TINY)
    lens, ids = TunedLens(model), some_ids(TINY, (1, 9))
    streams, final = lens.streams(model, {"ids": ids}, torch.ones(1, 9, dtype=torch.bool))
    *expected, last = (logits.log_softmax(dim=-1) for logits in lens_logits(model, ids[0]))
    torch.testing.assert_close(final, last)
    for layer, (x, one) in enumerate(zip(streams, expected, strict=True)):
        torch.testing.assert_close(lens.log_probabilities(model, x, layer).detach(), one)


def test_the_lens_learns_what_the_last_layer_adds_to_every_text():
    model = randomised(TINY)
    last = model.stack.blocks[-1]
    with torch.no_grad():
        last.attention.output.weight.zero_()
        last.mlp.down.weight.zero_()
        last.mlp.down.bias.normal_(std=2, generator=torch.Generator().manual_seed(0))
    lens = TunedLens(model)
    training = LensTraining(model, lens)
    rows = torch.ones(8, 20, dtype=torch.bool)
    draws = [torch.randint(23, (8, 20), generator=torch.Generator().manual_seed(i)) for i in range(121)]
    losses = [training.step({"ids": ids}, rows, i / 120) for i, ids in enumerate(draws[:120])]
    assert losses[-1] < losses[0]
    streams, final = lens.streams(model, {"ids": draws[-1]}, rows)
    with torch.no_grad():
        logit, tuned = (lens.log_probabilities(model, streams[-1], 1, tuned) for tuned in (False, True))
        known = model.logits(model.stack.final_norm(streams[-1] + last.mlp.down.bias + last.attention.output.bias))
    torch.testing.assert_close(known.log_softmax(dim=-1), final)
    before, after = (F.kl_div(one, final, reduction="batchmean", log_target=True).item() for one in (logit, tuned))
    assert before > 0.1 and after < before / 20
    assert not any(parameter.grad is not None for parameter in model.parameters())


def test_the_curves_are_those_of_the_validation_split(trained_gpt):
    run = bytelm.load_run(trained_gpt)
    found = bytelm.inspect(run, instruments="tuned_lens", steps=3, validation_tokens=200)["tuned_lens"][0]
    own = OwnText.of(run)
    batches = own.validation(200)
    ids, targets = (torch.from_numpy(part) for part in (batches[0].inputs, batches[0].targets))
    logits = [torch.stack(rows) for rows in zip(*(list(lens_logits(run.model, row)) for row in ids), strict=True)]
    final = logits[-1].double().log_softmax(-1)
    assert [layer.name for layer in found.layers] == ["embedding", "0"] and found.tokens == ids.numel()
    first = logits[0].double().log_softmax(-1)
    kl = (final.exp() * (final - first)).sum(-1).mean().item() / math.log(2)
    assert found.layers[0].logit_kl_bits == pytest.approx(kl, rel=1e-4)
    for layer, one in zip(found.layers, (first, final), strict=True):
        surprisal = F.nll_loss(one.flatten(0, 1), targets.flatten()).item() / math.log(2)
        assert layer.logit_next_bits == pytest.approx(surprisal, rel=1e-4)
    assert found.layers[-1].tuned_kl_bits == 0 and found.layers[0].tuned_kl_bits < found.layers[0].logit_kl_bits
    assert found.layers[0].logit_kl_bits == measured(run.model, TunedLens(run.model), batches)[0][0].tuned_kl_bits
    assert found.steps == 3 and found.trained_tokens == 3 * 512
    (picture,) = found.pictures()
    drawn = picture.panels["KL, bits per token"]
    assert drawn["tuned lens"] == [layer.tuned_kl_bits for layer in found.layers]
    assert len(picture.figure().axes) == 2


def test_a_text_shows_the_words_of_both_lenses_and_the_lens_is_trained_once(trained_gpt):
    run, texts = bytelm.load_run(trained_gpt), ("import os\n", "def path():")
    (found,) = bytelm.inspect(run, texts, instruments="tuned_lens", steps=30, validation_tokens=200)["tuned_lens"]
    assert [one.text for one in found.texts] == list(texts)
    for text, one in zip(texts, found.texts, strict=True):
        plain = run.lens(text)
        assert one.tokens == plain.tokens
        for layer, expected in zip(one.logit, plain.layers, strict=True):
            assert (layer.name, layer.words) == (expected.name, expected.words)
            assert layer.probabilities == pytest.approx(expected.probabilities, rel=1e-4)
        assert one.tuned[-1] == one.logit[-1] and one.tuned[0] != one.logit[0]
    tables, pictures = found.parts()[2:], found.pictures()
    first = found.texts[0]
    assert [one.title for one in tables] == [f"logit lens / tuned lens, text {number}" for number in (1, 2)]
    both = f"{first.logit[0].words[-1]} / {first.tuned[0].words[-1]}"
    assert tables[0].rows[-1] == (first.tokens[-1], [both, first.logit[-1].words[-1]])
    assert [one.title for one in pictures[1:]] == [f"{k} lens, text {n}" for n in (1, 2) for k in ("Logit", "Tuned")]
    assert pictures[2].words == [layer.words for layer in first.tuned]


def test_training_ends_at_its_bounds_and_on_an_interrupt():
    assert train("x", lambda done: done, steps=7, seconds=60) == 7
    assert train("x", lambda done: done, steps=7, seconds=math.inf) == 7
    assert train("x", lambda done: done, steps=10**9, seconds=0.01) < 10**9
    seen = []

    def step(done):
        seen.append(done)
        if len(seen) == 4:
            raise KeyboardInterrupt
        return 0.0

    assert train("x", step, steps=8, seconds=60) == 3
    assert seen == [0, 1 / 8, 2 / 8, 3 / 8]


def test_options_and_runs_that_do_not_fit_are_named(trained_gpt, trained_bert):
    for words, options in {
        "`steps` is 0": {"steps": 0},
        "`seconds` is 0": {"seconds": 0.0},
        "`validation_tokens` is 0": {"validation_tokens": 0},
    }.items():
        with pytest.raises(ValueError, match=words):
            bytelm.inspect(trained_gpt, instruments="tuned_lens", **options)
    with pytest.raises(ValueError, match="the tuned lens needs a decoder"):
        bytelm.inspect(trained_bert, instruments="tuned_lens")
