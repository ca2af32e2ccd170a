"""`evaluate --corpus` scores any corpus without a dataset, also per word."""

import lzma
import math
import shutil
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lm.metrics.intervals import interval, resampled_sums
from pipelines.dataset.reader import TokenStream
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.evaluation.decoded_text import stream_text
from pipelines.evaluation.documents import text_of_stream
from pipelines.evaluation.measurements.words import words_and_line_ends
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.pretrain import pretrain
from tokenizer import Tokenizer

SPACES = [chr(code).encode() for code in (9, 10, 11, 28, 31, 32, 0x85, 0xA0, 0x1680, 0x2003, 0x2028, 0x3000)]
TEXTS = [f"Ärger und  Freude {i},\nund noch {'mehr ' * (i % 5)}\n" for i in range(40)]


@pytest.fixture
def corpus(tmp_path):
    """Return a folder of 40 documents."""
    folder = tmp_path / "texts"
    folder.mkdir()
    for i, text in enumerate(TEXTS):
        (folder / f"{i:02}.txt").write_text(text)
    return folder


@pytest.fixture
def run(tmp_path, trained_gpt):
    return shutil.copytree(trained_gpt, tmp_path / "gpt")


def nats_of(run, texts):
    """Return the nats of each document, with the end token before it, from plain PyTorch."""
    model, tok = load_trained(Run(run)).model, Run(run).tokenizer()
    rows = [[tok.special_tokens["<|endoftext|>"], *tok.encode_ordinary(text)] for text in texts]
    ids = torch.tensor([i for row in rows for i in row])
    blocks = torch.nn.functional.pad(ids, (0, -(len(ids) - 1) % 32)).unfold(0, 33, 32)
    nats = [torch.zeros(1)]  # the first token is not predicted
    for part in blocks.split(256):
        with torch.no_grad():
            logs = torch.log_softmax(model.logits(model(part[:, :-1])).double(), dim=-1)
        nats.append(-logs.gather(-1, part[:, 1:, None]).flatten())
    nats = torch.cat(nats)[: len(ids)].numpy()
    return np.add.reduceat(nats, np.cumsum([0, *map(len, rows[:-1])]))


def test_all_documents_of_a_corpus_are_scored(run, corpus):
    numbers = evaluate(run, corpus=(str(corpus),)).to_json()["splits"]["texts"]
    nats, size = nats_of(run, TEXTS).sum(), sum(len(text.encode()) for text in TEXTS)
    assert numbers["bytes"] == size
    assert numbers["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert numbers["intervals"]["documents"] == len(TEXTS)
    assert numbers["unigram_cross_entropy_bits"] > 0


def test_words_are_the_texts_between_white_space(run, corpus):
    numbers = evaluate(run, corpus=(str(corpus),), unit="word").to_json()["splits"]["texts"]
    nats = nats_of(run, TEXTS).sum()
    words, line_ends = sum(len(text.split()) for text in TEXTS), sum(text.count("\n") for text in TEXTS)
    assert (numbers["words"], numbers["line_ends"]) == (words, line_ends)
    assert numbers["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-4)
    assert numbers["word_perplexity_with_line_ends"] == pytest.approx(math.exp(nats / (words + line_ends)), rel=1e-4)


def test_the_perplexity_per_word_has_an_interval_over_documents(run, corpus):
    found = evaluate(run, corpus=(str(corpus),), unit="word").to_json()["splits"]["texts"]
    counts = np.array([[len(text.split()), text.count("\n")] for text in TEXTS])
    columns = [nats_of(run, TEXTS), counts[:, 0], counts.sum(axis=1)]
    nats, words, with_line_ends = resampled_sums(np.stack(columns, axis=1)).T
    for key, count in (("word_perplexity", words), ("word_perplexity_with_line_ends", with_line_ends)):
        assert found["intervals"][key] == pytest.approx(np.exp(interval(nats / count)), rel=1e-4)
        assert found["intervals"][key][0] < found[key] < found["intervals"][key][1]


PIECES = st.one_of(st.binary(max_size=3), st.text(max_size=3).map(str.encode), st.sampled_from(SPACES))


@given(st.lists(st.lists(PIECES, min_size=1).map(b"".join).filter(len), min_size=1), st.data())
def test_words_and_line_ends_are_found_where_they_begin(tokenizer_folder, documents, data):
    """For any cut into tokens; no word spans two documents."""
    tok = Tokenizer.load(tokenizer_folder)
    end = tok.special_tokens["<|endoftext|>"]
    rows = [[end, *tok.encode_ordinary(document)] for document in documents]
    stream = TokenStream([np.array([i for row in rows for i in row], np.uint16)], 32)
    text = text_of_stream(stream, tok, end)
    words, line_ends = words_and_line_ends(b"".join(documents), text)
    for number, document in enumerate(documents):
        inside = text.document == number
        assert words[inside].sum() == len(document.decode(errors="replace").split())
        assert line_ends[inside].sum() == document.count(b"\n")
    token = data.draw(st.integers(0, stream.tokens - 1))
    begun = b"".join(tok.token_bytes(int(i)) for i in stream.read(0, token + 1) if i != end)
    assert line_ends[: token + 1].sum() == begun.count(b"\n")


def test_a_corpus_with_its_own_splits_is_scored_split_by_split(run, tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"book.{name}.txt").write_text(f"the text of {name} " * 20)
    names = (str(tmp_path / "book.*.txt"),)
    result = evaluate(run, corpus=names, splits=("validation", "test"))
    scored = [split for split in result.splits if split != "validation"]
    assert [split.split()[-1] for split in scored] == ["validation", "test"]
    assert [result.splits[split].bytes for split in scored] == [20 * len(b"the text of valid "), 20 * 17]
    assert result.splits[scored[0]].measured.data == names[0]
    with pytest.raises(ValueError, match="has no split 'dev'; it has train, validation, test"):
        evaluate(run, corpus=names, splits=("dev",))


def test_a_corpus_is_scored_after_the_training_data_was_deleted(tmp_path, small_recipe, dataset_folder, corpus):
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    recipe = replace(small_recipe, train=replace(small_recipe.train, tokens=2560))
    pretrain(recipe, data=data, out=tmp_path / "gpt")
    shutil.rmtree(data)
    numbers = evaluate(tmp_path / "gpt", corpus=(str(corpus),)).to_json()["splits"]["texts"]
    assert numbers["bits_per_byte"] > 0 and "unigram_cross_entropy_bits" not in numbers


def test_masked_models_read_the_blocks_of_a_corpus(tmp_path, trained_bert, corpus):
    bert = shutil.copytree(trained_bert, tmp_path / "bert")
    numbers = evaluate(bert, corpus=(str(corpus),)).to_json()["splits"]["texts"]
    assert numbers["pseudo_perplexity"] > 1 and numbers["bits_per_byte"] is None


def test_the_pseudo_perplexity_is_of_whole_blocks_only(tmp_path, trained_bert):
    bert, text = shutil.copytree(trained_bert, tmp_path / "bert"), tmp_path / "text.txt"
    text.write_text("x y " * 10)
    tokens = len(Run(bert).tokenizer().encode(text.read_text()))
    length = Run(bert).recipe.model.context_length - 2
    assert length < tokens < 2 * length
    found = evaluate(bert, corpus=(str(text),)).splits["text.txt"]
    assert found.pseudo_tokens == length - 1  # the first token is a separator


def test_the_test_split_of_wikitext_2_has_the_published_number_of_tokens(trained_gpt, shared):
    """245,569 words and line ends (Merity et al. 2017, table 1)."""
    path, tok = shared / "corpora" / "wikitext2.test.txt.xz", Run(trained_gpt).tokenizer()
    (split,) = CorpusText([str(path)], Run(trained_gpt), 32, ("validation",)).splits.values()
    written = stream_text(split.stream, tok)
    assert written == lzma.decompress(path.read_bytes())
    text = text_of_stream(split.stream, tok, tok.special_tokens["<|endoftext|>"])
    assert sum(np.sum(counts) for counts in words_and_line_ends(written, text)) == 245_569


@pytest.mark.slow
def test_the_perplexity_per_word_of_wikitext_2_follows_its_definition(run, shared):
    path = shared / "corpora" / "wikitext2.test.txt.xz"
    numbers = evaluate(run, corpus=(str(path),), unit="word").to_json()["splits"][path.name]
    text = lzma.decompress(path.read_bytes()).decode()
    assert (numbers["words"], numbers["bytes"]) == (len(text.split()), len(text.encode()))
    assert numbers["words"] + numbers["line_ends"] == 245_569
    (nats,) = nats_of(run, [text])
    assert numbers["word_perplexity_with_line_ends"] == pytest.approx(math.exp(nats / 245_569), rel=1e-4)
    low, high = numbers["intervals"]["word_perplexity_with_line_ends"]
    assert low < numbers["word_perplexity_with_line_ends"] < high


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "word"}, "`unit='word'` counts the words of a corpus: name one with `corpus`"),
        ({"corpus": ("x",), "compressors": True}, "`compressors` needs a training split"),
        ({"corpus": ("x",), "unit": "word", "min_context": 2}, "leave `min_context` out"),
        ({"suffix": (".md",)}, "`suffix`: for reading a corpus; name one with `corpus`"),
        ({"corpus": ("x",), "data": "y"}, "`data` and `corpus` both name a text"),
    ],
)
def test_options_that_do_not_fit_a_corpus_are_refused(trained_gpt, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(trained_gpt, **options)


def test_other_files_are_read_by_their_suffix(run, tmp_path):
    (tmp_path / "notes.md").write_text("some words\n" * 20)
    numbers = evaluate(run, corpus=(str(tmp_path / "notes.md"),), suffix=(".md",)).to_json()["splits"]["notes.md"]
    assert numbers["bytes"] == 220


def test_runs_on_pairs_take_no_corpus(trained_translator, corpus):
    with pytest.raises(ValueError, match="was trained on pairs, and `corpus` names a text"):
        evaluate(trained_translator, corpus=(str(corpus),))
