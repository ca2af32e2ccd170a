"""`evaluate --audit` counts a text and its scored tokens again, and finds what is missing, changed or scored twice."""

import shutil
from dataclasses import replace
from unicodedata import normalize

import numpy as np
import pytest

import bytelm
from pipelines.evaluation.measurements.audit import audit_of
from pipelines.evaluation.measurements.trained_text import TrainingText
from pipelines.evaluation.planning import EvaluationOptions, objective_of, plan
from pipelines.evaluation.scoring import score
from pipelines.evaluation.split import Split
from pipelines.evaluation.windows import TokenScores
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained

ODD = ("caf\u00e9 <|endoftext|> <|mask|>\r\n", "import os  # \ufffd and \ufffd\n", "\u6f22\U0001f642 e\u0301\n")


@pytest.fixture
def odd_texts(tmp_path):
    folder = tmp_path / "odd"
    folder.mkdir()
    for number, text in enumerate(ODD):
        (folder / f"{number}.txt").write_bytes(text.encode())
    return folder


def audited(run, tmp_path, **options):
    """Return the audit of a copy of the run without its earlier evaluations, and its checks by name."""
    copy = shutil.copytree(run, tmp_path / "copy", dirs_exist_ok=True, ignore=shutil.ignore_patterns("evaluation.json"))
    (evaluation,) = bytelm.evaluate(copy, audit=True, **options).splits.values()
    return evaluation.audit, {check.name: check for check in evaluation.audit.checks}


def failed(checks):
    return {name for name, check in checks.items() if check.passed is False}


@pytest.mark.parametrize("stride", [None, 7])
def test_a_lossless_tokenizer_passes_every_check_also_with_overlapping_windows(trained_gpt, tmp_path, stride):
    audit, checks = audited(trained_gpt, tmp_path, stride=stride)
    assert {check.passed for check in checks.values()} == {True}
    counts = audit.counts
    assert counts.scored_bytes == counts.text_bytes == counts.original_bytes > 0
    assert counts.documents_equal == counts.documents_compared >= counts.documents - 1
    assert counts.tokens - counts.scored_tokens == 1 and counts.end_tokens_scored == counts.end_tokens - 1
    assert f"{stride or 32} apart" in audit.notes[0] and "from <|endoftext|>" in audit.notes[1]


def test_special_spellings_and_replacement_characters_in_a_text_are_text(trained_gpt, tmp_path, odd_texts):
    audit, checks = audited(trained_gpt, tmp_path, corpus=(str(odd_texts),))
    assert not failed(checks)
    assert audit.counts.text_bytes == sum(len(text.encode()) for text in ODD)
    assert audit.counts.replacement_characters == 2 and audit.counts.end_tokens == 3


def test_text_with_too_little_context_is_missed(trained_gpt, tmp_path, odd_texts):
    audit, checks = audited(trained_gpt, tmp_path, corpus=(str(odd_texts),), min_context=9, stride=16)
    assert failed(checks) == {"each byte is scored once"}
    ids = [token for text in ODD for token in [0, *Run(trained_gpt).tokenizer().encode_ordinary(text)]]
    lengths = Run(trained_gpt).tokenizer().token_byte_lengths[ids]
    assert audit.counts.scored_bytes == lengths[9:].sum() < audit.counts.text_bytes == lengths.sum()


def test_a_tokenizer_that_loses_text_fails_at_the_first_byte_that_differs(wordpiece_run, tmp_path, odd_texts):
    audit, checks = audited(wordpiece_run, tmp_path, corpus=(str(odd_texts),))
    assert {"decoded text equals the original", "bits per byte are a code length"} <= failed(checks)
    tok = Run(wordpiece_run).tokenizer()
    ids = tok.encode_ordinary(ODD[0])
    written = tok.decode_bytes([token for token in ids if tok.ordinary[token]])
    place = next(i for i, pair in enumerate(zip(written, ODD[0].encode(), strict=False)) if len(set(pair)) == 2)
    assert (audit.counts.first_difference.document, audit.counts.first_difference.byte) == (1, place)
    assert audit.counts.unknown_tokens > 0 and audit.counts.replacement_characters_in_original == 2
    assert audit.counts.original_bytes == sum(len(text.encode()) for text in ODD)


def test_text_that_a_normalizer_changes_is_not_the_original(tmp_path, small_recipe, text_folder):
    """Such a tokenizer is lossless after its normalizer, and its bits per byte are of the normalized text."""
    bytelm.train_tokenizer([str(text_folder)], vocab_size=300, normalize=("nfc",), out=tmp_path / "tok")
    bytelm.build_dataset([str(text_folder)], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    short = replace(small_recipe, train=replace(small_recipe.train, tokens=2560))
    bytelm.pretrain(short, data=tmp_path / "data", out=tmp_path / "run")
    texts = ["e\u0301" * 30, "a"]
    for number, text in enumerate(texts):
        (tmp_path / f"{number}.txt").write_text(text)
    audit, checks = audited(tmp_path / "run", tmp_path, corpus=tuple(str(tmp_path / f"{i}.txt") for i in (0, 1)))
    wrong = {"decoded text equals the original", "decoded bytes, original bytes", "bits per byte, counted again"}
    assert failed(checks) == wrong
    assert audit.counts.original_bytes == sum(len(text.encode()) for text in texts)
    assert audit.counts.text_bytes == sum(len(normalize("NFC", text).encode()) for text in texts)


def test_a_split_whose_only_document_is_cut_has_no_original_to_compare_with(small_recipe, tokenizer_folder, tmp_path):
    (tmp_path / "text.txt").write_text("a line of text\n" * 2000)
    bytelm.build_dataset(
        [str(tmp_path / "text.txt")], tokenizer=tokenizer_folder, context_length=32, out=tmp_path / "data"
    )
    short = replace(small_recipe, train=replace(small_recipe.train, tokens=2560))
    bytelm.pretrain(short, data=tmp_path / "data", out=tmp_path / "run")
    audit, checks = audited(tmp_path / "run", tmp_path)
    assert audit.counts.documents == 1 and audit.counts.original_bytes is None
    assert "cuts its only document" in checks["decoded text equals the original"].found
    for name in (
        "decoded text equals the original",
        "decoded bytes, original bytes",
        "U+FFFD decoded, in the original",
    ):
        assert checks[name].passed is None
    assert checks["bits per byte, counted again"].found.endswith("per decoded byte")


def test_a_masked_model_has_no_code_length(trained_bert, tmp_path):
    audit, checks = audited(trained_bert, tmp_path)
    assert not failed(checks) and checks["bits per byte are a code length"].passed is None
    assert 0.1 < audit.counts.scored_tokens / audit.counts.tokens < 0.2


def test_tokens_that_are_scored_twice_or_never_are_found(trained_gpt):
    run = Run(trained_gpt)
    chosen = plan(run, EvaluationOptions())
    objective = objective_of(run, chosen.windows.window, run.tokenizer())
    ((name, stream),) = chosen.splits.items()
    trained = load_trained(run, "cpu", "float32")
    split = score(
        Split(chosen, name, stream, trained, run.tokenizer(), objective, None, TrainingText.of(run, []), None)
    )
    assert all(check.passed for check in audit_of(split).checks)
    some = TokenScores(*(column[50:55] for column in vars(split.tokens).values()))
    twice = audit_of(replace(split, tokens=TokenScores.join([split.tokens, some])))
    wrong = {check.name for check in twice.checks if not check.passed}
    assert wrong == {"no token is scored twice", "each byte is scored once", "bits per byte, counted again"}
    assert twice.counts.repeated_scores == 5
    kept = np.ones(len(split.tokens.nats), bool)
    kept[50:55] = False
    never = audit_of(replace(split, tokens=TokenScores(*(column[kept] for column in vars(split.tokens).values()))))
    wrong = {check.name for check in never.checks if not check.passed}
    assert wrong == {"each byte is scored once", "bits per byte, counted again"}


def test_the_command_prints_the_checks_and_refuses_runs_on_pairs(in_process, trained_gpt, trained_translator, tmp_path):
    done = in_process("evaluate", shutil.copytree(trained_gpt, tmp_path / "gpt"), "--audit")
    assert "decoded text equals the original" in done.stdout and "pass" in done.stdout and "FAIL" not in done.stdout
    refused = in_process("evaluate", trained_translator, "--audit")
    assert refused.returncode and "--audit is for next-token and masked-token" in refused.stderr
