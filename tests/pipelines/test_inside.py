"""The report's page on the inside of a model: attention, circuits and embedding."""

import copy
import re
from dataclasses import replace

import numpy as np
import pytest
import torch

from lm.introspection.attention_maps import attention_maps
from lm.introspection.circuits import token_ov_circuit, token_qk_circuit
from lm.model import LanguageModel
from pipelines.reporting.introspection import look_inside
from pipelines.reporting.introspection_plots import (
    draw_attention,
    draw_circuits,
    draw_embedding,
    draw_paths,
    draw_scores,
)
from pipelines.reporting.token_labels import KINDS, TokenLabels
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.verbs.report import report


@pytest.fixture(scope="module")
def gpt(trained_gpt):
    run = Run(trained_gpt)
    return run, load_trained(run).model


def test_a_decoder_shows_attention_circuits_and_embedding(gpt):
    inside = look_inside(*gpt)
    (attention,) = inside.attention
    layers, heads, rows, columns = attention.weights.shape
    assert (layers, heads) == (1, 2)
    assert rows == columns == len(attention.queries) == len(attention.keys)
    np.testing.assert_allclose(attention.weights.sum(axis=-1), 1.0, rtol=1e-5)
    assert all(scores.shape == (1, 2) for scores in inside.scores.values())
    assert set(inside.scores) == {"previous token", "duplicate token", "induction", "copying"}
    assert inside.embedding.coordinates.shape == (512, 2)
    copying = inside.scores["copying"]
    assert copying[inside.circuits.layer, inside.circuits.head] == copying.max()
    assert inside.paths is None


def test_circuits_between_words_are_those_of_their_embeddings(gpt):
    run, model = gpt
    inside, tok = look_inside(run, model), run.tokenizer()
    circuits = inside.circuits
    ids = torch.tensor([tok.encode(each.word.replace("·", " "))[0] for each in circuits.words])
    assert len(ids) == 12
    ov = token_ov_circuit(model, circuits.layer, circuits.head, ids, ids)
    np.testing.assert_allclose(circuits.ov, ov.numpy())
    here, back = (token_qk_circuit(model, circuits.layer, circuits.head, ids, ids, distance=d) for d in (0, 1))
    scales = (model.embedding.weight[ids].double().square().mean(dim=-1) + model.config.norm_eps).sqrt()
    np.testing.assert_allclose(np.diff(circuits.qk), np.diff(back.numpy() / scales.numpy(force=True)), atol=1e-12)
    assert not torch.allclose(here, back)  # positions are rotary
    assert draw_circuits(circuits).startswith("<svg")


def test_a_token_with_a_zero_embedding_does_not_break_the_circuits(gpt):
    run, model = gpt
    padded = copy.deepcopy(model)
    with torch.no_grad():
        padded.embedding.weight[run.tokenizer().special_tokens["<|pad|>"]] = 0.0
    circuits = look_inside(run, padded).circuits
    assert np.isfinite(circuits.qk).all()
    assert len({tuple(each.attended) for each in circuits.words}) > 1


def test_a_plot_is_no_taller_for_a_short_source(gpt):
    (attention,) = look_inside(*gpt).attention
    short = replace(attention, keys=attention.keys[:2], weights=attention.weights[..., :2])
    heights = [float(re.search(r'height="([\d.]+)pt"', draw_attention(each))[1]) for each in (attention, short)]
    assert heights[1] < 1.5 * heights[0]


def test_logits_of_a_one_layer_attention_only_model_are_shown_path_by_path(gpt):
    run, model = gpt
    alone = LanguageModel(replace(model.config, mlp=False), seed=3).eval()
    paths = look_inside(run, alone).paths
    assert paths.names == ["direct", "head 0", "head 1"]
    ids = torch.tensor([excerpt_ids(run, paths)])
    with torch.no_grad():
        logits = alone.logits(alone(ids))[0, :-1]
    raised = logits.gather(-1, ids[0, 1:, None])[:, 0] - logits.mean(dim=-1)
    np.testing.assert_allclose(paths.terms.sum(axis=0), raised.numpy(), rtol=1e-4, atol=1e-5)
    assert (np.abs(paths.terms).max(axis=1) > 0).all()
    assert "direct" in draw_paths(paths)


def excerpt_ids(run, paths):
    """Return the ids of the labels in `paths`."""
    labels = TokenLabels(run.tokenizer())
    places = {label: place for place, label in enumerate(labels.at(range(len(labels.ids))))}
    return [labels.ids[places[label]] for label in [*paths.tokens, paths.following[-1]]]


def test_the_excerpt_is_validation_text(gpt, trained_gpt):
    run, model = gpt
    from pipelines.dataset.reader import TokenDataset

    tok = run.tokenizer()
    text = tok.decode(TokenDataset(run.data).split("validation").read(0, 10**6).tolist())
    shown = "".join(look_inside(run, model).attention[0].queries)
    assert shown.replace("⏎", "\n").replace("·", " ").replace("→", "\t") in text


def test_an_encoder_reads_its_excerpt_between_its_special_tokens(trained_bert):
    run = Run(trained_bert)
    inside = look_inside(run, load_trained(run).model)
    (attention,) = inside.attention
    assert attention.queries[0] == "<|cls|>"
    assert attention.queries[-1] == "<|sep|>"
    assert attention.weights[..., 0, 1:].max() > 0  # later positions are visible
    assert "copying" not in inside.scores
    assert inside.circuits is None


def test_an_encoder_decoder_shows_the_attention_of_each_stack_on_a_text_without_spans(trained_t5):
    run = Run(trained_t5)
    inside = look_inside(run, load_trained(run).model)
    encoder, decoder, cross = inside.attention
    assert encoder.queries == encoder.keys == cross.keys
    assert decoder.queries == decoder.keys == cross.queries
    assert "<|sentinel_0|>" in encoder.keys
    assert "<|sentinel_0|>" in decoder.queries
    assert encoder.keys[-1] == "<|endoftext|>"
    for each in inside.attention:
        assert each.weights.shape[2:] == (len(each.queries), len(each.keys))
        np.testing.assert_allclose(each.weights.sum(axis=-1), 1.0, rtol=1e-5)
        assert draw_attention(each).startswith("<svg")
    assert (np.triu(decoder.weights[0, 0], 1) == 0).all()
    assert inside.scores is inside.circuits is inside.paths is None


def test_an_encoder_decoder_of_pairs_shows_a_pair(trained_translator):
    run = Run(trained_translator)
    from pipelines.dataset.pair_dataset import PairDataset

    pairs, tok = PairDataset(run.data).split("validation"), run.tokenizer()
    encoder, decoder, _ = look_inside(run, load_trained(run).model).attention
    known = [
        (tok.decode(source.tolist()), tok.decode(target.tolist()))
        for source, target in zip(pairs.sources, pairs.targets, strict=True)
    ]
    source, target = ("".join(labels).replace("·", " ") for labels in (encoder.keys[:-1], decoder.queries[1:]))
    assert any(one.startswith(source) and other.startswith(target) for one, other in known)


def test_without_the_dataset_the_excerpt_is_random_tokens(gpt, monkeypatch):
    run, model = gpt
    monkeypatch.setitem(run.facts, "data", "/nowhere")
    inside = look_inside(run, model)
    (attention,) = inside.attention
    assert len(attention.keys) == attention.weights.shape[-1]


def test_the_same_run_has_the_same_inside(gpt):
    first, second = look_inside(*gpt), look_inside(*gpt)
    np.testing.assert_array_equal(first.attention[0].weights, second.attention[0].weights)
    np.testing.assert_array_equal(first.embedding.coordinates, second.embedding.coordinates)
    assert first.circuits.words == second.circuits.words
    assert draw_embedding(first.embedding) == draw_embedding(second.embedding)


def test_tokens_are_sorted_by_kind(tmp_path):
    from tokenizer import Tokenizer

    tok = Tokenizer.train([" word word words 2024 2024 ?? ??\n\n\n\n"] * 5, vocab_size=300)
    labels = TokenLabels(tok)
    shown = {KINDS[kind] for kind in labels.kinds()}
    assert shown == set(KINDS)
    kinds = dict(zip(labels.pieces, (KINDS[kind] for kind in labels.kinds()), strict=True))
    assert kinds[b" word"] == "word, after a space"
    assert kinds[b"or"] == "letters"
    assert kinds[b"7"] == "digits"
    assert kinds[b"?"] == "punctuation"
    assert kinds[b"\n"] == "white space"
    assert kinds[b"\xff"] == "part of a character"
    assert kinds[b"<|endoftext|>"] == "special"
    counts = np.bincount(tok.encode(" words words word"), minlength=tok.vocab_size)
    assert labels.at(labels.words(counts, 5))[:2] == ["·words", "·word"]


def test_words_are_found_in_any_script():
    from tokenizer import Tokenizer

    words = ("größer", "слова", "हिन्दी")
    tok = Tokenizer.train(["".join(f" {word} {word}2" for word in words) * 5], vocab_size=300, pattern="o200k")
    labels = TokenLabels(tok)
    shown = labels.at(labels.words(np.bincount(tok.encode(" слова"), minlength=tok.vocab_size), 99))
    assert shown[0] == "·слова" and {f"·{word}" for word in words} <= set(shown)
    assert all(label.startswith("·") and label[1:4].isalpha() for label in shown if "ह" not in label)


def test_labels_cannot_break_a_plot(gpt):
    (attention,) = look_inside(*gpt).attention
    tokens = ["<b>&", "$x^$", "日本", '"', *attention.queries[4:]]
    svg = draw_attention(replace(attention, queries=tokens, keys=tokens))
    for shown in ("&lt;b&gt;&amp;", "$x^$", "日本"):
        assert shown in svg


def test_a_large_model_shows_some_of_its_heads(gpt):
    (attention,) = look_inside(*gpt).attention
    many = replace(attention, weights=np.repeat(np.repeat(attention.weights, 40, axis=0), 8, axis=1))
    titles = re.findall(r"(\d+\.\d+)</text>", draw_attention(many))
    assert "0.0" in titles
    assert "39.15" in titles
    assert len(titles) == 12 * 12 + 6  # of the colour bar
    assert len(draw_scores({"induction": np.zeros((40, 16))})) < 100_000


def test_the_inside_can_be_left_out_of_the_page(trained_gpt, tmp_path):
    whole = report([trained_gpt], out=tmp_path / "whole.html").read_text(encoding="utf-8")
    short = report([trained_gpt], out=tmp_path / "short.html", inside=False).read_text(encoding="utf-8")
    for words in ("Inside the model", "Nearest tokens", "Kinds of heads", "which copies most"):
        assert words in whole
        assert words not in short
    assert len(whole) < 3_000_000


def test_looking_inside_does_not_change_the_run(gpt):
    _, model = gpt
    ids = torch.arange(20)[None]
    before = model(ids)
    attention_maps(model, ids)
    assert torch.equal(model(ids), before)
