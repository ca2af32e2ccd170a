"""Masks of training: words, other shares and units, a length warm-up, and the rule of all evaluations."""

import json
import unicodedata
from dataclasses import replace
from functools import cache

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer as HuggingFaceTokenizer

from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.planning import objective_of
from pipelines.run.folder import Run
from pipelines.training.batch_objectives import make_objective, sentence_stops, validation_batch
from pipelines.training.data import open_training_data
from pipelines.training.masking import WordStarts
from pipelines.training.mixture import Mixture
from pipelines.verbs.pretrain import pretrain
from tests.pipelines.training_cases import assert_same_run, stop_after, with_train
from tokenizer import Tokenizer

TEXT = "It wasn't the naïve café-owner, who said: “snow—fall 2,026 हिन्दी”\n\tdef word_count(self): return 7 中文 \n"
MASKED = {"masked_share": 0.4, "masked_unit": "span"}


@cache
def trained(kind):
    pattern = {"unigram": "keep-whitespace"}.get(kind)
    return Tokenizer.train([TEXT * 20], vocab_size=320 if kind == "bpe" else 90, pattern=pattern, kind=kind)


@settings(max_examples=60, deadline=None)
@given(text=st.one_of(st.text(max_size=40), st.lists(st.sampled_from(TEXT.split(" "))).map(" ".join)))
@pytest.mark.parametrize("kind", ["bpe", "characters"])
def test_a_token_continues_a_word_if_letters_meet_at_its_start(kind, text):
    """The oracle reads whole texts, so only tokens of whole characters can be held against it."""
    tok = trained(kind)
    ids = [token for token in tok.encode(text) if token not in tok.special_tokens.values()]
    spellings, starts = tok.decode_tokens_bytes(ids), WordStarts(tok)(np.array([ids], np.int64))[0]
    for number in range(1, len(ids)):
        try:
            before, after = (spelling.decode() for spelling in spellings[number - 1 : number + 1])
        except UnicodeDecodeError:
            continue
        meet = before[-1], after[0]
        assert starts[number] == (not all(unicodedata.category(character)[0] in "LMN" for character in meet))


@pytest.fixture(scope="module")
def wordpiece_peer(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wordpiece")
    trained("wordpiece").save(folder)
    return HuggingFaceTokenizer.from_file(str(folder / "tokenizer.json"))


@settings(max_examples=60, deadline=None)
@given(text=st.lists(st.sampled_from([*TEXT.split(), "returned", "countdown"])).map(" ".join))
def test_words_of_wordpiece_are_those_of_the_tokenizers_library(text, wordpiece_peer):
    encoding = wordpiece_peer.encode(text, add_special_tokens=False)
    words = np.array(encoding.word_ids)
    starts = WordStarts(trained("wordpiece"))(np.array([encoding.ids], np.int64).reshape(1, -1))[0]
    assert starts.tolist() == [number == 0 or words[number] != words[number - 1] for number in range(len(words))]


def test_unused_ids_do_not_change_the_words_and_sentences_of_a_vocabulary(tmp_path):
    tok = trained("bpe")
    tok.save(tmp_path)
    content = json.loads((tmp_path / "tokenizer.json").read_text())
    moved = tok.special_tokens["<|pad|>"]
    content["model"]["vocab"]["<|pad|>"] = tok.vocab_size + 3
    next(entry for entry in content["added_tokens"] if entry["id"] == moved)["id"] = tok.vocab_size + 3
    (tmp_path / "tokenizer.json").write_text(json.dumps(content))
    other = Tokenizer.load(tmp_path)
    assert other.vocab_size == tok.vocab_size + 4 and not other.ordinary[moved]
    ids = np.array([tok.encode(TEXT)])
    assert (WordStarts(other)(ids) == WordStarts(tok)(ids)).all()
    assert sentence_stops(other).tolist() == sentence_stops(tok).tolist()


def test_unigram_words_begin_at_their_marks():
    tok = trained("unigram")
    ids = np.array([tok.encode("the count was snow, the word")])
    pieces = [tok.id_to_token(token) for token in ids[0].tolist()]
    starts = WordStarts(tok)(ids)[0]
    assert [piece for piece, begins in zip(pieces, starts, strict=True) if piece.startswith("▁") and not begins] == []
    joined = "".join(("|" if begins else "") + piece for piece, begins in zip(pieces, starts, strict=True))
    assert [word for word in joined.replace("▁", "").split("|") if word] == [
        "the",
        "count",
        "was",
        "snow",
        ",",
        "the",
        "word",
    ]


@pytest.fixture(scope="module")
def bert_recipe(small_recipe):
    model = replace(small_recipe.model, architecture="encoder", context_length=34)
    return replace(small_recipe, objective="masked-token", model=model)


def test_whatever_was_trained_is_validated_and_evaluated_with_the_standard_masks(bert_recipe, dataset_folder, tmp_path):
    recipe = with_train(bert_recipe, tokens=640, length_start=8, **MASKED)
    pretrain(recipe, data=dataset_folder, out=tmp_path / "run")
    dataset, tok, run = TokenDataset(dataset_folder), Tokenizer.load(dataset_folder), Run(tmp_path / "run")
    stream = dataset.split("validation")
    standard = validation_batch(stream, make_objective("masked-token", 32, tok), 0, 8)
    evaluated = validation_batch(stream, objective_of(run, 32, tok), 0, 8)
    validated = next(
        iter(open_training_data(run.recipe, Mixture([dataset]), tok).validation(dataset.place.name, 256, 8))
    )
    for batch in (evaluated, validated):
        assert np.array_equal(batch.inputs, standard.inputs) and np.array_equal(batch.weights, standard.weights)


def test_the_share_falls_linearly_from_the_first_step_to_the_last(bert_recipe, dataset_folder):
    recipe = with_train(bert_recipe, tokens=32 * 1000, batch_tokens=32 * 400, masked_share=0.5, masked_share_end=0.1)
    data = open_training_data(recipe, Mixture([TokenDataset(dataset_folder)]), Tokenizer.load(dataset_folder))
    for done, share in ((0, 0.5), (16_000, 0.3), (32_000, 0.1)):
        weights = data.step(0, done).weights[:, 1:-1]
        assert weights.mean() == pytest.approx(share, abs=0.03)


@pytest.mark.parametrize("objective", ["next-token", "masked-token"])
def test_short_sequences_first_read_the_same_blocks(objective, bert_recipe, small_recipe, dataset_folder):
    recipe = bert_recipe if objective == "masked-token" else small_recipe
    recipe = with_train(recipe, tokens=6400, batch_tokens=96, length_start=8, length_share=0.1)
    data = open_training_data(recipe, Mixture([TokenDataset(dataset_folder)]), Tokenizer.load(dataset_folder))
    edges = 2 * (objective == "masked-token")
    whole = data.step(5, 640).targets
    for done, length in ((0, 8), (319, 8), (320, 16), (639, 16)):
        batch = data.step(5, done)
        assert batch.inputs.shape == (96 // length, length + edges)
        inner = slice(1, -1) if edges else slice(None)
        assert np.array_equal(batch.targets[:, inner].ravel(), whole[:, inner].ravel())
        assert data.size(5, done) == (3, 96)


def test_parts_of_a_block_have_masks_of_their_own(bert_recipe, dataset_folder):
    recipe = with_train(bert_recipe, batch_tokens=320, length_start=16)
    data = open_training_data(recipe, Mixture([TokenDataset(dataset_folder)]), Tokenizer.load(dataset_folder))
    weights = data.step(0, 0).weights
    assert len(np.unique(weights, axis=0)) > len(weights) // 2


def test_a_run_resumes_within_its_length_warm_up(bert_recipe, dataset_folder, tmp_path, monkeypatch):
    recipe = with_train(bert_recipe, tokens=1280, length_start=8, length_share=0.75, masked_unit="word")
    pretrain(recipe, data=dataset_folder, out=tmp_path / "whole")
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        stop_after(2, patch)
        pretrain(recipe, data=dataset_folder, out=tmp_path / "cut")
    assert Run(tmp_path / "cut").metrics()[-1]["tokens"] < 960
    pretrain(recipe, data=dataset_folder, out=tmp_path / "cut")
    assert_same_run(tmp_path / "cut", tmp_path / "whole")


@pytest.mark.parametrize(
    ("train", "words"),
    [
        ({"masked_share": 0.0}, "train.masked_share is 0.0, but must be above 0 and at most 1"),
        ({"masked_unit": "words"}, "train.masked_unit is 'words', but must be one of 'token', 'word', 'span'"),
        ({"length_share": 2.0}, r"train.length_share is 2.0, but must be in \[0, 1\]"),
    ],
)
def test_wrong_masks_and_lengths_are_refused(train, words, bert_recipe, dataset_folder, tmp_path):
    with pytest.raises(ValueError, match=words):
        pretrain(with_train(bert_recipe, **train), data=dataset_folder, out=tmp_path / "run")


def test_masks_of_a_model_without_masks_are_refused(small_recipe):
    with pytest.raises(ValueError, match=r"train\.masked_share is 0\.3, but the objective is 'next-token'"):
        with_train(small_recipe, masked_share=0.3)
