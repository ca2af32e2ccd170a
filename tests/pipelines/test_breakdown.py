"""The breakdowns of an evaluation: every bit is in one row, and the rows equal a plain loop's."""

import numpy as np
import pytest

from pipelines.dataset.reader import TokenDataset
from pipelines.evaluation.documents import text_of_stream
from pipelines.evaluation.groups import NamedGroup, group_of
from pipelines.evaluation.measurements.breakdown import (
    CLASSES,
    DECILES,
    breakdown,
    frequency_deciles,
    rank,
    table_of,
    token_classes,
)
from pipelines.evaluation.windows import TokenScores
from pipelines.verbs.evaluate import evaluate
from tokenizer import Tokenizer


def classes_of(text, **options):
    """Return (spelling, class) of each token of a text with a tokenizer of bytes and a few merges."""
    tok = Tokenizer.train(["the then number 12 12 , , ((  \n\n den größer größer дом дом " * 20], vocab_size=290)
    ids = np.array(tok.encode_ordinary(text))
    kinds = token_classes(ids, np.concatenate([[-1], ids[:-1]]), tok)
    return [(tok.token_bytes(i), CLASSES[kind]) for i, kind in zip(ids.tolist(), kinds.tolist(), strict=True)]


def test_classes_of_tokens():
    found = dict(classes_of("the 12, (\n"))
    assert set(found.values()) == {"word start", "word inside", "number", "punctuation", "white space"}
    assert classes_of("xq")[-1][1] == "word inside" and classes_of("xq")[0][1] == "word start"
    assert classes_of("(x")[-1][1] == "word start"
    assert {kind for _, kind in classes_of("漢")} == {"part of a character"}
    assert {kind for _, kind in classes_of(" дом")} == {"non-Latin letters"}
    assert classes_of(" größer") == [(" größer".encode(), "word start")]


@pytest.fixture(scope="module")
def scored(dataset_folder, tokenizer_folder):
    stream, tok = TokenDataset(dataset_folder).split("train"), Tokenizer.load(tokenizer_folder)
    ids, indices = stream.read(0, stream.tokens).astype(np.int32), np.arange(1, stream.tokens)
    nats = np.random.default_rng(0).gamma(2, 1, len(indices))
    scores = TokenScores(ids[1:], ids[:-1], (indices - 1) % 32, indices // 32, indices, nats, nats < 1)
    return scores, stream, tok, text_of_stream(stream, tok, tok.special_tokens["<|endoftext|>"])


@pytest.fixture(scope="module")
def found(scored):
    scores, stream, tok, text = scored
    counts = np.bincount(scores.targets, minlength=tok.vocab_size)
    return breakdown(scores, tok, training_counts=counts, stream=stream, text=text).to_json()


@pytest.mark.parametrize("key", ["position", "class", "length", "frequency", "document"])
def test_the_shares_add_up_to_100_percent(found, scored, key):
    scores = scored[0]
    assert sum(row["share"] for row in found[key]) == pytest.approx(1)
    assert sum(row["tokens"] for row in found[key]) == len(scores.nats)
    total = sum(row["bits_per_token"] * row["tokens"] for row in found[key])
    assert total == pytest.approx(scores.nats.sum() / np.log(2))


def test_positions_are_in_ranges_of_powers_of_two(found, scored):
    scores = scored[0]
    names = ["1", "2 to 3", "4 to 7", "8 to 15", "16 to 31", "32 or more"]
    assert [row["name"] for row in found["position"]] == names
    third = (scores.columns + 1 >= 4) & (scores.columns + 1 <= 7)
    assert found["position"][2]["bits_per_token"] == pytest.approx(scores.nats[third].mean() / np.log(2))


def test_lengths_are_those_of_the_tokens(found, scored):
    scores, _, tok, _ = scored
    lengths = np.asarray(tok.token_byte_lengths)[scores.targets]
    rows = {row["name"]: row["tokens"] for row in found["length"]}
    assert rows["1 byte"] == (lengths == 1).sum() and rows["5 to 6 bytes"] == ((lengths == 5) | (lengths == 6)).sum()
    assert rows["0 bytes"] == (lengths == 0).sum()


def test_deciles_hold_a_tenth_of_the_training_tokens_each():
    counts = np.array([0, *[7] * 100])
    deciles = frequency_deciles(counts)
    assert DECILES[deciles[0]] == "never in training"
    assert np.bincount(deciles[1:], weights=counts[1:]).tolist() == [70] * 10
    assert DECILES[frequency_deciles(np.array([1, 98, 1]))[0]] == "rarest tenth"
    assert (np.diff(frequency_deciles(np.array([50, 30, 10, 5, 4, 1]))) >= 0).all()


def test_documents_are_ranked_with_their_beginnings(found, scored):
    scores, stream, tok, text = scored
    rows = found["document"]
    assert len(rows) == 21 and rows[10]["name"] == f"{text.documents - 20} others"
    costs = [row["bits_per_byte"] for row in [*rows[:10], *rows[11:]]]
    assert costs == sorted(costs)
    number = int(rows[0]["name"].split()[-1]) - 1
    inside = text.document[scores.indices] == number
    sizes = np.asarray(tok.token_byte_lengths)[scores.targets]
    assert rows[0]["bits_per_byte"] == pytest.approx(scores.nats[inside].sum() / np.log(2) / sizes[inside].sum())
    ids = stream.read(0, stream.tokens)[text.document == number]
    whole = tok.decode(ids[ids != tok.special_tokens["<|endoftext|>"]].tolist())
    assert " ".join(whole.split()).startswith(rows[0]["text"]) and rows[0]["text"]


def row_of(name, *numbers, **options):
    return NamedGroup(name=name, **vars(group_of(*numbers, **options)))


def test_few_documents_are_all_listed():
    rows = [row_of(f"document {i}", 10, 20, float(20 - i), 200.0) for i in range(20)]
    assert [row.name for row in rank(rows)] == [f"document {i}" for i in reversed(range(20))]


def test_a_breakdown_without_bits_per_byte_ranks_documents_by_bits_per_token():
    rows = [row_of(f"document {i}", 10, 20 + i, float(i), 300.0, per_byte=False) for i in range(30)]
    found = rank(rows)
    assert [row.name for row in (found[0], found[10], found[-1])] == ["document 0", "10 others", "document 29"]
    assert {row.bits_per_byte for row in found} == {None}
    table = table_of("bits by document", found)
    assert table.heads == ["tokens", "bytes", "bits/token", "share"] and {len(cells) for _, cells in table.rows} == {4}


def test_every_objective_has_breakdowns(trained_gpt, trained_bert, trained_t5, trained_translator):
    expected = {
        trained_gpt: {"position", "class", "length", "frequency", "document"},
        trained_bert: {"position", "class", "length", "frequency", "document"},
        trained_t5: {"position", "class", "length"},
        trained_translator: {"position", "class", "length", "frequency", "document"},
    }
    for run, keys in expected.items():
        numbers = evaluate(run, beams=0).to_json()["splits"]["validation"]
        assert set(numbers["breakdown"]) == keys
        for rows in numbers["breakdown"].values():
            assert sum(row["share"] for row in rows) == pytest.approx(1)
            assert sum(row["tokens"] for row in rows) == numbers["tokens"]
            if numbers["bits_per_byte"] is None:
                assert {row["bits_per_byte"] for row in rows} == {None}
        assert 0.05 <= numbers["temperature"] <= 20 and numbers["temperature_gain_bits"] >= -1e-9
        assert numbers["temperature_tokens"] == min(4096, numbers["tokens"])


def test_the_command_prints_the_breakdowns(in_process, trained_gpt):
    done = in_process("evaluate", trained_gpt, "--breakdown")
    assert done.returncode == 0, done.stderr
    for key in ("position", "class", "length", "frequency", "document"):
        assert f"validation: bits by {key}\n" in done.stdout
    assert "word inside" in done.stdout and "best temperature" in done.stdout
