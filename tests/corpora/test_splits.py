"""Splits: every byte is in exactly one, duplicates stay together, and batches make no difference."""

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from corpora import documents as documents_module
from corpora import open_corpus, open_pairs, summarize
from tests.corpora.helpers import everything, expected_hash_split, jsonl

quick = settings(max_examples=80, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
texts_of_lines = st.lists(st.text(alphabet="a\né€😀\r", max_size=30), min_size=1, max_size=12).filter(any)


def write(folder, texts):
    (folder / "a.jsonl").write_bytes(jsonl(texts))
    return str(folder)


@quick
@given(st.lists(st.text(max_size=4), min_size=20, max_size=60).filter(lambda t: sum(map(bool, t)) >= 20))
def test_twenty_documents_are_split_by_the_hash_of_their_bytes(tmp_path, texts):
    corpus = open_corpus(write(tmp_path, texts))
    found = everything(corpus)
    expected = {
        split: [text for text in texts if text and expected_hash_split(text, 0.05) == split]
        for split in ("train", "validation")
    }
    if expected["validation"]:
        assert corpus.split_rule == "hash:0.05" and not corpus.split_reason
        assert found == expected
    else:
        assert corpus.split_rule == "tail:0.1" and "hash:0.05 holds out none" in corpus.split_reason
        assert found["validation"]


@quick
@given(st.lists(st.sampled_from("abcdefgh"), min_size=20, max_size=60), st.floats(0.01, 0.99))
def test_duplicates_are_in_the_same_split_at_any_fraction(tmp_path, texts, fraction):
    found = everything(open_corpus(write(tmp_path, texts), split=f"hash:{fraction}"))
    assert not set(found["train"]) & set(found["validation"])
    assert sorted(found["train"] + found["validation"]) == sorted(texts)


@quick
@given(texts_of_lines)
@example(["abc\nd"])
@example(["one line without an end"])
@example(["€"])
@example(["a" * 100 + "\n"])
@example(["a" * 89 + "\n" + "b" * 10])
@example(["a" * 90, "b" * 10])
@example(["a" * 95, "b" * 5])
def test_under_twenty_documents_the_last_tenth_of_the_bytes_is_validation(tmp_path, texts):
    corpus = open_corpus(write(tmp_path, texts))
    assert corpus.split_rule == "tail:0.1"
    found = everything(corpus)
    train, validation = ("".join(found[split]).encode() for split in ("train", "validation"))
    whole = "".join(texts).encode()
    assert train + validation == whole
    # On the joined text: cut after the first line end from the 90 % byte on, else at a character boundary.
    target = max(len(whole) - max(len(whole) // 10, 1), 1)
    ends, end = set(), 0
    for text in texts:
        ends |= {end + i + 1 for i, byte in enumerate(text.encode()) if byte == 10}
        end += len(text.encode())
        ends.add(end)
    after = [place for place in ends if target <= place < len(whole)]
    if after:
        assert len(train) == min(after)
    else:
        starts = [i for i in range(len(whole) + 1) if i == len(whole) or whole[i] & 0xC0 != 0x80]
        before = [i for i in starts if 0 < i <= target]
        assert len(train) == (max(before) if before else min(i for i in starts if i > target))


@pytest.mark.parametrize(
    "text", ["a\r\n" * 50, "é" * 500, "x" * 5_000_000, "line\n" * 500_000, "x" * 3_000_000 + "\n" + "y"]
)
def test_a_single_long_file_is_cut_in_two_that_are_whole_characters_and_lines(tmp_path, text):
    (tmp_path / "a.txt").write_bytes(text.encode())
    found = everything(open_corpus(str(tmp_path / "a.txt")))
    assert found["train"][0] + found["validation"][0] == text
    assert 0.85 <= len(found["train"][0]) / len(text) <= 1
    if "\n" in text:
        assert found["train"][0].endswith("\n")


@quick
@given(texts_of_lines, st.integers(1, 40), st.integers(1, 3), st.sampled_from(["hash:0.3", "tail:0.25"]))
def test_splits_do_not_depend_on_how_the_documents_are_batched(tmp_path, texts, batch_bytes, batch_documents, rule):
    corpus = open_corpus(write(tmp_path, texts), split=rule)
    whole = everything(corpus)
    limits = documents_module.BATCH_BYTES, documents_module.BATCH_DOCUMENTS
    documents_module.BATCH_BYTES, documents_module.BATCH_DOCUMENTS = batch_bytes, batch_documents
    try:
        assert everything(corpus) == whole
        for split, batch in corpus.routed_batches():
            sizes = [len(text.encode()) for text in batch.column("text").to_pylist()]
            assert split in whole
            assert len(sizes) <= batch_documents
            assert len(sizes) == 1 or sum(sizes) <= batch_bytes
    finally:
        documents_module.BATCH_BYTES, documents_module.BATCH_DOCUMENTS = limits


@pytest.mark.parametrize(
    ("names", "splits"),
    [
        (("train.txt", "valid.txt"), ("train", "validation")),
        (("wiki.train.txt", "wiki.val.txt", "wiki.test.txt"), ("train", "validation", "test")),
        (("train/a.txt", "train/test.txt", "dev/a.txt"), ("train", "validation")),
        (
            ("data/train-00000-of-00002.txt", "data/train-00001-of-00002.txt", "data/validation-0.txt"),
            ("train", "validation"),
        ),
    ],
)
def test_files_and_folders_named_after_splits_are_own_splits(tmp_path, names, splits):
    for name in names:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(name)
    paths = [tmp_path / name for name in names]
    folders = sorted({str(path.parent) for path in paths})
    for specs in ([str(tmp_path)], [*map(str, paths)], folders, [f"{folder}/*.txt" for folder in folders]):
        corpus = open_corpus(specs)
        assert corpus.split_rule == "predefined"
        assert corpus.split_names == splits
        found = everything(corpus)
        assert sorted(text for texts in found.values() for text in texts) == sorted(names)
        assert all(split[:3] in name or "dev" in name for split, texts in found.items() for name in texts)


@pytest.mark.parametrize("root", ["test", "dev", "training", "data/test"])
@pytest.mark.parametrize("names", [("train/a", "dev/test", "test/dev"), ("train", "valid", "test")])
def test_own_splits_are_found_in_a_folder_that_is_itself_named_after_a_split(tmp_path, monkeypatch, root, names):
    paths = [tmp_path / root / f"{name}.txt" for name in names]
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(path.name)
    card = tmp_path / "card.toml"
    card.write_text(f'reader = "files"\npaths = ["{root}"]')
    monkeypatch.chdir(tmp_path / root)
    folder = tmp_path / root
    several = [str(path) for path in paths] if "train" in names else [str(path.parent) for path in paths]
    for specs in (str(folder), str(folder.parent), ".", f"{folder}/**", f"{folder}/*", several, str(card)):
        found = everything(open_corpus(specs))
        expected = {"train": [paths[0].name], "validation": [paths[1].name], "test": [paths[2].name]}
        assert found == expected, specs


def test_folders_within_a_split_do_not_divide_it(tmp_path):
    for name in ("train/test/a.txt", "train/train/b.txt", "train/c.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("line\n" * 10)
    assert open_corpus(str(tmp_path), split="predefined").split_names == ("train", "validation")
    (tmp_path / "test").mkdir()
    (tmp_path / "test" / "d.txt").write_text("test")
    assert everything(open_corpus(str(tmp_path)))["test"] == ["test"]


@pytest.mark.parametrize(
    "names",
    [
        ("train.txt", "valid.txt", "notes.txt"),
        ("train.txt",),
        ("valid.txt", "test.txt"),
        ("pretrained.txt", "latest.txt"),
    ],
)
def test_own_splits_need_a_split_in_every_file_name_and_a_train_split(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text(name + "\n")
    corpus = open_corpus(str(tmp_path))
    assert corpus.split_rule == "tail:0.1"
    assert corpus.split_names == ("train", "validation")
    if "train.txt" not in names or "notes.txt" in names:
        with pytest.raises(ValueError, match="has no own splits"):
            open_corpus(str(tmp_path), split="predefined")


@pytest.mark.parametrize(("count", "cut"), [(3, "tail"), (40, "hash")])
def test_own_splits_without_validation_have_it_cut_from_train_only(tmp_path, count, cut):
    (tmp_path / "train.jsonl").write_bytes(jsonl(f"train {i}\n" for i in range(count)))
    (tmp_path / "test.jsonl").write_bytes(jsonl(f"test {i}\n" for i in range(30)))
    corpus = open_corpus(str(tmp_path))
    assert corpus.split_rule == "predefined"
    assert corpus.split_names == ("train", "validation", "test")
    found = everything(corpus)
    assert found["test"] == [f"test {i}\n" for i in range(30)]
    divided = "".join(found["train"] + found["validation"])
    assert sorted(divided.splitlines()) == sorted(f"train {i}" for i in range(count))
    if cut == "hash":
        assert all(expected_hash_split(text, 0.05) == "validation" for text in found["validation"])
    else:
        assert found["train"] == ["train 0\n", "train 1\n", "train "]


def test_documents_of_other_splits_do_not_count_when_validation_is_cut_from_train(tmp_path):
    for i in range(30):
        (tmp_path / f"test-{i}.txt").write_text("x\n")
    (tmp_path / "train.txt").write_text("line\n" * 100)
    found = everything(open_corpus(str(tmp_path)))
    assert (len(found["test"]), found["train"], found["validation"]) == (30, ["line\n" * 90], ["line\n" * 10])


def test_a_given_rule_overrides_own_splits_and_pools_all_documents(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.jsonl").write_bytes(jsonl(f"{name} {i}" for i in range(50)))
    found = everything(open_corpus(str(tmp_path), split="hash:0.5"))
    assert {text.split()[0] for text in found["train"]} == {"train", "valid"}
    assert open_corpus(str(tmp_path), split="tail:0.2").split_rule == "tail:0.2"


def test_several_corpora_use_own_splits_only_if_all_have_them(tmp_path):
    for name in ("train", "valid"):
        (tmp_path / f"{name}.txt").write_text("a\n")
    assert open_corpus(["markov-2-16", str(tmp_path)]).split_rule == "predefined"
    assert open_corpus(["stdlib", str(tmp_path)]).split_rule == "hash:0.05"


@pytest.mark.parametrize("rule", ["", "half", "hash:0", "hash:1", "tail:-0.1", "tail:x", "own:0.1"])
def test_an_unknown_rule_is_refused(tmp_path, rule):
    if rule:
        with pytest.raises(ValueError, match=r"not one of predefined, hash:FRACTION, tail:FRACTION .* and none"):
            open_corpus("stdlib", split=rule)


@pytest.mark.parametrize("names", [("a.txt",), ("train.txt", "valid.txt"), ("train.txt", "test.txt")])
def test_none_leaves_every_byte_for_training_in_order(tmp_path, names):
    for name in names:
        (tmp_path / name).write_text(f"widest {name}")
    corpus = open_corpus(str(tmp_path), split="none")
    assert (corpus.split_rule, corpus.split_names) == ("none", ("train",))
    assert everything(corpus) == {"train": [f"widest {name}" for name in sorted(names)]}
    assert summarize(corpus).split_description == "all documents are for training"
    (tmp_path / "pairs.jsonl").write_text('{"a": "x", "b": "y"}\n' * 50)
    pairs = open_pairs(str(tmp_path / "pairs.jsonl"), ("a", "b"), split="none")
    assert {split for split, _ in pairs.routed_batches()} == {"train"}


@pytest.mark.parametrize(
    ("texts", "cut_at_a_line_end"),
    [(["ok two"], False), (["a" * 95, "b" * 5], False), (["line\n" * 30], True), (["a" * 89 + "\n", "b" * 10], True)],
)
def test_cut_at_a_line_end_is_printed_only_if_it_is_true(tmp_path, texts, cut_at_a_line_end):
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    expected = "the last 10 % of the bytes are for validation" + ", cut at a line end" * cut_at_a_line_end
    assert summarize(open_corpus(str(tmp_path))).split_description == expected


def test_the_split_rule_of_a_corpus_is_a_valid_option(tmp_path):
    (tmp_path / "a.txt").write_text("line\n" * 100)
    first = open_corpus(str(tmp_path))
    assert everything(open_corpus(str(tmp_path), split=first.split_rule)) == everything(first)


def test_a_missing_split_is_refused_with_the_names_of_the_splits():
    with pytest.raises(ValueError, match='no split "test": it has train, validation'):
        open_corpus("stdlib").batches("test")
