"""Fine-tuning: runs like any other, their evaluation, predictions and errors."""

import csv
import io
import json
import math
import shutil
import subprocess
import sys
import warnings
from dataclasses import replace

import numpy as np
import pyarrow.parquet
import pytest
import torch

import bytelm
from pipelines.evaluation.results import Evaluation
from pipelines.recipes.finetune_config import FinetuneConfig
from pipelines.recipes.recipe import save_config
from pipelines.run.checkpoint_reader import load_weights
from pipelines.run.folder import Run
from pipelines.run.retention import latest_checkpoint
from pipelines.tasks.comparison import SCRATCH, Comparison
from pipelines.tasks.data import ExampleFiles
from pipelines.training.task_data import SORTED_BATCHES, ExampleOrder
from pipelines.verbs.predict import predict
from tests.pipelines.training_cases import accept_config, rewrite_state
from tests.tasks.files import write

SETTINGS = {"epochs": 4, "lr": 3e-3, "batch_size": 8, "device": "cpu", "dtype": "float32"}


def test_every_epoch_reads_all_examples_in_a_new_order_in_batches_of_similar_length():
    lengths = np.random.default_rng(0).integers(1, 500, size=1000)
    batches = batches_of(lengths, seed=0)
    orders = np.concatenate(batches).reshape(3, 1000)
    assert all(sorted(order) == list(range(1000)) for order in orders.tolist())
    first, second = ({frozenset(batch.tolist()) for batch in batches[i * 125 : i * 125 + 125]} for i in (0, 1))
    assert len(first & second) < 5  # batches of other examples, not only the same batches in another order
    spread = np.mean([np.ptp(lengths[batch]) for batch in batches])
    assert spread < 4 * 500 / SORTED_BATCHES  # by chance it would be 390
    firsts = [lengths[batch[0]] for batch in batches]
    assert abs(np.corrcoef(firsts[:-1], firsts[1:])[0, 1]) < 0.3  # batches are not in order of length
    assert (np.concatenate(batches_of(lengths, seed=0)).reshape(3, 1000) == orders).all()
    assert not (np.concatenate(batches_of(lengths, seed=1)).reshape(3, 1000) == orders).all()


def batches_of(lengths, seed, epochs=3):
    order, consumed, batches = ExampleOrder(lengths, 8, seed), 0, []
    while consumed < epochs * len(lengths):
        batches.append(order.rows(consumed))
        consumed += len(batches[-1])
    return batches


@pytest.fixture(scope="module")
def passages(tmp_path_factory, text_folder):
    """Return 90 training and 60 test passages of 60 characters, labelled by which of three modules they are from."""
    folder = tmp_path_factory.mktemp("passages")
    sources = [sorted(text_folder.glob("*.txt"))[i].read_text() for i in (0, 20, 40)]
    rows = [
        {"text": source[60 * i : 60 * (i + 1)], "label": label}
        for i in range(50)
        for label, source in enumerate(sources)
    ]
    return write(folder / "train.jsonl", rows[:90]), write(folder / "test.jsonl", rows[90:])


@pytest.fixture(scope="module")
def tuned(tmp_path_factory, trained_bert, passages):
    """Return a run that is fine-tuned for classes."""
    out = tmp_path_factory.mktemp("tuned") / "modules"
    return bytelm.finetune(trained_bert, data=passages[0], test=passages[1], out=out, train=SETTINGS)


def numbers_of(run):
    return json.loads((run.path / "evaluation.json").read_text())["splits"]["validation"]


def test_a_fine_tuned_run_has_the_files_of_any_run(tuned, trained_bert, tmp_path):
    assert {path.name for path in tuned.path.iterdir()} - {".lock"} == {
        "checkpoints",
        "config.toml",
        "evaluation.json",
        "metrics.jsonl",
        "tokenizer.json",
    }
    files = [path for path in tuned.path.iterdir() if path.is_file() and path.name != ".lock"]
    assert len({path.stat().st_mode for path in files}) == 1  # the same permissions for all files
    losses = tuned.metrics("validation")["loss"]
    assert len(losses) == 5 and losses[-1] < losses[0]  # before training, and after each epoch
    run = Run(shutil.copytree(tuned.path, tmp_path / "moved"))
    assert run.tokenizer().fingerprint == Run(trained_bert).tokenizer().fingerprint
    assert run.recipe.task.labels == (0, 1, 2)
    assert repr(tuned).startswith("modules: encoder") and "(classes)" in repr(tuned)


def test_predictions_reproduce_the_evaluation(tuned, passages):
    rows = [json.loads(line) for line in passages[1].read_text().splitlines()]
    said = tuned.predict([row["text"] for row in rows])
    right = [row["label"] == one["prediction"] for row, one in zip(rows, said, strict=True)]
    nats = [-math.log(one["probabilities"][str(row["label"])]) for row, one in zip(rows, said, strict=True)]
    numbers = numbers_of(tuned)
    assert numbers["accuracy"] == pytest.approx(np.mean(right))
    assert numbers["label_nats"] == pytest.approx(np.mean(nats), rel=1e-5)
    assert bytelm.evaluate(tuned).validation.accuracy == numbers["accuracy"]


def test_a_run_learns_to_tell_two_words_apart(tmp_path, trained_bert):
    rows = [{"text": f"{word} {i} {word} = {i}", "label": word} for i in range(40) for word in ("import", "return")]
    data = write(tmp_path / "rows.jsonl", rows)
    made = bytelm.finetune(
        trained_bert, data=data, out=tmp_path / "out", train=SETTINGS, held_out=0.3, compare_scratch=False
    )
    assert numbers_of(made)["accuracy"] > 0.95 and numbers_of(made)["macro_f1"] > 0.95
    assert [one["prediction"] for one in made.predict(["return 99", "import 99"])] == ["return", "import"]


def test_the_evaluation_includes_simpler_predictors_and_keeps_the_model_from_scratch(
    tuned, tmp_path, trained_bert, passages
):
    others = numbers_of(tuned)["comparison"]["others"]
    assert set(others) == {SCRATCH, "naive Bayes", "most frequent label"}
    assert others["most frequent label"]["accuracy"] == pytest.approx(1 / 3)
    scratch = bytelm.finetune(
        trained_bert, data=passages[0], test=passages[1], out=tmp_path / "s", from_scratch=True, train=SETTINGS
    )
    assert others[SCRATCH]["accuracy"] == numbers_of(scratch)["accuracy"]
    assert SCRATCH not in numbers_of(scratch)["comparison"]["others"]
    assert bytelm.evaluate(tuned).validation.comparison.others[SCRATCH] == others[SCRATCH]


def test_a_worse_result_than_from_scratch_is_said():
    values = {"own": {"accuracy": 0.59}, "others": {SCRATCH: {"accuracy": 0.95}, "naive Bayes": {"accuracy": 0.4}}}
    (sentence,) = Comparison(number="accuracy", highest=True, **values).sentences(0)
    assert sentence.startswith("Pretraining makes it worse here: accuracy 0.5900 against 0.9500 from scratch.")


def test_the_same_seed_makes_the_same_run(tuned, tmp_path, trained_bert, passages):
    weights = [load_weights(tuned.path, tuned.run.settings)[1]]
    for name, seed in (("again", 0), ("other", 1)):
        made = bytelm.finetune(
            trained_bert, data=passages[0], test=passages[1], out=tmp_path / name, train=SETTINGS | {"seed": seed},
            compare_scratch=False,
        )  # fmt: skip
        weights.append(load_weights(made.path, made.run.settings)[1])
    assert all(torch.equal(weights[0][name], weights[1][name]) for name in weights[0])
    assert not all(torch.equal(weights[0][name], weights[2][name]) for name in weights[0])


def test_more_epochs_extend_a_run(tmp_path, trained_bert, passages):
    options = {"data": passages[0], "test": passages[1], "out": tmp_path / "out", "compare_scratch": False}
    bytelm.finetune(trained_bert, **options, train=SETTINGS | {"epochs": 1})
    made = bytelm.finetune(trained_bert, **options, train=SETTINGS | {"epochs": 2})
    assert made.metrics("validation")["step"].tolist() == [0, 12, 24]
    with pytest.raises(
        ValueError, match=r"holds another run: its finetune.lr is 0.003, not 0.001; choose another `out`"
    ):
        bytelm.finetune(trained_bert, **options, train=SETTINGS | {"lr": 1e-3})
    with pytest.raises(ValueError, match="was trained on other data"):
        bytelm.finetune(trained_bert, **options | {"data": passages[1]}, train=SETTINGS | {"epochs": 2})
    with pytest.raises(ValueError, match=r"its finetune\.epochs is 2"):
        bytelm.finetune(trained_bert, **options, train=SETTINGS | {"epochs": 1})


def test_moved_examples_are_remembered(tmp_path, trained_bert, passages):
    data, test = (shutil.copy(path, tmp_path) for path in passages)
    options = {"out": tmp_path / "out", "compare_scratch": False}
    bytelm.finetune(trained_bert, data=data, test=test, **options, train=SETTINGS | {"epochs": 1})
    moved = shutil.move(test, tmp_path / "moved.jsonl")
    made = bytelm.finetune(trained_bert, data=data, test=moved, **options, train=SETTINGS | {"epochs": 2})
    assert made.run.facts["test"] == [str(moved)]
    assert made.evaluate().validation.measured.data == str(moved)


def test_a_folder_with_a_run_of_another_start_is_refused(tmp_path, trained_bert, trained_gpt, passages):
    call = {"data": passages[0], "test": passages[1], "out": tmp_path / "out", "compare_scratch": False}
    call["train"] = SETTINGS | {"epochs": 1}
    made = bytelm.finetune(trained_bert, **call)
    with pytest.raises(ValueError, match=r"holds another run: it started from the weights of .*, not from random w"):
        bytelm.finetune(trained_bert, **call, from_scratch=True)
    other = shutil.copytree(trained_bert, tmp_path / "other")
    assert bytelm.finetune(other, **call).path == made.path  # the same run at another place
    changed = shutil.copytree(other, tmp_path / "changed")
    rewrite_state(latest_checkpoint(changed), note="another checkpoint")
    with pytest.raises(ValueError, match=r"it started from the weights of .*, not from the weights of .*changed; ch"):
        bytelm.finetune(changed, **call)
    with pytest.raises(ValueError, match="its tokenizer has the fingerprint"):
        bytelm.finetune(trained_gpt, **call | {"task": "chat", "data": chats(tmp_path), "test": ()})


def test_a_run_without_a_checkpoint_starts_again_from_the_same_weights_only(tmp_path, trained_bert, passages):
    start, out = shutil.copytree(trained_bert, tmp_path / "start"), tmp_path / "out"
    call = {"data": passages[0], "test": passages[1], "out": out, "compare_scratch": False}
    call["train"] = SETTINGS | {"epochs": 1}
    bytelm.finetune(start, **call)
    shutil.rmtree(out / "checkpoints")
    rewrite_state(latest_checkpoint(start), note="another checkpoint")
    with pytest.raises(ValueError, match=r"out has no checkpoint yet, and its start cannot be repeated \(.*start"):
        bytelm.finetune(start, **call)
    shutil.rmtree(start)
    assert bytelm.finetune(shutil.copytree(trained_bert, start), **call).path == out


def chats(folder):
    turns = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    return write(folder / "chats.jsonl", [{"messages": [turns[0] | {"content": str(i)}, turns[1]]} for i in range(40)])


def test_other_examples_have_the_baselines_of_the_training_examples_while_these_exist(
    tmp_path, trained_bert, passages, recwarn, in_process
):
    data = write(tmp_path / "rows.jsonl", [json.loads(line) for line in passages[0].read_text().splitlines()])
    train = SETTINGS | {"epochs": 1}
    run = bytelm.finetune(
        trained_bert, data=data, out=tmp_path / "out", held_out=0.3, train=train, compare_scratch=False
    )
    own = bytelm.evaluate(run).validation
    _, _, examples = ExampleFiles.of(run.run).split(run.config.task)
    held_out = write(tmp_path / "held-out.jsonl", [example.row.fields for example in examples])
    assert bytelm.evaluate(run, data=held_out).validation.comparison.others == own.comparison.others
    assert not any("too" in str(warning.message) for warning in recwarn.list)  # none is a training example
    data.write_text(data.read_text() + json.dumps({"text": "more", "label": 0}) + "\n")
    with pytest.raises(ValueError, match=r"rows\.jsonl has changed since .*out was trained: restore the examples, or"):
        bytelm.evaluate(run)
    data.unlink()
    with pytest.raises(ValueError, match=r"there is no .*rows\.jsonl"):
        bytelm.evaluate(run)
    done = in_process("evaluate", run.path, "--data", passages[1])
    assert done.returncode == 0 and "baselines are left out: there is no" in done.stdout + done.stderr
    other = Evaluation.read(run.path).validation
    assert other.examples == 60 and other.find(Comparison) is None


def test_texts_beyond_the_context_are_cut_and_counted(tmp_path, trained_bert):
    data = write(
        tmp_path / "rows.jsonl", [{"text": "a" if i % 2 else "a b c " * 100, "label": i % 2} for i in range(8)]
    )
    with pytest.warns(UserWarning, match=r"8 of the 8 examples of .* are in .* too"):
        made = bytelm.finetune(trained_bert, data=data, test=data, out=tmp_path / "out", train=SETTINGS | {"epochs": 1})
    assert numbers_of(made)["cut_examples"] == 4
    with pytest.warns(UserWarning, match="1 of 2 examples is longer than the model reads: it was cut"):
        made.predict(["a b c " * 100, "short"])
    long, longer = made.predict(["a b c " * 100, "a b c " * 200])
    assert long == longer


def test_an_empty_text_is_refused_and_rows_without_a_text_are_reported(tuned, tmp_path, in_process):
    with pytest.raises(ValueError, match="text 2 is empty"):
        tuned.predict(["return 1", "", "import 2"])
    done = in_process("predict", tuned.path, "--json", stdin="return 1\n\nimport 2\n")
    assert done.returncode == 1 and "text 2 is empty" in done.stderr
    rows = [{"text": text} for text in ("return 1", "", "import 2", None)]
    with pytest.warns(UserWarning, match=r"without a text: line 2 of .* and 1 more"):
        said = predict(tuned, file=write(tmp_path / "rows.jsonl", rows))
    assert len(said) == 2


def test_predictions_are_printed_or_in_a_file(tuned, tmp_path, in_process):
    done = in_process("predict", tuned.path, "return 1", "--out", "out.jsonl", "--json")
    assert done.returncode == 1 and "--json prints the predictions, but --out writes them" in done.stderr
    assert not (tmp_path / "out.jsonl").exists()
    assert "1 prediction in out.jsonl" in in_process("predict", tuned.path, "return 1", "--out", "out.jsonl").stdout


def test_predictions_keep_the_columns_of_a_file(tuned, passages, tmp_path):
    rows = [json.loads(line) | {"id": i} for i, line in enumerate(passages[1].read_text().splitlines())]
    data = write(tmp_path / "rows.jsonl", rows)
    said = tuned.predict([row["text"] for row in rows])
    for name in ("p.jsonl", "p.csv", "p.tsv", "p.parquet"):
        bytelm.predict(tuned, file=data, out=tmp_path / name)
    lines = [json.loads(line) for line in (tmp_path / "p.jsonl").read_text().splitlines()]
    assert lines == [row | one for row, one in zip(rows, said, strict=True)]
    table = pyarrow.parquet.read_table(tmp_path / "p.parquet").to_pylist()
    assert [row["id"] for row in table] == list(range(len(rows)))
    for name, delimiter in (("p.csv", ","), ("p.tsv", "\t")):
        read = list(csv.DictReader(io.StringIO((tmp_path / name).read_text(), newline=""), delimiter=delimiter))
        assert [row["text"] for row in read] == [row["text"] for row in rows]
        assert [row["prediction"] for row in read] == [str(one["prediction"]) for one in said]
    with pytest.raises(ValueError, match=r'line 1 of .*p.jsonl has a field "prediction", which the prediction would'):
        bytelm.predict(tuned, file=tmp_path / "p.jsonl", out=tmp_path / "twice.csv")
    assert not (tmp_path / "twice.csv").exists()


@pytest.mark.parametrize(
    ("later", "name", "match"),
    [
        ({"note": "x"}, "p.csv", r'line 5001 of .* has a field "note", which line 1 of .* lacks, .* ends in \.jsonl'),
        ({"note": "x"}, "p.parquet", r'line 5001 of .* has a field "note", which line 1 of .* lacks'),
        ({"id": "x"}, "p.parquet", r'"id" in line 5001 of .* is \'x\', which has another type .* ends in \.jsonl'),
        ({"empty": "x"}, "p.parquet", r'"empty" in line 5001 of .* is \'x\', which has another type'),
        ({"more": {"a": 1, "b": 2}}, "p.parquet", r'"more" in line 5001 of .* is .*, which has another type'),
    ],
)
def test_a_field_that_a_table_would_lose_is_refused_before_the_work(tuned, tmp_path, monkeypatch, later, name, match):
    rows = [{"text": "import os", "id": i, "empty": None, "more": {"a": i}} for i in range(5001)]
    rows[5000] |= later
    data = write(tmp_path / "rows.jsonl", rows)
    monkeypatch.setattr(torch.nn.Module, "__call__", lambda *_: pytest.fail("the model runs"))
    with pytest.raises(ValueError, match=match):
        bytelm.predict(tuned, file=data, out=tmp_path / name)
    assert not (tmp_path / name).exists()


def test_an_object_that_parquet_lacks_is_refused(tuned, tmp_path):
    data = write(tmp_path / "rows.jsonl", [{"text": "a", "more": {}}])
    with pytest.raises(ValueError, match=r'"more" in line 1 of .* is \{\}, .* or one that Parquet lacks'):
        bytelm.predict(tuned, file=data, out=tmp_path / "p.parquet")


def test_predict_reads_arguments_and_lines(tuned, in_process):
    texts = ["import os", "return 3"]
    given = in_process("predict", tuned.path, *texts, "--json")
    piped = in_process("predict", tuned.path, "--json", stdin="".join(text + "\n" for text in texts))
    assert given.stdout == piped.stdout
    first = json.loads(given.stdout.splitlines()[0])
    shown = in_process("predict", tuned.path, texts[0]).stdout
    assert f"{first['prediction']} {first['probability']:.0%}" in shown and shown.endswith(": import os\n")
    code = "give `top_k=5` or `as_json`"  # messages of bytelm would name options
    assert in_process("predict", tuned.path, code).stdout.endswith(f": {code}\n")


def test_lines_of_standard_input_end_at_lf_and_cr_lf_only(tuned, monkeypatch):
    plain = ("a\rb", "\rc", "d\x0b\x0c\x1c\x85\u2028e", "last\r")
    for end, texts in (("\n", plain), ("\r\n", ("f\r", *plain))):
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(end.join(texts).encode())))
        assert bytelm.predict(tuned) == bytelm.predict(tuned, texts)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"good\r\n\xff\xfe abc\n")))
    with pytest.raises(ValueError, match=r"line 2 of standard input is not UTF-8 \(invalid start byte\): convert it"):
        bytelm.predict(tuned)


def test_verbs_for_tokens_refuse_a_run_with_another_head_and_name_its_origin(tuned, trained_bert, trained_gpt):
    for verb, options in (("generate", {"prompt": "x"}), ("score", {"text": "x"}), ("export_onnx", {"out": "x"})):
        with pytest.raises(ValueError, match=f"is fine-tuned for the task classes .* made of \\({trained_bert}"):
            getattr(bytelm, verb)(tuned.path, **options)
    with pytest.raises(ValueError, match="is not fine-tuned for a task"):
        bytelm.predict(trained_gpt, "text")


def test_a_full_disk_is_a_one_line_error(tmp_path, trained_bert):
    """A limit on file sizes makes writing fail as a full disk does."""
    rows = write(tmp_path / "rows.jsonl", [{"text": f"text {i}", "label": "xy"[i % 2]} for i in range(40)])
    command = ["finetune", str(trained_bert), "--data", str(rows), "--out", str(tmp_path / "out"), "--device", "cpu"]
    code = (
        "import resource, sys; from pipelines.cli.dispatch import main; import torch; "
        f"resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000)); sys.exit(main({command!r}))"
    )
    # -B: the limit would cut compiled bytecode off, too.
    done = subprocess.run([sys.executable, "-B", "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "Traceback" not in done.stderr
    assert "File too large" in done.stderr


def refused(rows, run, tmp_path, match, **options):
    data = write(tmp_path / "rows.jsonl", rows)
    with pytest.raises(ValueError, match=match):
        bytelm.finetune(run, data=data, out=tmp_path / "out", **{"train": SETTINGS, **options})
    assert not (tmp_path / "out").exists()


def test_mistakes_are_named_before_anything_is_written(tmp_path, trained_bert, tuned):
    two = [{"text": "a", "label": "x"}, {"text": "b", "label": "y"}]
    refused(two, trained_bert, tmp_path, "no example of .*rows.jsonl is held out: raise `held_out`", held_out=1e-9)
    refused(two, trained_bert, tmp_path, "`held_out` is 1.5", held_out=1.5)
    refused(two, trained_bert, tmp_path, "there is no .*none.jsonl: name a file", test=tmp_path / "none.jsonl")
    refused(two, trained_bert, tmp_path, "there is no task 'clases': did you mean 'classes'", task="clases")
    refused(
        two, trained_bert, tmp_path, "`options` has no field 'poling': did you mean 'pooling'", options={"poling": 1}
    )
    refused(two, trained_bert, tmp_path, "`train` has no field 'epoch': did you mean 'epochs'", train={"epoch": 1})
    refused(two, tuned.path, tmp_path, "is fine-tuned for the task classes and predicts no tokens")


def test_an_existing_folder_is_left_alone(tmp_path, trained_bert, passages):
    (tmp_path / "mine").write_text("mine")
    with pytest.raises(ValueError, match="is not empty and holds no run"):
        bytelm.finetune(trained_bert, data=passages[0], out=tmp_path, train=SETTINGS)
    assert (tmp_path / "mine").read_text() == "mine"


def test_an_encoder_whose_attention_has_no_dropout_is_fine_tuned_without_it(tmp_path, trained_bert, passages):
    folder = shutil.copytree(trained_bert, tmp_path / "bert")
    run = Run(folder)
    model = replace(run.recipe.model, dropout=0.0, attention="closed_form")
    save_config(folder / "config.toml", replace(run.recipe, model=model), run.facts)
    accept_config(folder)
    with pytest.raises(ValueError, match=r"model\.attention = 'closed_form', .* `dropout` is 0\.1: give `dropout=0`"):
        bytelm.finetune(folder, data=passages[0], out=tmp_path / "out", train=SETTINGS)
    assert not (tmp_path / "out").exists()
    made = bytelm.finetune(
        folder, data=passages[0], out=tmp_path / "out", train=SETTINGS | {"dropout": 0.0, "epochs": 1},
        compare_scratch=False,
    )  # fmt: skip
    assert made.config.model.attention == "closed_form"


@pytest.mark.parametrize(
    "options",
    [
        {"epochs": 0},
        {"lr": 0.0},
        {"batch_size": 0},
        {"dropout": 1.0},
        {"warmup": -0.1},
        {"grad_clip": -1.0},
        {"seed": 2**63},
    ],
)
def test_impossible_settings_are_refused_by_name(options):
    with pytest.raises(ValueError, match=f"`{next(iter(options))}`"):
        FinetuneConfig(**options)


@pytest.mark.parametrize(("warmup", "warned"), [(0.99, True), (0.5, False)])
def test_a_warm_up_of_all_steps_is_named(tmp_path, trained_bert, passages, warmup, warned):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        bytelm.finetune(
            trained_bert, data=passages[0], test=passages[1], out=tmp_path / "out", compare_scratch=False,
            train=SETTINGS | {"epochs": 1, "warmup": warmup},
        )  # fmt: skip
    assert any("`warmup=0.99` lasts until the last step" in str(each.message) for each in caught) == warned


def test_the_command_prints_a_table_for_people_and_a_dry_run_nothing_else(in_process, tmp_path, trained_bert, passages):
    words = (
        "finetune", trained_bert, "--data", passages[0], "--test", passages[1], "--out", tmp_path / "out",
        "--epochs", "1", "--dtype", "float32", "--pooling", "first",
    )  # fmt: skip
    dry = in_process(*words, "--dry-run")
    assert "would fine-tune" in dry.stdout and "90 examples, 1 epochs in batches of 16" in dry.stdout
    assert not (tmp_path / "out").exists()
    done = in_process(*words)
    assert done.returncode == 0, done.stderr
    for shown in ("validation: accuracy", "macro F1", SCRATCH, "naive Bayes", "The 95 % interval of the accuracy is"):
        assert shown in done.stdout
    assert "perplexity" not in done.stdout + done.stderr
    assert Run(tmp_path / "out").recipe.task.pooling == "first"
    assert "would resume the run" in in_process(*words, "--dry-run").stdout
    for options, match in (
        (("--lr", "0.5"), "holds another run: its finetune.lr is"),
        (("--from-scratch",), "holds another run: it started from the weights of"),
    ):
        refused = in_process(*words, *options, "--dry-run")
        assert refused.returncode == 1 and match in refused.stderr
