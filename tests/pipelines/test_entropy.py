"""`bytelm entropy`: its numbers on known sources and real text, its page, and its behaviour on unusual input."""

import json
import re
import subprocess
import sys
from html.parser import HTMLParser
from itertools import pairwise

import numpy as np
import pytest
import zstandard

from corpora import open_corpus
from pipelines.evaluation.measurements.compressors import ppm_sizes
from pipelines.evaluation.symbols import one_alphabet, read_symbols, sample_of
from pipelines.verbs.entropy import entropy
from tests.conftest import BYTELM, PEAK_MEMORY
from tokenizer import Tokenizer

CARD = """
description = "A chain of order 1."
licence = "CC0-1.0 (generated)"
reader = "synthetic"
length = 4096

[source]
kind = "markov"
order = 1
symbols = 8
seed = 3
concentration = 0.5

[documents]
train = 256
validation = 16
"""
HOSTILE = {
    "one byte": b"a",
    "two bytes": b"ab",
    "one letter": b"a" * 50_000,
    "one word": b"word " * 5000,
    "only white space": b" \n" * 100,
    "every byte twice": bytes(range(256)) * 2,
    "random": np.random.default_rng(0).integers(0, 256, 100_000, dtype=np.uint8).tobytes(),
}


@pytest.fixture
def corpus(tmp_path):
    """Return a function that writes documents to a file and returns its name."""

    def write(*documents, name="text.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": document}) + "\n" for document in documents))
        return str(path)

    return write


def symbols_of(name, unit="bytes", tokenizer=None, **options):
    return read_symbols(open_corpus([name], split="none", **options), unit, tokenizer)


def test_numbers_of_a_synthetic_corpus_are_its_true_values(tmp_path):
    card = tmp_path / "chain.toml"
    card.write_text(CARD)
    numbers = entropy(str(card))
    assert numbers.symbols == numbers.bytes == 272 * 4096
    for row in numbers.ngrams:
        if row.coverage > 0.99:
            assert row.block == pytest.approx(row.true_block, rel=0.01)
            assert row.conditional == pytest.approx(row.true_conditional, rel=0.01)
    information = numbers.mutual_information
    beyond = np.subtract(information.text, information.shuffled)
    assert beyond == pytest.approx(information.true, rel=0.02, abs=3e-4)
    rate = numbers.entropy_rate
    assert rate.true == pytest.approx(numbers.ngrams[1].true_conditional)
    last = {name: values[-1] for name, values in rate.bits_per_byte.items()}
    assert last["match lengths, slope"] == pytest.approx(rate.true, rel=0.05)
    assert last["PPM of order 16"] == pytest.approx(rate.true, rel=0.15)
    for name in ("PPM of order 16", "xz -9", "zstd -19"):
        assert rate.true * 0.995 < last[name] < rate.true * 1.3


def test_every_unit_counts_its_symbols(corpus, tokenizer_folder):
    documents = ["naïve café", "日本語 text", "émigré"]
    name = corpus(*documents)
    text = "".join(documents)
    tok = Tokenizer.load(tokenizer_folder)
    ids = tok.encode_batch(documents)
    expected = {
        "bytes": (list(text.encode()), [len(document.encode()) for document in documents]),
        "characters": ([ord(letter) for letter in text], [len(document) for document in documents]),
        "tokens": ([token for each in ids for token in each], [len(each) for each in ids]),
    }
    for unit, (symbols, lengths) in expected.items():
        found = symbols_of(name, unit, tok)
        assert found.values[found.ids].tolist() == symbols, unit
        assert np.diff(found.offsets).tolist() == lengths, unit
        assert found.counts.tolist() == sorted(found.counts.tolist(), reverse=True)
        assert found.text.tobytes() == text.encode()
        assert found.bytes_per_symbol == pytest.approx(len(text.encode()) / len(symbols))


def test_tokens_and_characters_are_measured_from_end_to_end(text_folder, tokenizer_folder):
    by_unit = {
        unit: entropy(str(text_folder), unit=unit, tokenizer=folder, sample_bytes=100_000)
        for unit, folder in (("bytes", None), ("characters", None), ("tokens", tokenizer_folder))
    }
    texts, tokens = by_unit["bytes"], by_unit["tokens"]
    # The sources are ASCII but for a few letters, so that characters are nearly bytes.
    assert by_unit["characters"].ngrams[2].block == pytest.approx(texts.ngrams[2].block, rel=0.01)
    assert tokens.alphabet <= 512 < tokens.symbols < texts.symbols
    assert tokens.words.kind == "tokens" and tokens.words.count == tokens.symbols
    assert texts.entropy_rate == tokens.entropy_rate
    assert str(tokens).startswith(f"{tokens.corpus}: {tokens.symbols:,} tokens, {tokens.alphabet:,} different; H_1 ")


def test_the_table_says_how_much_of_a_large_alphabet_counts_as_one_symbol(printed, text_folder, tokenizer_folder):
    numbers = entropy(str(text_folder), unit="tokens", tokenizer=tokenizer_folder, sample_bytes=1_000_000)
    other = numbers.mutual_information.other
    assert other > 0.01
    assert (
        f"all but the 255 most frequent tokens count as one symbol, {other:.1%} of the text" in printed.readouterr().out
    )


def test_another_corpus_is_compared_in_one_alphabet(corpus, text_folder):
    first, second = corpus("abcabc", name="a.jsonl"), corpus("cdcd", name="b.jsonl")
    (ids, _), (other_ids, _) = one_alphabet(symbols_of(first), symbols_of(second))
    assert ids.tolist() == [0, 1, 2, 0, 1, 2]
    assert other_ids.tolist() == [2, 3, 2, 3]
    against = entropy(first, against=second).against
    assert against.unigrams.kl > 0 and against.bigrams.js > 0
    same = entropy(str(text_folder), against=str(text_folder), sample_bytes=1000).against
    assert [same.unigrams.kl, same.bigrams.kl] == [0, 0]


@pytest.mark.parametrize("name", HOSTILE)
def test_unusual_texts_give_finite_numbers_and_a_page(name, tmp_path, printed):
    path = tmp_path / "text.txt"
    path.write_bytes(HOSTILE[name])
    page = tmp_path / "page.html"
    numbers = entropy(str(path), invalid="bytes", out=page)
    json.dumps(numbers.to_json(), allow_nan=False)
    assert numbers.documents == 1
    assert len(numbers.ngrams) == min(8, len(HOSTILE[name]))
    assert "</html>" in page.read_text(encoding="utf-8")
    assert "nan" not in printed.readouterr().out
    if name in ("one byte", "one letter"):
        assert all(max(row.block, row.conditional) < 1e-12 for row in numbers.ngrams)
        assert not any(numbers.mutual_information.text)
        slope = numbers.entropy_rate.bits_per_byte["match lengths, slope"][-1]
        assert slope is None if name == "one byte" else slope < 0.001
        assert numbers.words.zipf is None
    if name == "every byte twice":
        assert numbers.ngrams[0].block == 8
    if name == "random":
        assert numbers.ngrams[0].block_miller_madow == pytest.approx(8, abs=1e-3)
        assert not numbers.ngrams[2].reliable


def test_many_documents_of_one_letter_have_no_pairs(corpus, printed):
    numbers = entropy(corpus(*"abcab"))
    assert "mutual information is left out: the documents have too few pairs" in printed.readouterr().out
    assert [row.n for row in numbers.ngrams] == [1]
    assert numbers.mutual_information.distances == []
    assert numbers.words.distinct == 3


def test_mistakes_are_one_sentence(in_process, corpus, tmp_path, tokenizer_folder):
    empty, invalid = tmp_path / "empty.txt", tmp_path / "invalid.txt"
    empty.write_bytes(b"")
    invalid.write_bytes(b"caf\xe9")
    for arguments, status, message in (
        ((empty,), 1, "is empty: no document in it has any text"),
        ((invalid, "--unit", "characters"), 1, "is not UTF-8 at byte 3"),
        ((invalid, "--unit", "characters", "--invalid", "bytes"), 1, "choose --invalid replace or skip"),
        ((corpus("a"), "--unit", "tokens"), 1, "--unit tokens and --tokenizer belong together"),
        ((corpus("a"), "--tokenizer", tokenizer_folder), 1, "--unit tokens and --tokenizer belong together"),
        ((corpus("a"), "--sample-bytes", "0"), 1, "--sample-bytes is 0"),
        ((corpus("a"), "--threads", "0"), 1, "threads must be a whole number"),
        ((corpus("a"), "--out", tmp_path), 1, "is a folder: name the file"),
        ((corpus("a"), "--against", "nothing-of-that-name"), 1, "nothing-of-that-name"),
        ((corpus("ü"), "--sample-bytes", "1"), 1, "has no bytes to count: raise --sample-bytes"),
        ((corpus("a"), "--against", corpus("ü"), "--sample-bytes", "1"), 1, "has no bytes to count"),
        ((), 2, "CORPUS"),
    ):
        done = in_process("entropy", *arguments)
        assert done.returncode == status, arguments
        assert message in done.stderr and done.stderr.count("\n") == 1, done.stderr
    replaced = in_process("entropy", invalid, "--unit", "characters", "--invalid", "replace", "--json")
    assert json.loads(replaced.stdout)["symbols"] == 4


@pytest.mark.parametrize(("package", "row"), [("pyppmd", "PPM of order 16"), ("pydivsufsort", "match lengths, slope")])
def test_without_an_extra_its_row_is_empty_and_the_rest_is_shown(package, row, in_process, corpus, monkeypatch):
    monkeypatch.setitem(sys.modules, package, None)
    done = in_process("entropy", corpus("some text " * 500))
    assert done.returncode == 0
    assert re.search(rf"^{row[:13]}.* -( |$)", done.stdout, re.MULTILINE)
    assert re.search(r"^zstd -19 +\d\.\d", done.stdout, re.MULTILINE)
    assert f"needs {package} (pip install 'bytelm[entropy]')" in done.stdout


def test_the_table_fits_80_columns_and_marks_unreliable_rows(in_process, text_folder):
    done = in_process("entropy", text_folder, "--sample-bytes", "100k", "--explain")
    table = done.stdout.partition("\ncoverage\n")[0]
    assert max(map(len, table.splitlines())) <= 80
    marked = re.findall(r"^(\d) .* %\*", table, re.MULTILINE)
    assert marked == [str(n) for n in range(int(marked[0]), 9)]
    assert "Miller" in done.stdout


def test_json_has_nothing_else_on_standard_output(in_process, text_folder):
    done = in_process("entropy", text_folder, "--json", "--sample-bytes", "50k")
    assert done.returncode == 0, done.stderr
    numbers = json.loads(done.stdout)
    assert numbers["entropy_rate"]["sizes"] == [16384, 50_000]
    again = json.loads(json.dumps(entropy(str(text_folder), sample_bytes=50_000).to_json()))
    assert numbers == again | {"seconds": numbers["seconds"]}
    assert "against" not in numbers and "true" not in numbers["mutual_information"]
    assert list(numbers["ngrams"][0])[-2:] == ["coverage", "reliable"]


class Page(HTMLParser):
    """The ids, links and labels of a page."""

    def __init__(self, text):
        super().__init__()
        self.ids, self.links, self.images, self.outside = [], [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids += [attributes["id"]] if "id" in attributes else []
        self.links += [attributes["href"]] if tag == "a" else []
        self.images += [attributes] if tag == "svg" else []
        self.outside += [attributes["src"]] if "src" in attributes else []


def test_the_page_is_self_contained_and_accessible(text_folder, tmp_path):
    out = tmp_path / "page.html"
    numbers = entropy(str(text_folder), against=str(text_folder), sample_bytes=200_000, out=out)
    text = out.read_text(encoding="utf-8")
    page = Page(text)
    assert len(set(page.ids)) == len(page.ids)
    assert all(link[1:] in page.ids for link in page.links)
    assert not page.outside
    assert len(page.images) == 5
    assert all(image["role"] == "img" and image["aria-labelledby"] in page.ids for image in page.images)
    assert f"{numbers.ngrams[0].block:.4f}" in text
    assert "prefers-color-scheme: dark" in text
    for definition in ("Block entropy in bits", "Kontoyiannis", "Good 1953"):
        assert definition in text


def test_a_sample_is_of_whole_documents_and_always_the_same(corpus):
    text = symbols_of(corpus(*(f"<{number}>" for number in range(1000))))
    sample = sample_of(text, 500)
    assert len(sample) == 500
    assert sample.tobytes() == sample_of(text, 500).tobytes()
    found = [int(number) for number in re.findall(rb"<(\d+)>", sample.tobytes())]
    assert len(set(found)) == len(found) > 90 and found != sorted(found)
    assert sorted(sample_of(text, 10**6)) == sorted(text.text)


def test_ppm_sizes_of_prefixes_are_those_of_each_prefix_alone():
    text = b"the cat sat on the mat. " * 400 + bytes(range(256)) * 8
    sizes = [1000, 4000, len(text)]
    prefixes = ppm_sizes(text, sizes)
    for size, found in zip(sizes, prefixes, strict=True):
        assert found == pytest.approx(ppm_sizes(text[:size], [size])[0], abs=8)
    assert ppm_sizes(text, []) == []


@pytest.mark.slow
def test_ctrl_c_ends_the_compressors_within_seconds(tmp_path, interrupt):
    path = tmp_path / "noise.txt"
    path.write_bytes(np.random.default_rng(0).integers(97, 113, 8_000_000, dtype=np.uint8).tobytes())
    words = [BYTELM, "entropy", path, "--quiet", "--sample-bytes", "8M"]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert b"interrupted" in interrupt(process, after=9, threads=4)


def test_a_sample_bounds_the_text_that_is_read_and_measured(tmp_path):
    letters = zstandard.compress(b"a" * 40_000_000)
    assert len(letters) < 5000
    (tmp_path / "a.txt.zst").write_bytes(letters)
    program = f"{PEAK_MEMORY}\nfrom pipelines.verbs.entropy import entropy\nimport pipelines.reporting.entropy_page\n"
    program += "numbers = entropy(sys.argv[1], sample_bytes=1000)\nbefore = peak_memory()\n"
    program += "numbers = entropy(sys.argv[2], sample_bytes=100_000)\nprint(numbers.bytes, peak_memory() - before)"
    (tmp_path / "small.txt").write_text("abc " * 1000)
    words = [sys.executable, "-c", program, tmp_path / "small.txt", tmp_path / "a.txt.zst"]
    measured, memory = map(int, subprocess.run(words, capture_output=True, text=True, check=True).stdout.split()[-2:])
    assert measured == 100_000
    assert memory < 30_000_000


def test_a_sample_of_one_long_document_ends_at_the_end_of_a_character(tmp_path):
    (tmp_path / "a.jsonl").write_text(json.dumps({"text": "é" * 10_000}) + "\n")
    found = read_symbols(open_corpus(str(tmp_path), split="none"), "characters", sample=1001)
    assert found.text.tobytes().decode() == "é" * 500


@pytest.mark.parametrize("unit", ["bytes", "characters"])
def test_a_sample_has_whole_documents_in_corpus_order_and_the_beginning_of_one(tmp_path, unit):
    texts = [f"{number:04} " + "é" * (number % 50) for number in range(3000)]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))

    def sampled(size):
        found = read_symbols(open_corpus(str(tmp_path), split="none"), unit, sample=size)
        ends = found.text_offsets
        return [found.text[start:end].tobytes().decode() for start, end in pairwise(ends)]

    sample = sampled(20_001)
    assert 19_998 <= sum(len(text.encode()) for text in sample) <= 20_001
    whole = [text for text in sample if text in texts]
    assert whole == sorted(whole)
    assert len(whole) >= len(sample) - 1
    assert all(any(text.startswith(part) for text in texts) for part in sample)
    thirds = [sum(text.startswith(("0", "1", "2")[third]) for text in sample) for third in range(3)]
    assert min(thirds) > len(sample) / 5
    assert sample == sampled(20_001)
    assert sampled(10**7) == texts
