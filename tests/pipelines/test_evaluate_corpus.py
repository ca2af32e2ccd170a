"""`evaluate --corpus` scores any corpus without a dataset, also per word."""

import lzma
import math
import shutil

import numpy as np
import pytest
import torch

from pipelines.evaluate import evaluate
from pipelines.evaluation.corpus_text import CorpusText
from pipelines.run.folder import Run
from pipelines.run.loading import load_trained

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
    """Return the total nats of the documents, and of the ends between them, from plain PyTorch."""
    model, tok = load_trained(Run(run)).model, Run(run).tokenizer()
    ids = [i for text in texts for i in (tok.special_tokens["<|endoftext|>"], *tok.encode_ordinary(text))]
    total = 0.0
    for start in range(0, len(ids) - 1, 32):
        block = torch.tensor(ids[start : start + 33])
        with torch.no_grad():
            logs = torch.log_softmax(model.logits(model(block[None, :-1])).double(), dim=-1)[0]
        total -= float(logs.gather(1, block[1:, None]).sum())
    return total


def test_all_documents_of_a_corpus_are_scored(run, corpus):
    numbers = evaluate(run, corpus=(str(corpus),))["splits"]["texts"]
    nats, size = nats_of(run, TEXTS), sum(len(text.encode()) for text in TEXTS)
    assert numbers["bytes"] == size
    assert numbers["bits_per_byte"] == pytest.approx(nats / math.log(2) / size, rel=1e-5)
    assert numbers["intervals"]["documents"] == len(TEXTS)
    assert numbers["unigram_cross_entropy_bits"] > 0


def test_words_are_the_texts_between_white_space(run, corpus):
    numbers = evaluate(run, corpus=(str(corpus),), unit="word")["splits"]["texts"]
    nats = nats_of(run, TEXTS)
    words, line_ends = sum(len(text.split()) for text in TEXTS), sum(text.count("\n") for text in TEXTS)
    assert (numbers["words"], numbers["line_ends"]) == (words, line_ends)
    assert numbers["word_perplexity"] == pytest.approx(math.exp(nats / words), rel=1e-4)
    assert numbers["word_perplexity_with_line_ends"] == pytest.approx(math.exp(nats / (words + line_ends)), rel=1e-4)


def test_a_corpus_with_its_own_splits_is_scored_split_by_split(run, tmp_path):
    for name in ("train", "valid", "test"):
        (tmp_path / f"book.{name}.txt").write_text(f"the text of {name} " * 20)
    names = (str(tmp_path / "book.*.txt"),)
    result = evaluate(run, corpus=names, splits=("validation", "test"))
    scored = [split for split in result["splits"] if split != "validation"]
    assert [split.split()[-1] for split in scored] == ["validation", "test"]
    assert [result["splits"][split]["bytes"] for split in scored] == [20 * len(b"the text of valid "), 20 * 17]
    assert result["measured"][scored[0]]["data"] == names[0]
    with pytest.raises(ValueError, match="has no split 'dev'; it has train, validation, test"):
        evaluate(run, corpus=names, splits=("dev",))


def test_a_corpus_is_scored_without_the_training_data(run, corpus, monkeypatch):
    monkeypatch.setattr(Run, "data", property(lambda run: run.folder / "gone"))
    numbers = evaluate(run, corpus=(str(corpus),))["splits"]["texts"]
    assert numbers["bits_per_byte"] > 0 and "unigram_cross_entropy_bits" not in numbers


def test_masked_models_read_the_blocks_of_a_corpus(tmp_path, trained_bert, corpus):
    bert = shutil.copytree(trained_bert, tmp_path / "bert")
    numbers = evaluate(bert, corpus=(str(corpus),))["splits"]["texts"]
    assert numbers["pseudo_perplexity"] > 1 and numbers["bits_per_byte"] is None


def test_the_test_split_of_wikitext_2_has_the_published_number_of_tokens(trained_gpt, shared):
    """245,569 words and line ends (Merity et al. 2017, table 1)."""
    path = shared / "corpora" / "wikitext2.test.txt.xz"
    (split,) = CorpusText([str(path)], Run(trained_gpt), 32, ("validation",)).splits.values()
    assert split.words + split.line_ends == 245_569
    text = lzma.decompress(path.read_bytes())
    assert split.recorded.sizes.tolist() == [len(text)]
    ids = split.stream.read(0, split.stream.tokens)
    tok = Run(trained_gpt).tokenizer()
    assert tok.decode_bytes(ids[1:].astype(np.int64)) == text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"unit": "word"}, "--unit word counts the words of a corpus: name one with --corpus"),
        ({"corpus": ("x",), "compressors": True}, "--compressors needs a training split"),
        ({"corpus": ("x",), "unit": "word", "min_context": 2}, "leave --min-context out"),
        ({"suffix": (".md",)}, "--suffix: for reading a corpus; name one with --corpus"),
        ({"corpus": ("x",), "data": "y"}, "--data and --corpus both name a text"),
    ],
)
def test_options_that_do_not_fit_a_corpus_are_refused(trained_gpt, options, message):
    with pytest.raises(ValueError, match=message):
        evaluate(trained_gpt, **options)


def test_other_files_are_read_by_their_suffix(run, tmp_path):
    (tmp_path / "notes.md").write_text("some words\n" * 20)
    numbers = evaluate(run, corpus=(str(tmp_path / "notes.md"),), suffix=(".md",))["splits"]["notes.md"]
    assert numbers["bytes"] == 220


def test_runs_on_pairs_take_no_corpus(trained_translator, corpus):
    with pytest.raises(ValueError, match="was trained on pairs, and --corpus names a text"):
        evaluate(trained_translator, corpus=(str(corpus),))
