"""The inside of a model as the report shows it."""

import re
from dataclasses import replace

import numpy as np
import pytest

from lm.attention_maps import attention_maps
from lm.model import build_model
from pipelines.inside import KINDS, Vocabulary, look_inside
from pipelines.loading import load_trained
from pipelines.pictures import draw_attention, draw_embedding, draw_scores
from pipelines.report import report
from pipelines.training.run import Run


@pytest.fixture(scope="module")
def gpt(trained_gpt):
    run = Run(trained_gpt)
    return run, load_trained(run).model


def test_a_decoder_shows_attention_circuits_and_embedding(gpt):
    inside = look_inside(*gpt)
    layers, heads, rows, columns = inside.attention.maps.shape
    assert (layers, heads) == (1, 2)
    assert rows == columns == len(inside.attention.tokens)
    np.testing.assert_allclose(inside.attention.maps.sum(axis=-1), 1.0, rtol=1e-5)
    assert all(scores.shape == (1, 2) for scores in inside.attention.scores.values())
    assert set(inside.attention.scores) == {"previous token", "duplicate token", "induction", "copying"}
    assert inside.embedding.coordinates.shape == (512, 2)
    copying = inside.attention.scores["copying"]
    assert copying[inside.circuits.layer, inside.circuits.head] == copying.max()


def test_the_excerpt_is_validation_text(gpt, trained_gpt):
    run, model = gpt
    from pipelines.dataset import TokenDataset

    tok = run.tokenizer()
    text = tok.decode(TokenDataset(run.data).split("validation").read(0, 10**6).tolist())
    shown = "".join(look_inside(run, model).attention.tokens)
    assert shown.replace("⏎", "\n").replace("·", " ").replace("→", "\t") in text


def test_an_encoder_reads_its_excerpt_between_its_special_tokens(trained_bert):
    run = Run(trained_bert)
    inside = look_inside(run, load_trained(run).model)
    assert inside.attention.tokens[0] == "<|cls|>"
    assert inside.attention.tokens[-1] == "<|sep|>"
    assert inside.attention.maps[..., 0, 1:].max() > 0  # what comes later is seen
    assert "copying" not in inside.attention.scores
    assert inside.circuits is None


def test_an_encoder_decoder_shows_its_embedding(gpt):
    run, model = gpt
    both = build_model(replace(model.config, architecture="encoder-decoder"), seed=0)
    inside = look_inside(run, both)
    assert inside.attention is None
    assert len(inside.embedding.neighbours) > 0


def test_without_the_dataset_the_excerpt_is_random_tokens(gpt, monkeypatch):
    run, model = gpt
    monkeypatch.setitem(run.facts, "data", "/nowhere")
    inside = look_inside(run, model)
    assert len(inside.attention.tokens) == inside.attention.maps.shape[-1]


def test_the_same_run_has_the_same_inside(gpt):
    first, second = look_inside(*gpt), look_inside(*gpt)
    np.testing.assert_array_equal(first.attention.maps, second.attention.maps)
    np.testing.assert_array_equal(first.embedding.coordinates, second.embedding.coordinates)
    assert first.circuits == second.circuits
    assert draw_embedding(first.embedding) == draw_embedding(second.embedding)


def test_tokens_are_sorted_by_kind(tmp_path):
    from tokenizer import Tokenizer

    tok = Tokenizer.train([" word word words 2024 2024 ?? ??\n\n\n\n"] * 5, vocab_size=300)
    vocabulary = Vocabulary(tok)
    shown = {KINDS[kind] for kind in vocabulary.kinds()}
    assert shown == set(KINDS)
    kinds = dict(zip(vocabulary.pieces, (KINDS[kind] for kind in vocabulary.kinds()), strict=True))
    assert kinds[b" word"] == "word, after a space"
    assert kinds[b"or"] == "letters"
    assert kinds[b"7"] == "digits"
    assert kinds[b"?"] == "punctuation"
    assert kinds[b"\n"] == "white space"
    assert kinds[b"\xff"] == "part of a character"
    assert kinds[b"<|endoftext|>"] == "special"
    counts = np.bincount(tok.encode(" words words word"), minlength=tok.vocab_size)
    assert vocabulary.labels(vocabulary.words(counts))[:2] == ["·words", "·word"]


def test_labels_cannot_break_a_picture(gpt):
    inside = look_inside(*gpt)
    tokens = ["<b>&", "$x^$", "日本", '"', *inside.attention.tokens[4:]]
    svg = draw_attention(replace(inside.attention, tokens=tokens))
    for shown in ("&lt;b&gt;&amp;", "$x^$", "日本"):
        assert shown in svg


def test_a_large_model_shows_some_of_its_heads(gpt):
    inside = look_inside(*gpt)
    maps = np.repeat(np.repeat(inside.attention.maps, 40, axis=0), 8, axis=1)
    many = replace(inside.attention, maps=maps, scores={"induction": np.zeros((40, 16))})
    titles = re.findall(r"(\d+\.\d+)</text>", draw_attention(many))
    assert "0.0" in titles
    assert "39.15" in titles
    assert len(titles) == 12 * 12
    assert len(draw_scores(many)) < 100_000


def test_a_page_without_the_inside_can_be_had(trained_gpt, tmp_path):
    whole = report([trained_gpt], out=tmp_path / "whole.html").read_text(encoding="utf-8")
    short = report([trained_gpt], out=tmp_path / "short.html", inside=False).read_text(encoding="utf-8")
    for words in ("Inside the model", "Nearest tokens", "Kinds of heads", "which copies most"):
        assert words in whole
        assert words not in short
    assert len(whole) < 3_000_000


def test_looking_inside_leaves_no_trace(gpt):
    import torch

    _, model = gpt
    ids = torch.arange(20)[None]
    before = model(ids)
    attention_maps(model, ids)
    assert torch.equal(model(ids), before)
