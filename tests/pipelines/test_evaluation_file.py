"""evaluation.json keeps earlier evaluations, and `bytelm evaluate` names its numbers in words."""

import json
import pickle
import shutil

import pytest

from pipelines.evaluation.numbers import numbers, results
from pipelines.evaluation.results import Evaluation
from pipelines.run.folder import Run
from pipelines.verbs.evaluate import evaluate


@pytest.fixture
def run(tmp_path, trained_gpt):
    """Return a copy of the run without an evaluation."""
    folder = shutil.copytree(trained_gpt, tmp_path / "gpt")
    (folder / "evaluation.json").unlink(missing_ok=True)
    return folder


@pytest.fixture(scope="module")
def evaluated(tmp_path_factory, trained_gpt):
    """Return another copy of the run and its evaluation."""
    folder = shutil.copytree(trained_gpt, tmp_path_factory.mktemp("evaluated") / "gpt")
    evaluation = evaluate(folder)
    assert Evaluation.read(folder) == evaluation
    return folder, evaluation.to_json()


def saved(run):
    return json.loads((run / "evaluation.json").read_text())


def test_a_number_and_another_entry_have_different_names():
    """Otherwise the table of numbers would show the entry, such as a list of texts, in the row of the number."""
    named = [kind for kind in results() if not kind.key]
    others = {name for kind in named for name in kind.__dataclass_fields__ if name not in kind.numbers()}
    assert not others & set(numbers())


def test_an_evaluation_with_other_settings_keeps_the_earlier_one(run):
    chunked = evaluate(run).validation
    sliding = evaluate(run, stride=8).validation
    found = evaluate(run, splits=("train",)).all
    assert len(found) == 3
    assert chunked in found and sliding in found
    assert saved(run)["splits"]["validation"] == sliding.to_json()
    assert set(saved(run)["splits"]) == {"train", "validation"}


def test_a_repeated_evaluation_keeps_the_numbers_of_the_longer_one(run):
    longer = evaluate(run, compressors=True, against=run).to_json()["splits"]["validation"]
    assert evaluate(run).to_json()["splits"]["validation"] == longer
    assert saved(run)["measured"]["validation"]["against"] == str(run)
    assert "earlier" not in saved(run)


def test_a_repeated_evaluation_keeps_the_intervals_of_the_numbers_it_keeps(run, text_folder):
    corpus = {"corpus": (str(text_folder),), "splits": ("validation",)}
    [by_word] = evaluate(run, **corpus, unit="word").splits.values()
    assert by_word.intervals.bounds.keys() >= {"word_perplexity", "perplexity"}
    [again] = evaluate(run, **corpus).splits.values()
    assert again.word_perplexity == by_word.word_perplexity and again.intervals == by_word.intervals


def test_divergences_from_two_runs_are_both_kept(tmp_path, run):
    others = [shutil.copytree(run, tmp_path / name) for name in ("one", "two")]
    for other in others:
        evaluate(run, against=other)
    assert {evaluation.measured.against for evaluation in Evaluation.read(run).all} == set(map(str, others))


def test_an_evaluation_records_its_date_hardware_version_and_data(run):
    measured = evaluate(run).to_json()["measured"]["validation"]
    facts = Run(run).facts
    assert measured["date"] >= facts["date"]
    assert measured["version"] == facts["version"]
    assert measured["hardware"] and facts["hardware"]
    assert measured["data"] == facts["data"]


def test_a_damaged_evaluation_is_set_aside_and_not_overwritten(run):
    (run / "evaluation.json").write_text('{"splits": {"validation": 5}}')
    with pytest.warns(UserWarning, match=r"evaluation\.json is damaged: renamed to evaluation\.json\.damaged"):
        evaluate(run)
    assert (run / "evaluation.json.damaged").read_text() == '{"splits": {"validation": 5}}'
    assert saved(run)["splits"]["validation"]["tokens"]


@pytest.mark.parametrize(
    "contents",
    [
        {"splits": {"validation": 5}},
        {"splits": {"validation": {}}},
        {"splits": {"validation": {"tokens": 1, "bytes": 1, "cross_entropy_bits": "much", "accuracy": 0.5}}},
        {"splits": {}, "measured": {"validation": 5}},
        {"splits": {}, "earlier": [{"split": "validation"}]},
    ],
)
def test_an_evaluation_of_another_shape_is_refused_as_damaged(run, contents):
    (run / "evaluation.json").write_text(json.dumps(contents))
    with pytest.raises(ValueError, match=r"evaluation\.json is damaged"):
        Evaluation.read(run)


MATCHES = {"training": "data", "bytes": 9, "sampled": 1.0, "curve": []}
ROW = {"name": "number", "tokens": 1, "bytes": 1, "bits_per_token": 1.0, "bits_per_byte": None, "share": 1.0}


@pytest.mark.parametrize(
    "damage",
    [
        {"stride": None},
        {"dtype": 32},
        {"intervals": 5},
        {"intervals": {"perplexity": [1.0, 2.0]}},
        {"intervals": {"perplexity": [1.0], "resampled": "documents", "documents": 9}},
        {"intervals": {"perplexity": [1.0, "2"], "resampled": "documents", "documents": 9}},
        {"intervals": {"perplexity": [1.0, 2.0], "resampled": "blocks", "documents": 9}},
        {"difference": "better"},
        {"difference": {"value": 0.5}},
        {"difference": {"sentence": "a is better", "divergence": None}},
        {"memorisation": []},
        {"memorisation": MATCHES | {"bytes": "9"}},
        {"memorisation": MATCHES | {"curve": [{"length": 25, "begin": 0.1}]}},
        {"memorisation": MATCHES | {"curve": [{"length": 25, "begin": 0.1, "inside": 0.2, "loss": {"inside": 5}}]}},
        {"entropy_calibration": 5},
        {"entropy_calibration": {"positions": [5]}},
        {"entropy_calibration": {"positions": [{"first": 1, "last": 2, "generated": [1.0]}]}},
        {"breakdown": []},
        {"breakdown": {"class": 5}},
        {"breakdown": {"class": [ROW, 5]}},
        *(
            {"breakdown": {"class": [ROW, ROW | {key: value}]}}
            for key, value in [("name", 1), ("text", 1), ("share", "")]
        ),
        *(
            {"breakdown": {"class": [{key: ROW[key] for key in ROW if key != missing}]}}
            for missing in ("tokens", "name")
        ),
    ],
)
def test_entries_with_a_wrong_structure_are_refused_as_damaged(evaluated, damage):
    run, contents = evaluated
    damaged = contents | {"splits": {"validation": contents["splits"]["validation"] | damage}}
    (run / "evaluation.json").write_text(json.dumps(damaged))
    with pytest.raises(ValueError, match=r"evaluation\.json is damaged"):
        Evaluation.read(run)


def test_no_run_is_evaluated_if_one_of_them_cannot_be(tmp_path, run, trained_bert):
    bert = shutil.copytree(trained_bert, tmp_path / "bert")
    (bert / "evaluation.json").unlink(missing_ok=True)
    with pytest.raises(ValueError, match="bert was trained on masked-token"):
        evaluate([run, bert], stride=8)
    assert not (run / "evaluation.json").exists()
    assert [evaluation.to_json() for evaluation in evaluate([run, bert])] == [saved(run), saved(bert)]


def test_the_command_prints_names_definitions_and_the_file(in_process, run):
    done = in_process("evaluate", run, "--explain")
    assert done.returncode == 0, done.stderr
    assert "cross-entropy, bits per token" in done.stdout
    assert "Total bits of the scored tokens, divided by their bytes." in done.stdout
    assert f"saved in {run / 'evaluation.json'}" in done.stdout


def test_the_command_prints_perplexity_and_bits_per_byte_before_the_table(in_process, run, tmp_path, trained_bert):
    numbers = evaluate(run).validation
    first, second, *_ = in_process("evaluate", run, "--quiet").stdout.splitlines()
    quoted = f"validation: perplexity {numbers.perplexity:,.2f}, {numbers.bits_per_byte:.4f} bits per byte"
    assert (first, second) == (quoted, "")
    bert = shutil.copytree(trained_bert, tmp_path / "bert")
    first, second, third, *_ = in_process("evaluate", run, bert, "--quiet").stdout.splitlines()
    assert first.startswith("gpt, validation: perplexity ") and second.startswith("bert, validation: perplexity ")
    assert second.endswith(" bits per byte of masked text") and third == ""


def test_an_evaluation_reads_well_in_a_notebook(evaluated):
    _, contents = evaluated
    evaluation = Evaluation.from_json(contents)
    numbers = contents["splits"]["validation"]
    assert evaluation.to_json() == contents
    assert evaluation.validation is evaluation.splits["validation"]
    assert evaluation.validation.bits_per_byte == numbers["bits_per_byte"]
    assert evaluation.validation.bleu is None  # a number that this run has not
    assert evaluation.validation.intervals.bounds["accuracy"] == tuple(numbers["intervals"]["accuracy"])
    quoted = f"validation: perplexity {numbers['perplexity']:,.2f}, {numbers['bits_per_byte']:.4f} bits per byte"
    assert repr(evaluation) == f"evaluation of gpt\n  {quoted} ({contents['data']})"
    assert "validation" in dir(evaluation) and "bits_per_byte" in dir(evaluation.validation)
    with pytest.raises(AttributeError, match="the evaluation has no split 'test'; it has validation"):
        evaluation.test  # noqa: B018
    with pytest.raises(AttributeError, match=r"no number or result 'perplexty'\. Did you mean 'perplexity'\?"):
        evaluation.validation.perplexty  # noqa: B018
    assert pickle.loads(pickle.dumps(evaluation)) == evaluation


def test_the_command_prints_json_and_nothing_else(in_process, tmp_path, run):
    second = shutil.copytree(run, tmp_path / "second" / "gpt")
    done = in_process("evaluate", run, second, "--json")
    assert done.returncode == 0, done.stderr
    assert [json.loads(line) for line in done.stdout.splitlines()] == [saved(run), saved(second)]


def test_runs_with_the_same_name_have_different_column_heads(in_process, tmp_path, run):
    second = shutil.copytree(run, tmp_path / "second" / "gpt")
    done = in_process("evaluate", run, second)
    assert "second/gpt, validation" in done.stdout
    assert f"{tmp_path.name}/gpt, validation" in done.stdout
