"""Training documents of a dataset can have random segmentations, which the seed and the document decide."""

import json
from collections import Counter

import numpy as np
import pytest
from scipy.stats import chi2_contingency

from corpora import open_corpus
from pipelines.dataset.pair_dataset import PairDataset
from pipelines.dataset.reader import TokenDataset
from pipelines.verbs.build_dataset import build_dataset
from tests.pipelines.test_blocks import files_of
from tokenizer import Tokenizer

WORD = "abcaab"
OPTIONS = {"unigram": {"alpha": 0.5}, "bpe": {"dropout": 0.4}}


@pytest.fixture(scope="module")
def documents(tmp_path_factory):
    """Return a file of 1,500 distinct documents that begin with WORD."""
    file = tmp_path_factory.mktemp("documents") / "numbers.jsonl"
    file.write_text("".join(json.dumps({"text": f"{WORD} {i}"}) + "\n" for i in range(1500)))
    return file


@pytest.fixture(scope="module")
def tokenizers(tmp_path_factory):
    """Return the folders of a Unigram and a BPE tokenizer."""
    folder = tmp_path_factory.mktemp("tokenizers")
    words = [WORD, "abc", "ab", "aab", "bca", "caa", "abcabc", "bc", "aa", *"0123456789"]
    for model, entries in (("unigram", 50), ("bpe", 268)):
        Tokenizer.train([" ".join(words * 5)], entries, kind=model).save(folder / model)
    return folder


@pytest.fixture(scope="module")
def sampled(tmp_path_factory, documents, tokenizers):
    """Return a folder with a dataset for each kind of tokenizer."""
    folder = tmp_path_factory.mktemp("sampled")
    for kind, options in OPTIONS.items():
        build_dataset(
            [str(documents)], tokenizer=tokenizers / kind, context_length=8, out=folder / kind, seed=3, **options
        )
    return folder


def ids_of_documents(folder, split):
    """Return the ids of each document of a dataset but the last, whose end may be cut off."""
    dataset = TokenDataset(folder)
    ids = dataset.split(split).read(0, 10**9)
    return [part[1:].tolist() for part in np.split(ids, np.flatnonzero(ids == dataset.info["separator"]))[1:-1]]


def texts_of(documents, split):
    return [text for batch in open_corpus([str(documents)]).batches(split) for text in batch.column(0).to_pylist()]


def first_word(tok, ids):
    """Return the ids of WORD at the start of a document."""
    return next(tuple(ids[:end]) for end in range(1, len(ids) + 1) if tok.decode(ids[:end]) == WORD)


@pytest.mark.parametrize("kind", OPTIONS)
def test_segmentations_of_documents_have_the_distribution_of_the_tokenizer(sampled, tokenizers, kind):
    tok = Tokenizer.load(tokenizers / kind)
    draw = {"unigram": tok.encode_sampled, "bpe": tok.encode_with_dropout}[kind]
    (strength,) = OPTIONS[kind].values()
    expected = Counter(tuple(draw(WORD, strength, seed)) for seed in range(4000))
    found = Counter(first_word(tok, ids) for ids in ids_of_documents(sampled / kind, "train"))
    likely = [ids for ids in expected if expected[ids] + found[ids] >= 20]
    assert len(likely) > 4
    assert chi2_contingency([[counts[ids] for ids in likely] for counts in (expected, found)]).pvalue > 1e-4


@pytest.mark.parametrize("kind", OPTIONS)
def test_sampled_documents_decode_to_their_text_and_validation_is_not_sampled(sampled, tokenizers, documents, kind):
    tok = Tokenizer.load(tokenizers / kind)
    train = ids_of_documents(sampled / kind, "train")
    assert list(map(tok.decode, train)) == texts_of(documents, "train")[: len(train)]
    texts, ids = texts_of(documents, "validation"), ids_of_documents(sampled / kind, "validation")
    assert ids == [tok.encode(text) for text in texts[: len(ids)]]
    assert len(ids) > 50


def test_the_files_depend_on_the_seed_but_not_on_threads_batches_shards_or_order(
    tmp_path, sampled, tokenizers, documents, monkeypatch
):
    options = {"tokenizer": tokenizers / "unigram", "context_length": 8, "alpha": 0.5}
    build_dataset([str(documents)], seed=4, out=tmp_path / "other", **options)
    assert files_of(tmp_path / "other")["train/data-00000-of-00001.arrow"] not in files_of(sampled / "unigram").values()
    monkeypatch.setattr("corpora.documents.BATCH_BYTES", 500)
    build_dataset([str(documents)], seed=3, threads=3, out=tmp_path / "same", **options)
    assert files_of(tmp_path / "same") == files_of(sampled / "unigram")
    build_dataset([str(documents)], seed=3, shard_size=5000, out=tmp_path / "shards", **options)
    sharded = TokenDataset(tmp_path / "shards")
    assert len(sharded.info["splits"]["train"]["shards"]) > 2
    assert sharded.info["sampling"] == {"alpha": 0.5, "seed": 3}
    assert ids_of_documents(tmp_path / "shards", "train") == ids_of_documents(sampled / "unigram", "train")
    (tmp_path / "reversed.jsonl").write_text("".join(reversed(documents.read_text().splitlines(keepends=True))))
    build_dataset([str(tmp_path / "reversed.jsonl")], seed=3, out=tmp_path / "reversed", **options)
    expected = set(map(tuple, ids_of_documents(sampled / "unigram", "train")))
    found = set(map(tuple, ids_of_documents(tmp_path / "reversed", "train")))
    assert len(found - expected) <= 3  # the ends of both streams are cut off


def test_a_sampled_dataset_has_its_own_fingerprint(tmp_path, sampled, tokenizers, documents):
    build_dataset([str(documents)], tokenizer=tokenizers / "unigram", context_length=8, out=tmp_path / "plain")
    plain, dataset = TokenDataset(tmp_path / "plain"), TokenDataset(sampled / "unigram")
    assert dataset.info["sampling"] == {"alpha": 0.5, "seed": 3}
    assert TokenDataset(sampled / "bpe").info["sampling"] == {"dropout": 0.4, "seed": 3}
    assert "sampling" not in plain.info
    assert dataset.fingerprint != plain.fingerprint
    assert dataset.info["corpus"] == plain.info["corpus"]
    assert (
        dataset.tokenizer_fingerprint == Tokenizer.load(sampled / "unigram").fingerprint == plain.tokenizer_fingerprint
    )


def test_a_long_document_is_sampled_in_pieces_and_decodes_to_its_text(tmp_path, tokenizers, documents, monkeypatch):
    text = " ".join(texts_of(documents, "train"))
    (tmp_path / "long.txt").write_text(f"{text}\n{text}\n")
    monkeypatch.setattr("pipelines.dataset.encoding.PIECE_BYTES", 1000)
    monkeypatch.setattr("pipelines.dataset.encoding.GROUP_BYTES", 8000)
    monkeypatch.setattr("tokenizer.document_blocks.SEARCHED_BYTES", 500)
    for kind, options in OPTIONS.items():
        data = tmp_path / kind
        build_dataset([str(tmp_path / "long.txt")], tokenizer=tokenizers / kind, context_length=8, out=data, **options)
        tok, stream = Tokenizer.load(tokenizers / kind), TokenDataset(data).split("train")
        assert f"{text}\n{text}".replace("\n", " ").startswith(
            tok.decode(stream.read(1, stream.tokens)).replace("\n", " ").rstrip()
        )


def test_pairs_are_sampled_on_both_sides(tmp_path):
    words = [(f"{WORD}{i}", f"{i}{WORD}") for i in range(300)]
    lines = [json.dumps({"en": source, "de": target}) + "\n" for source, target in words]
    (tmp_path / "words.jsonl").write_text("".join(lines))
    tok = Tokenizer.train([" ".join(sum(words, ()))], vocab_size=280)
    tok.save(tmp_path / "tok")
    options = {"pairs": ("en", "de"), "tokenizer": tmp_path / "tok", "split": "hash:0.2"}
    build_dataset([str(tmp_path / "words.jsonl")], out=tmp_path / "plain", **options)
    build_dataset([str(tmp_path / "words.jsonl")], out=tmp_path / "data", dropout=0.5, **options)
    plain, data = PairDataset(tmp_path / "plain"), PairDataset(tmp_path / "data")
    for side in ("sources", "targets"):
        for split, is_equal in (("train", False), ("validation", True)):
            one, other = (list(getattr(dataset.split(split), side)) for dataset in (plain, data))
            assert list(map(tok.decode, one)) == list(map(tok.decode, other))
            assert (list(map(list, one)) == list(map(list, other))) == is_equal
    assert data.info["sampling"] == {"dropout": 0.5, "seed": 0}


@pytest.mark.parametrize(
    ("kind", "options", "message"),
    [
        ("bpe", {"alpha": 0.1}, "only Unigram pieces have scores"),
        ("unigram", {"dropout": 0.1}, "dropout is for BPE"),
        ("unigram", {"alpha": -1.0}, "`alpha` is -1.0, but must be a number of at least 0"),
        ("bpe", {"dropout": 1.5}, "dropout must be a probability"),
        ("bpe", {"alpha": 0.1, "dropout": 0.1}, "only one of `alpha` and `dropout`"),
    ],
)
def test_options_that_do_not_fit_the_tokenizer_are_refused_at_once(tmp_path, tokenizers, kind, options, message):
    with pytest.raises(ValueError, match=message):
        build_dataset(["absent.txt"], tokenizer=tokenizers / kind, context_length=8, out=tmp_path / "data", **options)
    assert list(tmp_path.iterdir()) == []
