"""`build-dataset --deduplicate` removes what datasketch and exact sets find, and says what it removed."""

import hashlib
import json
import random
import shutil
import unicodedata

import numpy as np
import pytest
from datasketch import MinHash, MinHashLSH

from corpora import open_corpus
from pipelines.dataset import shingle_kernels as kernels
from pipelines.dataset.duplicates import find_duplicates
from pipelines.verbs.build_dataset import build_dataset
from tests.corpora.helpers import expected_hash_split
from tests.pipelines.test_blocks import files_of
from tests.pipelines.test_near_duplicates import shingles

WORDS = [f"word{number}" for number in range(2000)]


def jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    return str(path)


def passages(count, seed, size=300):
    generator = random.Random(seed)
    return [" ".join(generator.choices(WORDS, k=size)) for _ in range(count)]


def edited(text, changes, seed):
    """Return a text with that many words replaced."""
    generator, words = random.Random(seed), text.split()
    for place in generator.sample(range(len(words)), changes):
        words[place] = "new"
    return " ".join(words)


def removed(corpus, method, folder, **options):
    """Return {removed document: kept document}."""
    found = find_duplicates(corpus, method, folder, **options)
    return dict(zip(found.documents.tolist(), found.kept.tolist(), strict=True))


def test_near_duplicates_are_those_of_datasketch_and_exact_sets(tmp_path, text_folder):
    texts = [path.read_text(encoding="utf-8") for path in sorted(text_folder.iterdir())]
    texts = [text[start : start + 2000] for text in texts for start in range(0, len(text), 2000)]
    generator = random.Random(0)
    for number in range(150):
        lines = generator.choice(texts).splitlines()
        lines = [line for line in lines if generator.random() > number / 1000]
        texts.insert(generator.randrange(len(texts)), "\n".join(lines) + "\n")
    index = MinHashLSH(num_perm=112, params=(14, 8))
    sets, groups = [], list(range(len(texts)))
    for number, text in enumerate(texts):
        sets.append(set(shingles(text.encode()).tolist()))
        minima = MinHash(112, scheme="affine32", permutations=(kernels.MULTIPLIERS, kernels.INCREMENTS))
        # The signature itself is compared with datasketch in test_near_duplicates.py.
        minima.hashvalues = signature(text.encode())
        for other in sorted(index.query(minima)) if sets[-1] else []:
            if 4 * len(sets[other] & sets[number]) >= 3 * len(sets[other] | sets[number]):
                low, high = sorted((groups[other], groups[number]))
                groups = [low if group == high else group for group in groups]
        index.insert(number, minima)
    expected = {number: group for number, group in enumerate(groups) if number != group}
    assert len(expected) > 80
    found = find_duplicates(open_corpus(jsonl(tmp_path / "a.jsonl", texts)), "near", tmp_path)
    assert dict(zip(found.documents.tolist(), found.kept.tolist(), strict=True)) == expected
    for document, kept, similarity in zip(found.documents, found.kept, found.similarity, strict=True):
        assert similarity == len(sets[document] & sets[kept]) / len(sets[document] | sets[kept])


def signature(document):
    data, out = np.frombuffer(document, np.uint8), np.empty((1, 112), np.uint32)
    memory, keys, counts = np.empty(1030, np.uint64), np.empty((1, 14), np.uint64), np.empty(1, np.int64)
    kernels.sign(data, np.array([0, len(document)]), memory, out, keys, counts)
    return out[0]


@pytest.fixture
def doubled(tmp_path, text_folder):
    """Return a folder of the 60 documents, 3 exact and 2 near duplicates of them, and the same without the 5."""
    folder = tmp_path / "doubled"
    shutil.copytree(text_folder, folder)
    first, second, *_ = sorted(folder.iterdir())
    for number in range(3):
        (folder / f"x{number}.txt").write_bytes(first.read_bytes())
    for number in range(2):
        (folder / f"y{number}.txt").write_bytes(second.read_bytes().upper() + b"the end of the file %d\n" % number)
    return folder


def test_the_dataset_is_that_of_the_corpus_without_duplicates(
    tmp_path, doubled, text_folder, tokenizer_folder, printed
):
    options = {"tokenizer": tokenizer_folder, "context_length": 32}
    build_dataset([str(text_folder)], out=tmp_path / "clean", **options)
    info = build_dataset([str(doubled)], out=tmp_path / "near", deduplicate="near", **options)
    counts = {"exact_duplicates": 3, "near_duplicates": 2}
    assert info.corpus.dropped == {"empty_documents": 0, "invalid_documents": 0, **counts}
    clean, near = files_of(tmp_path / "clean"), files_of(tmp_path / "near")
    rows = [json.loads(line) for line in (tmp_path / "near" / "duplicates.jsonl").read_text().splitlines()]
    assert {name for name in near if near[name] != clean.get(name)} == {
        "dataset.json",
        "duplicates.jsonl",
        "manifest.json",
    }
    assert [(row["document"], row["kept"]) for row in rows] == [(60, 0), (61, 0), (62, 0), (63, 1), (64, 1)]
    paths = sorted(doubled.iterdir())
    assert [row["sha256"] for row in rows] == [hashlib.sha256(path.read_bytes()).hexdigest() for path in paths[60:]]
    assert [row["similarity"] == 1 for row in rows] == [True, True, True, False, False]
    said = printed.readouterr().out
    assert "duplicates: 5 of 65 documents" in said
    assert "left out: 3 exact duplicates, 2 near duplicates" in said


def test_exact_removes_equal_bytes_only(tmp_path, doubled):
    assert removed(open_corpus(str(doubled)), "exact", tmp_path) == {60: 0, 61: 0, 62: 0}


def test_files_are_identical_for_any_threads(tmp_path, doubled, tokenizer_folder):
    options = {"tokenizer": tokenizer_folder, "context_length": 32, "deduplicate": "near"}
    build_dataset([str(doubled)], out=tmp_path / "one", threads=1, **options)
    build_dataset([str(doubled)], out=tmp_path / "three", threads=3, **options)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "three")


def test_no_duplicates_of_validation_documents_are_in_training(tmp_path):
    texts = passages(100, seed=0)
    texts += [edited(text, 1, seed=0) for text in texts]
    corpus = open_corpus(jsonl(tmp_path / "a.jsonl", texts), split="hash:0.3")
    found = find_duplicates(corpus, "near", tmp_path)
    left = corpus.without(found.marks, found.removed_bytes)
    kept = [
        text for split in corpus.split_names for batch in left.batches(split) for text in batch.column(0).to_pylist()
    ]
    assert sorted(kept) == sorted(texts[:100])


def test_own_validation_and_test_documents_stay_and_training_loses_its_copies(tmp_path):
    one, two, three, four = passages(4, seed=1)
    jsonl(tmp_path / "train.jsonl", [one, two, edited(three, 1, seed=0), four])
    jsonl(tmp_path / "validation.jsonl", [one, one, three])
    corpus = open_corpus(str(tmp_path))
    found = find_duplicates(corpus, "near", tmp_path)
    left = corpus.without(found.marks, found.removed_bytes)
    texts = {
        split: [text for b in left.batches(split) for text in b.column(0).to_pylist()] for split in left.split_names
    }
    assert texts == {"train": [two, four], "validation": [one, one, three]}
    assert found.documents.tolist() == [0, 2]
    assert found.kept.tolist() == [4, 6]


def test_a_tail_is_a_tenth_of_what_is_left(tmp_path):
    texts = [text + "\n" for text in passages(10, seed=2, size=20)]
    corpus = open_corpus(jsonl(tmp_path / "a.jsonl", texts[:9] * 2 + texts[9:]), split="tail:0.1")
    found = find_duplicates(corpus, "exact", tmp_path)
    left = corpus.without(found.marks, found.removed_bytes)
    clean = open_corpus(jsonl(tmp_path / "b.jsonl", texts), split="tail:0.1")
    assert [b.to_pylist() for b in left.batches("validation")] == [b.to_pylist() for b in clean.batches("validation")]


def by_split(corpus):
    return {split: [b.to_pylist() for b in corpus.batches(split)] for split in corpus.split_names}


@pytest.mark.parametrize("count", [19, 25])
def test_the_split_is_that_of_the_corpus_without_duplicates(tmp_path, count):
    texts = [text for text in passages(2 * count, seed=4, size=20) if expected_hash_split(text, 0.05) == "train"]
    texts = texts[:count]
    copies = [f"{texts[3]} {number}" for number in range(500)]
    assert any(expected_hash_split(text, 0.05) == "validation" for text in copies)
    (tmp_path / "texts").mkdir()
    for number, text in enumerate(texts + copies):
        (tmp_path / "texts" / f"{number:04}.txt").write_text(text)
    corpus = open_corpus(str(tmp_path / "texts"))
    found = find_duplicates(corpus, "near", tmp_path)
    left = corpus.without(found.marks, found.removed_bytes)
    clean = open_corpus(jsonl(tmp_path / "b.jsonl", texts))
    assert (corpus.split_rule, left.split_rule, left.split_reason) == ("hash:0.05", "tail:0.1", clean.split_reason)
    assert by_split(left) == by_split(clean)
    assert left.text_bytes_estimate == clean.text_bytes_estimate


def test_a_share_that_holds_out_only_duplicates_is_refused_before_encoding(tmp_path, tokenizer_folder, printed):
    texts = [text for text in passages(60, seed=4, size=20) if expected_hash_split(text, 0.05) == "train"]
    copies = [f"{texts[3]} {number}" for number in range(100)]
    path = jsonl(tmp_path / "a.jsonl", texts + copies)
    options = {"tokenizer": tokenizer_folder, "context_length": 32, "deduplicate": "near"}
    with pytest.raises(ValueError, match=r"a\.jsonl has no text for validation: `split='hash:0.05'` holds out none"):
        build_dataset([path], out=tmp_path / "data", split="hash:0.05", **options)
    info = build_dataset([path], out=tmp_path / "data", **options)
    assert info.corpus.split_rule == "tail:0.1" and info.splits["validation"].blocks
    assert "hash:0.05 holds out none of the few documents, so the split is tail:0.1" in printed.readouterr().out


def test_ranges_of_a_deduplicated_corpus_hold_the_same_documents(tmp_path):
    texts = passages(30, seed=3)
    corpus = open_corpus(jsonl(tmp_path / "a.jsonl", texts * 2), split="tail:0.1")
    found = find_duplicates(corpus, "exact", tmp_path)
    left = corpus.without(found.marks, found.removed_bytes)
    for split in left.split_names:
        ranges = left.ranges(20_000)
        assert len(ranges) > 3
        dropped = type(left.dropped)()
        batches = [b for part in ranges for name, b in part.routed_batches(dropped) if name == split]
        assert [row for b in batches for row in b.to_pylist()] == [
            row for b in left.batches(split) for row in b.to_pylist()
        ]
        assert dropped.exact_duplicates == 30


def test_a_chain_of_similar_documents_is_one_group(tmp_path):
    chain = [" ".join(WORDS[start : start + 200]) for start in range(0, 60, 12)]
    found = find_duplicates(open_corpus(jsonl(tmp_path / "a.jsonl", chain)), "near", tmp_path)
    assert found.kept.tolist() == [0, 0, 0, 0]
    assert found.similarity.tolist() == [(196 - 12 * k) / (196 + 12 * k) for k in range(1, 5)]
    assert found.similarity[-1] < 0.75


def test_documents_under_five_words_have_only_exact_duplicates(tmp_path):
    corpus = open_corpus(jsonl(tmp_path / "a.jsonl", ["a b c d", "A b c d", "a b c d", "a b c d e", "A, b, c, d, e!"]))
    assert removed(corpus, "near", tmp_path) == {2: 0, 4: 3}


def test_composed_and_decomposed_copies_are_near_duplicates(tmp_path):
    words = ["été", "Ångström", "naïve", "tiếng", "Việt", "한국어", "plain"]
    texts = [" ".join(random.Random(number).choices(words, k=40)) for number in range(3)]
    copies = [unicodedata.normalize(form, text) for text in texts for form in ("NFC", "NFD")]
    found = find_duplicates(open_corpus(jsonl(tmp_path / "a.jsonl", copies)), "near", tmp_path)
    assert dict(zip(found.documents.tolist(), found.kept.tolist(), strict=True)) == {1: 0, 3: 2, 5: 4}
    assert found.similarity.tolist() == [1, 1, 1]
    assert not found.exact.any()
    assert removed(open_corpus(str(tmp_path / "a.jsonl")), "exact", tmp_path) == {}


def test_any_bytes_are_documents(tmp_path):
    folder, long = tmp_path / "bytes", b"\xff\xfe one \x00 two \xe4\xb8 three\xf0 four five six \x80" * 40
    folder.mkdir()
    contents = [b"\x00" * 9, b"", b"\xff", b"\x00" * 9, long, b"\xff", long + b"\xff seven", b" \n" * 50, b"\xe4"]
    for number, content in enumerate(contents):
        (folder / f"{number}.txt").write_bytes(content)
    corpus = open_corpus(str(folder), invalid="bytes")
    assert removed(corpus, "near", tmp_path) == {2: 0, 4: 1, 5: 3}  # the empty document has no number


def test_a_hundred_thousand_equal_documents_and_a_huge_one_take_linear_time(tmp_path):
    huge = " ".join(passages(1, seed=4, size=300_000))
    texts = [huge, *["one two three four five six"] * 100_000, edited(huge, 1000, seed=5)]
    found = removed(open_corpus(jsonl(tmp_path / "a.jsonl", texts)), "near", tmp_path)
    assert found == {**dict.fromkeys(range(2, 100_001), 1), 100_001: 0}


def test_ten_thousand_near_duplicates_take_linear_time(tmp_path):
    text = passages(1, seed=6)[0]
    texts = [f"{text} {number}" for number in range(10_000)]
    found = find_duplicates(open_corpus(jsonl(tmp_path / "a.jsonl", texts)), "near", tmp_path)
    assert found.kept.tolist() == [0] * 9999
    assert found.uncompared == 0


def test_a_corpus_that_changes_between_passes_is_refused(tmp_path):
    texts = passages(30, seed=7)
    path = tmp_path / "a.jsonl"
    corpus = open_corpus(jsonl(path, texts * 2))
    found = find_duplicates(corpus, "exact", tmp_path)
    left = corpus.without(found.marks, found.removed_bytes)
    for other in (texts, texts * 3):
        jsonl(path, other)
        with pytest.raises(ValueError, match="the corpus changed while it was read"):
            list(left.routed_batches())


def test_pairs_are_refused_and_a_dry_run_names_the_step(tmp_path, text_folder, tokenizer_folder, in_process):
    words = ("build-dataset", text_folder, "--tokenizer", tokenizer_folder, "--out", tmp_path / "data")
    refused = in_process(*words, "--pairs", "en", "de", "--deduplicate", "exact")
    assert refused.returncode == 1
    assert "--deduplicate is for blocks" in refused.stderr
    planned = in_process(*words, "--context-length", "32", "--deduplicate", "near", "--dry-run")
    assert "would remove near duplicates first" in planned.stdout
    assert not (tmp_path / "data").exists()
