"""Damaged or hostile JSON and TOML files are refused with one sentence that names the file and the remedy."""

import json
import os
import re
import shutil
import signal
from contextlib import contextmanager

import pytest

from corpora.cards import load_card
from pipelines.cli.text_input import file_text
from pipelines.dataset.dataset_manifest import problems
from pipelines.dataset.reader import TokenDataset, write_info
from pipelines.evaluation.results import Evaluation
from pipelines.exchange.transformers_import import read_weights
from pipelines.recipes.recipe import load_recipe
from pipelines.run.folder import Run
from pipelines.run.loaded_run import load_trained
from pipelines.run.manifest import read_manifest, read_verified
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.import_hf import import_hf
from pipelines.verbs.report import report
from pipelines.verbs.runs import runs
from pipelines.verbs.tokenize import tokenize
from tokenizer import PretokenCounts, Tokenizer, count_pretokens

NESTED = "[" * 200_000
NOT_STRICT = {
    "nested": NESTED,
    "nested in a value": '{"a": ' + NESTED,
    "repeated name": '{"a": 1, "a": 2}',
    "NaN": '{"a": NaN}',
    "infinity": '{"a": -Infinity}',
    "long number": '{"a": ' + "9" * 5000 + "}",
    "a list": "[]",
    "not UTF-8": "{\udcff}",
    "empty": "",
}


def write(path, text):
    path.write_bytes(text.encode(errors="surrogateescape"))


def assert_one_sentence(error, *names):
    message = str(error.value)
    assert "\n" not in message and len(message) < 500
    assert all(str(name) in message for name in names), message


@pytest.mark.parametrize("damage", NOT_STRICT)
def test_every_json_file_of_a_run_is_read_strictly(damage, tmp_path, trained_gpt, dataset_folder):
    text = NOT_STRICT[damage]
    out, data = shutil.copytree(trained_gpt, tmp_path / "gpt"), shutil.copytree(dataset_folder, tmp_path / "data")

    write(data / "dataset.json", text)
    with pytest.raises(ValueError) as error:
        TokenDataset(data)
    assert_one_sentence(error, data / "dataset.json", "build the dataset again")

    write(out / "evaluation.json", text)
    with pytest.raises(ValueError) as error:
        Evaluation.read(out)
    assert_one_sentence(error, out / "evaluation.json", f"run bytelm evaluate {out} again")

    write(out / "metrics.jsonl", text + "\n")
    with pytest.raises(ValueError) as error:
        Run(out).metrics()
    assert_one_sentence(error, "line 1 of", out / "metrics.jsonl", "remove")

    for folder in (out / "checkpoints").iterdir():
        write(folder / "state.json", text)
    assert runs((out,))[0].state == "damaged"
    shutil.copy(trained_gpt / "metrics.jsonl", out)
    assert runs((out,))[0].state == "stopped"

    for folder in (out / "checkpoints").iterdir():
        write(folder / "manifest.json", text)
    with pytest.warns(UserWarning, match=r"manifest\.json is"), pytest.raises(ValueError) as error:
        load_trained(Run(out))
    assert_one_sentence(error, "manifest.json")


@pytest.mark.parametrize("damage", ["nested", "nested in a value", "long number", "not UTF-8"])
def test_a_config_or_a_recipe_is_read_strictly(damage, tmp_path, trained_gpt):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    text = {
        "nested": "a = " + NESTED,
        "nested in a value": "a = " + "{b = " * 100_000,
        "long number": "a = " + "9" * 5000,
        "not UTF-8": "a = '\udcff'",
    }[damage]
    write(out / "config.toml", text)
    for read in (Run, lambda folder: load_recipe(folder / "config.toml")):
        with pytest.raises(ValueError) as error:
            read(out)
        assert_one_sentence(error, out / "config.toml", "not a TOML file")


@pytest.mark.parametrize("value", ["inf", "nan", "1" + "0" * 400, "-1e300"])
def test_a_number_of_a_recipe_that_float32_cannot_hold_is_refused(value, tmp_path):
    (tmp_path / "mine.toml").write_text(f"[train]\nlr = {value}\n")
    with pytest.raises(ValueError, match=r"mine\.toml: train\.lr is out of range: its magnitude must be below 2\^128"):
        load_recipe(tmp_path / "mine.toml")


@pytest.mark.parametrize("damage", NOT_STRICT)
def test_the_json_files_of_a_hugging_face_model_are_read_strictly(damage, tmp_path, peers):
    source = shutil.copytree(peers("gpt2")[0], tmp_path / "peer")
    (source / "model.safetensors").rename(source / "other.safetensors")
    write(source / "model.safetensors.index.json", NOT_STRICT[damage])
    with pytest.raises(ValueError) as error:
        read_weights(source)
    assert_one_sentence(error, source / "model.safetensors.index.json", "fetch it again")
    for name in ("config.json", "generation_config.json", "special_tokens_map.json"):
        copy = shutil.copytree(peers("gpt2")[0], tmp_path / name)
        write(copy / name, NOT_STRICT[damage])
        with pytest.raises(ValueError) as error:
            import_hf(str(copy), out=tmp_path / "run")
        assert_one_sentence(error, copy / name)


@pytest.mark.parametrize("shards", [["a.safetensors"], {"a": ["a.safetensors"]}, {"a": {}}, {"a": 3}, {"a": "../a"}, 3])
def test_a_weight_map_that_names_no_files_is_refused(shards, tmp_path):
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": shards}))
    with pytest.raises(ValueError, match=r"index\.json is damaged: its weight_map names no file"):
        read_weights(tmp_path)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("split", ["train"]),
        ("split", None),
        ("split", "../../elsewhere"),
        ("loss", 1e308),
        ("loss", "low"),
        ("loss", True),
        ("step", 1e308),
        ("step", -1),
        ("tokens", 10**400),
        ("time_s", 1e308),
        ("time_s", []),
        ("lr", {}),
        ("grad_norm", 10**400),
    ],
)
def test_a_wrong_field_of_metrics_is_named(field, value, tmp_path, trained_gpt):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    first, second, *rest = (out / "metrics.jsonl").read_text().splitlines(keepends=True)
    (out / "metrics.jsonl").write_text("".join([first, json.dumps(json.loads(second) | {field: value}) + "\n", *rest]))
    for read in (lambda: report([out]), lambda: Run(out).metrics()):
        with pytest.raises(ValueError) as error:
            read()
        assert_one_sentence(error, "line 2 of", out / "metrics.jsonl", field, "remove that line")
    assert runs((out,))[0].why.startswith("line 2 of")


@pytest.mark.parametrize("splits", [5, {"validation": 5}, {"validation": []}, {"validation": None}, []])
def test_an_evaluation_with_damaged_splits_is_named(splits, tmp_path, trained_gpt):
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    (out / "evaluation.json").write_text(json.dumps({"splits": splits}))
    with pytest.raises(ValueError) as error:
        report([out], inside=False, samples=False)
    assert_one_sentence(error, out / "evaluation.json", f"run bytelm evaluate {out} again")


@pytest.mark.parametrize("number", [10**400, 1 << 63, 1e308])
def test_a_count_of_a_dataset_above_64_bits_is_refused(number, tmp_path, dataset_folder):
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    info = json.loads((data / "dataset.json").read_text())
    info["splits"]["train"]["encoded_tokens"] = number
    write_info(data, info)
    with pytest.raises(ValueError) as error:
        TokenDataset(data)
    assert_one_sentence(error, data / "dataset.json", "build the dataset again")


def test_garbled_names_in_a_file_do_not_garble_the_message(tmp_path, trained_gpt):
    garbled = "a\n" + "[" * 5000
    out = shutil.copytree(trained_gpt, tmp_path / "gpt")
    line = json.loads((out / "metrics.jsonl").read_text().splitlines()[0])
    (out / "metrics.jsonl").write_text(json.dumps(line | {garbled: None}) + "\n")
    with pytest.raises(ValueError) as error:
        Run(out).metrics()
    assert_one_sentence(error, out / "metrics.jsonl")


def test_a_hostile_file_causes_a_one_line_error_on_the_command_line(in_process, tmp_path, trained_gpt, dataset_folder):
    out, data = shutil.copytree(trained_gpt, tmp_path / "gpt"), shutil.copytree(dataset_folder, tmp_path / "data")
    (data / "dataset.json").write_text(NESTED)
    done = in_process("evaluate", out, "--data", data)
    assert (done.returncode, done.stdout) == (1, "")
    error = done.stderr.splitlines()[-1]  # on a slow machine, "loading PyTorch ..." comes first
    assert error.startswith(f"bytelm evaluate: {data / 'dataset.json'} is damaged")
    assert "Traceback" not in done.stderr


def test_a_flipped_bit_anywhere_in_dataset_json_is_detected(dataset_folder, tmp_path):
    data = shutil.copytree(dataset_folder, tmp_path / "data")
    content = (data / "dataset.json").read_bytes()
    for place in range(len(content)):
        damaged = bytearray(content)
        damaged[place] ^= 1 << place % 8
        (data / "dataset.json").write_bytes(damaged)
        with pytest.raises(ValueError) as error:
            TokenDataset(data)
        assert_one_sentence(error, data / "dataset.json", "build the dataset again")


@pytest.fixture
def within_seconds():
    """Return a context that raises TimeoutError if its block, such as one that opens a pipe, does not end."""

    def late(number, frame):
        raise TimeoutError("the file was opened")

    @contextmanager
    def limited():
        before = signal.signal(signal.SIGALRM, late)
        signal.alarm(60)
        try:
            yield
        finally:
            signal.alarm(0)
            signal.signal(signal.SIGALRM, before)

    return limited


def test_a_pipe_in_place_of_any_file_is_refused_without_being_opened(
    tmp_path, trained_gpt, dataset_folder, tokenizer_folder, within_seconds
):
    gpt, data = shutil.copytree(trained_gpt, tmp_path / "gpt"), shutil.copytree(dataset_folder, tmp_path / "data")
    hf, tok = tmp_path / "hf", shutil.copytree(tokenizer_folder, tmp_path / "tok")
    export_hf(gpt, out=hf)
    count_pretokens(["a text"], "cl100k").save(tmp_path / "counts")
    (tmp_path / "text.txt").write_text("a text")
    (tmp_path / "card.toml").write_text('reader = "stdlib"')
    weights = next((gpt / "checkpoints").glob("step-*")) / "model.safetensors"
    manifest = weights.with_name("manifest.json")
    cases = [
        (gpt / "metrics.jsonl", lambda: Run(gpt).metrics()),
        (gpt / "evaluation.json", lambda: Evaluation.read(gpt)),
        (gpt / "config.toml", lambda: load_recipe(gpt / "config.toml")),
        (gpt / "tokenizer.json", lambda: Run(gpt).tokenizer()),
        (weights, lambda: read_verified(weights.parent, read_manifest(weights.parent), weights.name)),
        (manifest, lambda: read_manifest(weights.parent)),
        (data / "dataset.json", lambda: TokenDataset(data)),
        (data / "manifest.json", lambda: problems(data)),
        (data / "train" / "data-00000-of-00001.arrow", lambda: TokenDataset(data)),
        (hf / "config.json", lambda: import_hf(str(hf), out=tmp_path / "imported")),
        (hf / "model.safetensors", lambda: import_hf(str(hf), out=tmp_path / "imported")),
        (hf / "generation_config.json", lambda: import_hf(str(hf), out=tmp_path / "imported")),
        (tok / "tokenizer.json", lambda: Tokenizer.load(tok)),
        (tmp_path / "counts", lambda: PretokenCounts.load(tmp_path / "counts")),
        (tmp_path / "text.txt", lambda: file_text(tmp_path / "text.txt")),
        (tmp_path / "text.txt", lambda: tokenize(file=tmp_path / "text.txt", tokenizer=tokenizer_folder)),
        (tmp_path / "card.toml", lambda: load_card(tmp_path / "card.toml")),
    ]
    for path, read in cases:
        kept = path.read_bytes() if path.exists() else b"{}"
        for kind in ("named pipe", "device"):
            path.unlink(missing_ok=True)
            os.mkfifo(path) if kind == "named pipe" else path.symlink_to("/dev/zero")
            with within_seconds(), pytest.raises(ValueError) as error:
                read()
            assert_one_sentence(error, path.name)
            assert re.search(f"is a {kind}, not a regular file|has no {path.name}|is missing", str(error.value)), path
        path.unlink()
        path.write_bytes(kept)
