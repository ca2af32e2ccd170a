"""Every mistake on the command line gives one clear sentence and a non-zero status, and leaves no files."""

import gzip
import io
import json
import os
import re
import shutil
import subprocess
import sys
from contextlib import redirect_stdout
from pathlib import Path

import pytest

from lm.presets import PRESETS
from pipelines.cli.dispatch import main
from pipelines.recipes.recipe import recipe_names
from tests.conftest import BYTELM, REPOSITORY


def complaints(errors):
    """Return standard error without the line that a slow machine prints while PyTorch is loaded."""
    return "".join(line for line in errors.splitlines(keepends=True) if not line.endswith(" ...\n"))


def assert_refused(done, *words, status=1):
    assert done.returncode == status, done.stdout + done.stderr
    assert "Traceback" not in done.stdout + done.stderr
    message = complaints(done.stderr).strip()
    assert message.startswith("bytelm")
    assert "\n" not in message
    for word in words:
        assert word in message


def test_help_lists_the_verbs(in_process):
    done = in_process("--help")
    assert done.returncode == 0
    for verb in (
        "demo",
        "train",
        "corpus",
        "train-tokenizer",
        "build-dataset",
        "pretrain",
        "evaluate",
        "generate",
        "report",
    ):
        assert verb in done.stdout


def test_help_imports_no_verb():
    code = (
        "import sys; from pipelines.cli.dispatch import main; main(['--help']); "
        "print('torch' in sys.modules, 'numpy' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.endswith("False False\n")


EXPLAINED = (
    *("demo", "train", "corpus", "corpus list", "corpus show", "train-tokenizer", "tokenize", "build-dataset"),
    *("dataset", "dataset verify", "pretrain", "evaluate", "generate", "score", "params", "sweep-vocabulary", "scale"),
    *("predict", "embed", "runs", "report", "export-hf", "import-hf", "export-gguf", "import-gguf", "export-onnx"),
    "finetune",  # the last, because it imports numpy and pyarrow
)
EXPLAIN = """
import sys
from pipelines.cli.dispatch import main

for verb in sys.argv[1:]:
    try:
        main([*verb.split(), "--help"])
    except SystemExit as leaving:
        assert not leaving.code, verb
    heavy = {"torch", "numba", "numpy", "pyarrow", "matplotlib", "rich", "datasets", "ray"} & sys.modules.keys()
    print("imported", *heavy, end="\\f", flush=True)
"""


def test_every_verb_explains_itself_without_heavy_libraries():
    words = [sys.executable, "-c", EXPLAIN, *EXPLAINED]
    done = subprocess.run(words, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    *pages, rest = done.stdout.split("\f")
    assert rest == ""
    for verb, page in zip(EXPLAINED, pages, strict=True):
        said, _, imported = page.rpartition("imported")
        # finetune reads the options of a task from its module, which reads rows and computes metrics.
        assert set(imported.split()) <= ({"numpy", "pyarrow"} if verb == "finetune" else set()), verb
        assert "usage: bytelm " + verb in said
        # the command line has no return values and shows no exceptions
        assert not {"Raises", "Returns"} & set(said.split()), verb


def test_flags_override_a_preset_in_both_directions(capsys):
    for name in ("gpt2", "llama"):
        printed = {}
        for option in ("--model.bias", "--model.no-bias"):
            main(["params", name, option, "--json"])
            printed[option] = json.loads(capsys.readouterr().out)["parameters"]["total"]
        assert printed["--model.bias"] > printed["--model.no-bias"]


def test_help_does_not_mention_return_values(capsys):
    for verb in ("report", "finetune", "evaluate", "build-dataset", "import-hf", "export-onnx"):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        description = capsys.readouterr().out.split("\n\n")[1]
        assert "return" not in description
        assert description.endswith(".")


def test_help_lists_recipes_and_models(capsys):
    for verb, names in (("pretrain", recipe_names()), ("params", [*recipe_names(), *PRESETS])):
        with pytest.raises(SystemExit):
            main([verb, "--help"])
        said = capsys.readouterr().out
        assert all(name in said for name in names)


LONG = "/a/path/that/does/not/fit/into/a/line/of/eighty/columns/however/it/is/broken/by/what/prints/it/x.toml"


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("params gpt2 --model.layers many", "--model.layers: 'many' is not a whole number such as 4096, 300k"),
        ("params gpt2 --model.dropout much", "--model.dropout: 'much' is not a number such as 0.1"),
        ("params gpt2 --model.kv-heads 9000000000000000000", "does not divide model.heads=12: try model.kv_heads=12"),
        ("params gpt2 --model.width 100 --model.heads 3", "model.heads=3 does not divide: try model.width=102"),
        ("params gpt-tiny --model.heads 3", "model.heads=3 does not divide: try model.width=132"),
        ("params gpt2 --model.kv-heads 5", "does not divide model.heads=12: try model.kv_heads=4"),
        ("params gpt-tiny --model.width 6", "rotary positions rotate pairs: try model.width="),
        (
            "params gpt2 --model.positions round",
            "--model.positions is round, but must be rotary, learned, ",
        ),
        ("params gpt2 --model.mixer round", "--model.mixer is round, but must be attention, hopfield, "),
        (
            "params gpt2 --model.layer 3",
            "unknown option --model.layer (did you mean --model.layer-groups or --model.layers?): `bytelm params gpt2",
        ),
        ("params gpt2 --model.biases", "unknown option --model.biases (did you mean --model.bias?)"),
        ("params gpt2 --layers 3", "unknown option --layers (did you mean --model.layers or --model.decoder-layers?)"),
        ("params gpt2 --model.no-biases", "unknown option --model.no-biases (did you mean --model.no-bias?)"),
        ("train-tokenizer x --vocab 300 --out t", "(did you mean --vocab-size?)"),
        ("params gpt2 --dropot 1", "(did you mean --model.dropout?)"),
        ("corpus show x --textcolumn y", "unknown option --textcolumn (did you mean --text-column?)"),
        ("params gpt2 --model.layers", "--model.layers needs a value: --model.layers N: `bytelm"),
        (f"params gpt2 {LONG}", f"unexpected argument {LONG}: `bytelm params gpt2 --help-all` lists all options"),
        (
            "pretrain gpt-tiny",
            "missing --data DATA ..., --out PATH: `bytelm pretrain gpt-tiny --help-all` lists",
        ),
        ("pretrain gpt-tiny --dat x --out y", "DATA ...; unknown option --dat (did you mean --data?): `bytelm"),
        ("pretrain gpt-tiny --data x --out y --model.layers 0", ": model.layers is 0: give at least 1"),
        ("pretrain gpt-tiny --data x --out y --train.lr -1", "train.lr is -1.0, but must be above 0"),
        ("generate x --top-k few", "--top-k: 'few' is not a whole number"),
        ("generate x --top-p few", "--top-p: 'few' is not a number"),
        ("generate -q --promt x run", "unknown option --promt (did you mean --prompt?): `bytelm generate --help-all`"),
        ("generate run --prompt --greedy", "--prompt needs a value: --prompt TEXT: `bytelm generate --help-all`"),
        ("generate run --prompt -ing", "TEXT; write --prompt=TEXT if it begins with a hyphen: `bytelm generate"),
        ("generate", "missing RUN: `bytelm generate --help-all`"),
        (
            "train-tokenizer x --vocab-size 1k --out y --pairs en",
            "--pairs needs a value: --pairs SOURCE TARGET",
        ),
        (
            "import-hf x --out y --objective z",
            "--objective is z, but must be next-token, ",
        ),
    ],
)
@pytest.mark.parametrize("encoding", ["utf-8", "ascii"])
def test_a_wrong_command_line_is_refused_on_one_line(command, words, encoding, capsys):
    output = io.TextIOWrapper(io.BytesIO(), encoding=encoding)
    with redirect_stdout(output):
        status = main(command.split())
    said = capsys.readouterr()
    assert status == 2
    assert output.tell() == 0
    assert said.err.startswith(f"bytelm {command.split()[0]}: ")
    assert said.err.count("\n") == 1
    assert words in said.err
    assert "None" not in said.err


def test_a_misspelt_pattern_is_not_taken_for_a_regex(in_process, tmp_path):
    (tmp_path / "a.txt").write_text("text\n" * 100)
    done = in_process("train-tokenizer", "a.txt", "--vocab-size", "300", "--out", "tok", "--pattern", "cl100K")
    assert_refused(done, "--pattern is cl100K, which is an unknown name", "gpt2", "cl100k")


@pytest.mark.parametrize("length", ["1", "0", "-5", "3G"])
def test_an_impossible_context_length_is_refused(in_process, text_folder, tokenizer_folder, tmp_path, length):
    command = ("build-dataset", text_folder, "--tokenizer", tokenizer_folder, "--out", "d")
    assert_refused(in_process(*command, f"--context-length={length}"), "--context-length is", "must be from 2")
    assert list(tmp_path.iterdir()) == []


def test_a_model_that_does_not_fit_in_memory_is_refused(in_process, dataset_folder, tmp_path):
    done = in_process(
        "pretrain", "gpt-tiny", "--data", dataset_folder, "--out", "r",
        "--model.context-length", "32", "--model.width", "20000000", "--model.heads", "2",
    )  # fmt: skip
    assert_refused(done, "not enough memory", "--train.micro-batch")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("std::bad_alloc"), RuntimeError("can't start new thread"), SystemError()]
)
def test_a_lack_of_memory_is_one_line(monkeypatch, capsys, error):
    """A library may raise any type of error after a MemoryError."""

    def fails(arguments):
        try:
            raise MemoryError
        except MemoryError:
            raise error from None

    monkeypatch.setattr("pipelines.verbs.runs.main", fails, raising=False)
    assert main(["runs"]) == 1
    said = capsys.readouterr().err
    assert said.startswith("bytelm runs: there is not enough memory: choose a smaller context or model")
    assert said.count("\n") == 1


def test_an_illegal_memory_access_is_not_reported_as_out_of_memory(monkeypatch):
    def fails(arguments):
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("pipelines.verbs.runs.main", fails, raising=False)
    with pytest.raises(RuntimeError, match="illegal memory access"):
        main(["runs"])


def test_brackets_in_names_are_not_markup(in_process, tmp_path):
    (tmp_path / "a.txt").write_text("some text\n" * 100)
    done = in_process("train-tokenizer", "a.txt", "--vocab-size", "265", "--out", "k[/b]")
    assert done.returncode == 0, done.stderr
    assert "k[/b]" in done.stdout


def test_help_into_a_closed_pipe_is_no_error():
    code = "import sys; from pipelines.cli.dispatch import main; sys.exit(main(['--help']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait(300) == 0
    assert complaints(process.stderr.read()) == ""


def test_a_warning_is_one_line(in_process, tmp_path):
    (tmp_path / "a.txt").write_text("some text\n" * 100)
    done = in_process("train-tokenizer", "a.txt", "--vocab-size", "5000", "--out", "tok")
    assert done.returncode == 0
    assert done.stderr.startswith("bytelm train-tokenizer: warning: the corpus ran out of pairs")
    assert len(done.stderr.splitlines()) == 1


def test_an_unknown_verb_suggests_the_nearest(in_process):
    for word, verb in (("tokenizer", "train-tokenizer"), ("build", "build-dataset"), ("sweep", "sweep-vocabulary")):
        assert_refused(in_process(word), f"did you mean '{verb}'", status=2)
    assert_refused(in_process("export"), "did you mean 'export-hf' or 'export-gguf' or 'export-onnx'?", status=2)
    assert_refused(in_process("evalute", "x"), "no verb 'evalute'", "did you mean 'evaluate'", status=2)
    assert_refused(in_process("help", "genrate"), "did you mean 'generate'", status=2)
    assert in_process("help", "--help").returncode == 0


@pytest.mark.parametrize("verb", [["train-tokenizer", "--vocab-size", "300"], ["corpus", "show"]])
def test_a_corpus_that_does_not_exist(in_process, tmp_path, verb):
    out = ["--out", "tok"] if verb[0] == "train-tokenizer" else []
    assert_refused(in_process(*verb, "stdlibs", *out), "stdlibs", "did you mean stdlib?")
    assert list(tmp_path.iterdir()) == []


def test_an_empty_corpus(in_process, tmp_path):
    (tmp_path / "a.txt").write_text("")
    assert_refused(in_process("train-tokenizer", "a.txt", "--vocab-size", "300", "--out", "tok"), "a.txt is empty")
    assert not (tmp_path / "tok").exists()


def test_a_corpus_without_a_text_column(in_process, tmp_path):
    (tmp_path / "a.jsonl").write_text('{"title": "x", "body": "y"}\n')
    done = in_process("train-tokenizer", "a.jsonl", "--vocab-size", "300", "--out", "tok")
    assert_refused(done, "a.jsonl", "title", "body", "--text-column")
    assert not (tmp_path / "tok").exists()


def test_a_file_that_is_not_utf8(in_process, tmp_path):
    (tmp_path / "a.txt").write_bytes(b"good\n" * 200 + b"bad \xff byte\n" + b"good\n" * 200)
    command = ("train-tokenizer", "a.txt", "--vocab-size", "270", "--out", "tok")
    assert_refused(in_process(*command), "a.txt", "1004", "--invalid")
    assert not (tmp_path / "tok").exists()
    for policy in ("replace", "bytes"):
        done = in_process(*command, "--invalid", policy, "--overwrite")
        assert done.returncode == 0, done.stderr


def test_a_vocabulary_smaller_than_the_bytes_and_special_tokens(in_process, tmp_path):
    (tmp_path / "a.txt").write_text("text\n" * 100)
    done = in_process("train-tokenizer", "a.txt", "--vocab-size", "260", "--out", "tok")
    assert_refused(done, "--vocab-size is 260", "256 bytes and 5 special tokens need 261")
    assert not (tmp_path / "tok").exists()


def test_a_context_longer_than_a_split(in_process, tmp_path, text_folder, tokenizer_folder):
    done = in_process(
        "build-dataset", text_folder, "--tokenizer", tokenizer_folder, "--context-length", "1M", "--out", "d"
    )
    assert_refused(done, "context of 1000000 tokens is longer than the split", "--context-length")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("damage", ["truncated", "altered", "missing"])
def test_a_damaged_tokenizer(in_process, tmp_path, text_folder, tokenizer_folder, damage):
    folder = tmp_path / "tok"
    folder.mkdir()
    text = (tokenizer_folder / "tokenizer.json").read_text()
    if damage == "truncated":
        (folder / "tokenizer.json").write_text(text[: len(text) // 2])
    elif damage == "altered":
        content = json.loads(text)
        content["model"]["merges"][3] = ["not", "there"]
        (folder / "tokenizer.json").write_text(json.dumps(content))
    done = in_process("build-dataset", text_folder, "--tokenizer", folder, "--context-length", "32", "--out", "d")
    assert_refused(done, "tok")
    assert not (tmp_path / "d").exists()


def test_a_recipe_field_that_does_not_exist(in_process, tmp_path, dataset_folder):
    (tmp_path / "mine.toml").write_text("[train]\nlearning_rates = 1e-3\n")
    assert_refused(in_process("pretrain", "mine.toml", "--data", dataset_folder, "--out", "r"), "train.learning_rates")
    done = in_process("pretrain", "gpt-tiny", "--data", dataset_folder, "--out", "r", "--train.token", "5k")
    assert done.returncode == 2
    assert "--train.tokens" in done.stderr + done.stdout
    assert not (tmp_path / "r").exists()


def test_a_folder_that_is_no_dataset_is_refused(in_process, tmp_path):
    assert_refused(in_process("pretrain", "gpt-tiny", "--data", "nowhere", "--out", "r"), "nowhere is not a dataset")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("verb", ["evaluate", "generate", "report"])
def test_a_folder_that_is_no_run_is_refused(in_process, tmp_path, verb):
    assert_refused(in_process(verb, "nowhere"), "nowhere is not a run", "bytelm pretrain")
    assert list(tmp_path.iterdir()) == []


def test_tokenize_prints_ids_for_programs(in_process, tokenizer_folder):
    done = in_process("tokenize", "import os <|mask|>", "--tokenizer", tokenizer_folder, "--json")
    from tokenizer import Tokenizer

    tok = Tokenizer.load(tokenizer_folder)
    assert json.loads(done.stdout) == tok.encode_ordinary("import os <|mask|>")
    special = in_process("tokenize", "import os <|mask|>", "--tokenizer", tokenizer_folder, "--json", "--special")
    assert json.loads(special.stdout)[-1] == tok.special_tokens["<|mask|>"]


def test_corpus_list_and_show(in_process, text_folder):
    listed = in_process("corpus", "list")
    assert "stdlib" in listed.stdout
    shown = in_process("corpus", "show", text_folder)
    assert shown.returncode == 0, shown.stderr
    size = sum(path.stat().st_size for path in text_folder.iterdir())
    assert f"{size:,}" in shown.stdout
    assert "60" in shown.stdout


def test_output_into_a_closed_pipe_is_no_error(text_folder):
    code = "import sys; from pipelines.cli.dispatch import main; sys.exit(main(['corpus', 'list']))"
    process = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    process.stdout.close()
    assert process.wait(300) == 0
    assert complaints(process.stderr.read()) == ""


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("evaluate", "missing RUN [RUN ...]: `bytelm evaluate --help-all` lists all options"),
        ("report", "missing RUN [RUN ...]: `bytelm report --help-all` lists all options"),
        ("corpus show", "missing CORPUS [CORPUS ...]: `bytelm corpus show --help-all` lists all options"),
        ("build-dataset --tokenizer tok --out data", "missing CORPUS [CORPUS ...]: `bytelm build-dataset --help-all`"),
        ("generate", "missing RUN: `bytelm generate --help-all`"),
        ("train-tokenizer --vocab-size 300 --out tok", "no corpus was given"),
        ("pretrain", "name a recipe first"),
        ("params", "name a model first"),
        ("corpus", "use `bytelm corpus list` or `bytelm corpus show`"),
        ("dataset", "use `bytelm dataset verify`"),
        ("--completion csh", "choose one of bash, zsh, fish"),
    ],
)
def test_a_missing_argument_is_a_usage_error_with_status_2(command, words, capsys):
    assert main(command.split()) == 2
    assert words in capsys.readouterr().err


@pytest.mark.parametrize("verb", ["evaluate", "train-tokenizer", "build-dataset", "finetune", "tokenize"])
def test_help_shows_no_default_of_none_and_lists_quiet_beside_help(verb, capsys):
    with pytest.raises(SystemExit):
        main([verb, "--help"])
    said = capsys.readouterr().out
    assert "(default: None)" not in said
    assert "(default: )" not in said
    assert re.search(r"-q, --quiet [^-]*--help-all ", said)


@pytest.mark.parametrize("columns", [60, 80, None])
def test_the_list_of_corpora_is_readable_at_any_width(bytelm, columns):
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    if columns:
        environment["COLUMNS"] = str(columns)
    done = bytelm("corpus", "list", env=environment)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert max(map(len, lines)) <= (columns or 80)
    assert "stdlib: about 11.5 MB, PSF-2.0" in lines
    words = " ".join(done.stdout.split())
    assert "about 11 MB of real text that every machine with Python has." in words
    assert "…" not in words


def test_a_document_that_does_not_fit_in_memory_is_not_called_invalid(tmp_path):
    with gzip.open(tmp_path / "a.txt.gz", "wb", compresslevel=1) as out:
        for _ in range(240):
            out.write(b"a" * 1_000_000)
    bytelm = Path(sys.executable).with_name("bytelm")
    command = f"ulimit -v 700000; exec {bytelm} corpus show a.txt.gz --max-document 250M"
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "ARROW_DEFAULT_MEMORY_POOL": "system"}
    done = subprocess.run(
        ["bash", "-c", command], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=300
    )
    assert done.returncode == 1
    assert "there is not enough memory: lower --max-document" in done.stderr


def test_reading_options_work_on_the_command_line(in_process, tmp_path):
    (tmp_path / "text").mkdir()
    for i in range(30):
        (tmp_path / "text" / f"{i}.md").write_text(f"été {i}\n" * 50, encoding="utf-16")
    (tmp_path / "text" / "long.md").write_text("x" * 5000, encoding="utf-16")
    (tmp_path / "text" / "picture.png").write_bytes(b"\x89PNG")
    options = ("--suffix", ".md", "--encoding", "utf-16", "--max-document", "2k", "--invalid", "skip")
    shown = in_process("corpus", "show", "text", *options)
    assert shown.returncode == 0, shown.stderr
    assert "left out: 1 long document\n" in shown.stdout
    assert "skipped: 1 .png (--suffix names the suffixes to read)\n" in shown.stdout
    trained = in_process("train-tokenizer", "text", "--vocab-size", "270", "--out", "tok", *options)
    assert trained.returncode == 0, trained.stderr
    assert "skipped: 1 .png" in trained.stdout
    built = in_process(
        "build-dataset", "text", "--tokenizer", "tok", "--context-length", "8", "--out", "data", *options
    )
    assert built.returncode == 0, built.stderr
    assert "skipped: 1 .png" in built.stdout
    assert json.loads((tmp_path / "data" / "dataset.json").read_text())["corpus"]["dropped"]["long_documents"] == 1
    refused = in_process("corpus", "show", "text", *options[:-2])
    assert refused.returncode == 1
    assert "long.md is longer when decompressed or decoded, above the limit of 2,000 bytes a document" in refused.stderr


def test_the_package_is_the_command_for_a_source_folder_that_is_not_installed(tmp_path):
    command, module = (
        subprocess.run([*words, "--help"], cwd=REPOSITORY, capture_output=True, text=True, check=True)
        for words in ([BYTELM], [sys.executable, "-m", "pipelines"])
    )
    assert module.stdout == command.stdout
    for source in ("pyproject.toml", "pipelines/__init__.py"):
        (tmp_path / source).parent.mkdir(exist_ok=True)
        shutil.copy(REPOSITORY / source, tmp_path / source)
    code = "import pipelines; print(pipelines.own_version())"
    words = [sys.executable, "-S", "-c", code]  # without site-packages
    found = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, check=True)
    assert f'version = "{found.stdout.strip()}"' in (REPOSITORY / "pyproject.toml").read_text(encoding="utf-8")
