"""`bytelm inspect-vocabulary`: tokens that a text does not use, and the cost of languages on parallel text."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pipelines.dataset.reader import TokenDataset
from pipelines.reporting.language_parity import gini, language_costs, read_parallel
from pipelines.verbs.inspect_vocabulary import inspect_vocabulary
from tokenizer import Tokenizer

ROWS = [{"en": "the cat", "de": "die Katze", "zh": "猫"}, {"en": "a dog", "de": "ein Hund", "zh": "一只狗"}]


@pytest.fixture
def parallel(tmp_path):
    path = tmp_path / "parallel.jsonl"
    path.write_text("\n".join(json.dumps(row) for row in ROWS))
    return path


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=8).filter(any))
def test_gini_is_the_mean_difference_over_twice_the_mean(costs):
    difference = np.abs(np.subtract.outer(costs, costs)).sum()
    assert gini(costs) == pytest.approx(difference / (2 * len(costs) ** 2 * np.mean(costs)), abs=1e-9)


def test_gini_is_0_for_equal_costs_and_largest_if_one_language_has_all():
    assert gini([3, 3, 3]) == 0 == gini([0, 0])
    assert gini([0, 0, 0, 5]) == pytest.approx(3 / 4)


def test_the_premium_is_relative_to_the_language_with_the_fewest_tokens(parallel):
    tok = Tokenizer.train(["the cat and a dog and the cat"] * 9, 280, special_tokens=())
    found = language_costs(tok, read_parallel(parallel))
    assert found["tokens"] == {language: sum(len(tok.encode(row[language])) for row in ROWS) for language in ROWS[0]}
    assert found["premiums"]["en"] == 1 < found["premiums"]["de"]
    assert found["gini"] == gini([*found["tokens"].values()])


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"en": "a"}', "line 3 and the first one differ in the languages de, zh"),
        ("{", "line 3 is not JSON in UTF-8"),
        pytest.param("[" * 100_000, "line 3 is nested too deeply", id="deep"),
        ('["a"]', "line 3 is not an object of texts"),
        ('{"en": 1, "de": "b", "zh": "c"}', "line 3 is not an object of texts"),
    ],
)
def test_a_wrong_line_is_named(parallel, line, message):
    parallel.write_text(parallel.read_text() + "\n" + line)
    with pytest.raises(ValueError, match=message):
        read_parallel(parallel)


def test_a_language_without_tokens_has_no_premium(tmp_path):
    tok = Tokenizer.train(["the cat and a dog"] * 9, 280)
    found = language_costs(tok, {"en": ["a cat", "b"], "de": ["", ""], "fr": ["a cat b", "a cat b"]})
    assert found["reference"] == "en" and found["premiums"]["de"] is None
    assert found["premiums"]["fr"] == found["tokens"]["fr"] / found["tokens"]["en"] > 1
    assert found["tokens_per_sentence"]["en"] == found["tokens"]["en"] / 2
    assert language_costs(tok, {"en": [""], "de": [""]})["premiums"] == {"en": None, "de": None}


def test_a_reference_language_has_premium_1(parallel):
    tok = Tokenizer.train(["the cat and a dog and the cat"] * 9, 280, special_tokens=())
    found = language_costs(tok, read_parallel(parallel), "de")
    assert found["premiums"]["de"] == 1 > found["premiums"]["en"] == found["tokens"]["en"] / found["tokens"]["de"]
    with pytest.raises(ValueError, match="`reference` is fr, but the languages are en, de, zh"):
        language_costs(tok, read_parallel(parallel), "fr")


def test_blank_lines_are_skipped(parallel):
    rows = read_parallel(parallel)
    parallel.write_text("\n \n" + parallel.read_text().replace("\n", "\n\n") + "\n\n")
    assert read_parallel(parallel) == rows


def test_one_language_is_too_few(tmp_path):
    (tmp_path / "one.jsonl").write_text('{"en": "a"}')
    with pytest.raises(ValueError, match="fewer than two languages"):
        read_parallel(tmp_path / "one.jsonl")


def test_unused_and_rare_tokens_are_those_of_the_training_split(text_folder, tokenizer_folder):
    found = inspect_vocabulary(tokenizer_folder, [str(text_folder)], split="none", rare=3)
    tok = Tokenizer.load(tokenizer_folder)
    ids = [i for path in text_folder.iterdir() for i in tok.encode_ordinary(path.read_text())]
    used, special = np.bincount(ids, minlength=tok.vocab_size), {*tok.special_tokens.values()}
    assert found["tokens"] == len(ids)
    assert found["unused"] == [i for i in range(tok.vocab_size) if not used[i] and i not in special]
    assert found["rare"] == [i for i in range(tok.vocab_size) if used[i] in (1, 2)]
    assert found["unmerged"] == []


def test_a_dataset_has_the_counts_already(text_folder, tokenizer_folder, dataset_folder, tmp_path):
    found = inspect_vocabulary(tokenizer_folder, data=dataset_folder)
    ids = TokenDataset(dataset_folder).split("train").read(0, 10**9)
    assert found["tokens"] == len(ids)
    special = {*Tokenizer.load(tokenizer_folder).special_tokens.values()}
    assert found["unused"] == sorted({*range(512)} - {*ids.tolist()} - special)
    Tokenizer.train(["another"] * 3, 262).save(tmp_path)
    with pytest.raises(ValueError, match="which was built with another tokenizer"):
        inspect_vocabulary(tmp_path, data=dataset_folder)
    with pytest.raises(ValueError, match="either in a corpus or in `data`"):
        inspect_vocabulary(tokenizer_folder, [str(text_folder)], data=dataset_folder)


def test_several_vocabularies_stand_side_by_side(text_folder, tokenizer_folder, parallel, tmp_path, in_process):
    Tokenizer.train([path.read_text() for path in text_folder.iterdir()], 600, kind="wordpiece").save(
        tmp_path / "words"
    )
    options = ["--split", "none", "--parallel", parallel, "--compare", tmp_path / "words"]
    done = in_process("inspect-vocabulary", tokenizer_folder, text_folder, *options)
    assert done.returncode == 0, done.stderr
    rows = [line.split() for line in done.stdout.splitlines()]
    assert ["entries", "512", "600"] in rows
    assert next(row for row in rows if row[:2] == ["that", "merges"])[-1] == "–"
    found = json.loads(in_process("inspect-vocabulary", tokenizer_folder, text_folder, *options, "--json").stdout)
    alone = inspect_vocabulary(tmp_path / "words", [str(text_folder)], split="none", parallel=parallel)
    assert found["compared"]["words"] == alone | {"tokenizer": "words"}
    with pytest.raises(ValueError, match="`compare` has a tokenizer with the name words"):
        inspect_vocabulary(tmp_path / "words", compare=str(tmp_path / "words"))


def test_the_command_shows_a_run_and_its_languages(trained_gpt, text_folder, parallel, in_process):
    done = in_process("inspect-vocabulary", trained_gpt, text_folder, "--parallel", parallel)
    assert done.returncode == 0, done.stderr
    assert "never used" in done.stdout
    assert "Gini coefficient" in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    as_json = in_process("inspect-vocabulary", trained_gpt, "--parallel", parallel, "--json")
    assert {"unmerged", "split", "languages"} <= json.loads(as_json.stdout).keys()


def test_other_kinds_have_no_merges_to_follow(text_folder, tmp_path):
    Tokenizer.train([path.read_text() for path in text_folder.iterdir()], 600, kind="wordpiece").save(tmp_path)
    found = inspect_vocabulary(tmp_path, [str(text_folder)], split="none")
    assert "unmerged" not in found and found["tokens"] > 0
    with pytest.raises(ValueError, match="`rare` is 0, but must be at least 1"):
        inspect_vocabulary(tmp_path, rare=0)


def test_spellings_of_special_tokens_in_parallel_sentences_are_text():
    tok = Tokenizer.train(["the cat and a dog"] * 9, 280)
    sentence = "a <|endoftext|> b"
    found = language_costs(tok, {"en": [sentence], "de": ["ein"]})
    assert found["tokens"]["en"] == len(tok.encode_ordinary(sentence))
