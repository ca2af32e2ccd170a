"""Output: messages and results, --quiet, outputs that cannot be written, escapes and interrupts."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from pipelines.cli.display import quantity, say, say_on_stderr, show, table
from tests.conftest import BYTELM
from tests.pipelines.test_cli import assert_refused, complaints

PRETRAIN = (
    "pretrain", "gpt-tiny", "--model.layers", "1", "--model.width", "32", "--model.heads", "2",
    "--model.context-length", "32", "--train.batch-tokens", "256", "--train.log-every-steps", "5",
    "--train.device", "cpu", "--train.dtype", "float32",
)  # fmt: skip


@pytest.fixture
def shell(tmp_path):
    """Run a shell command in an empty folder; $BYTELM is the installed command."""

    def run(command, **environment):
        variables = {**os.environ, "BYTELM": str(BYTELM), **environment}
        return subprocess.run(
            ["bash", "-c", command],
            cwd=tmp_path,
            env=variables,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )

    return run


def checkpoint_tokens(run):
    return max(json.loads(path.read_text())["tokens"] for path in run.glob("checkpoints/*/state.json"))


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (999.4, "999 B"),
        (999.6, "1 kB"),
        (12_345, "12.3 kB"),
        (999_400, "999 kB"),
        (999_999, "1 MB"),
        (-999_999_999, "-1 GB"),
        (2e15, "2 PB"),
    ],
)
def test_a_quantity_has_the_prefix_of_its_rounded_value(value, shown):
    assert quantity(value, "B") == shown


def test_verbs_called_from_python_print_nothing(text_folder, tmp_path, capsys):
    from pipelines.run.named_models import named_model
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.corpus import list_corpora
    from pipelines.verbs.params import params
    from pipelines.verbs.tokenize import tokenize
    from pipelines.verbs.train_tokenizer import train_tokenizer

    train_tokenizer([str(text_folder)], vocab_size=300, out=tmp_path / "tok")
    build_dataset([str(text_folder)], tokenizer=tmp_path / "tok", context_length=32, out=tmp_path / "data")
    tokenize("some text", tokenizer=tmp_path / "tok")
    tokenize("some text", tokenizer=tmp_path / "tok", as_json=True)
    params(named_model("gpt2")[0])
    list_corpora()
    assert capsys.readouterr().out == ""


def test_verbs_called_from_python_print_inside_show(text_folder, tmp_path, capsys):
    from pipelines.verbs.corpus import list_corpora
    from pipelines.verbs.train_tokenizer import train_tokenizer

    with show():
        train_tokenizer([str(text_folder)], vocab_size=300, out=tmp_path / "tok")
    assert "bytes per token" in capsys.readouterr().out
    with show(quiet=True):
        train_tokenizer([str(text_folder)], vocab_size=300, out=tmp_path / "tok", overwrite=True)
        assert capsys.readouterr().out == ""
        list_corpora()
    assert "stdlib" in capsys.readouterr().out
    list_corpora()
    assert capsys.readouterr().out == ""


def test_messages_inside_show_go_to_standard_output_whatever_came_before(capsys):
    say_on_stderr()  # as `evaluate(..., as_json=True)` does
    with show():
        say("a message")
    assert capsys.readouterr().out == "a message\n"


def test_quiet_turns_off_messages_and_leaves_results_and_errors(in_process, text_folder, tokenizer_folder):
    command = ("build-dataset", text_folder, "--tokenizer", tokenizer_folder, "--context-length", "32", "--out", "data")
    done = in_process(*command, "--quiet")
    assert (done.returncode, done.stdout, complaints(done.stderr)) == (0, "", "")
    assert_refused(in_process(*command, "-q"), "data exists already")
    assert "tokens, 9 bytes" in in_process("tokenize", "import os", "--tokenizer", tokenizer_folder, "-q").stdout


@pytest.mark.parametrize(
    "output", ["| head -1", *(pytest.param(output, marks=pytest.mark.slow) for output in (">/dev/full", "1>&-"))]
)
def test_training_finishes_when_its_output_cannot_be_written(shell, dataset_folder, tmp_path, output):
    options = f"--data {dataset_folder} --out run --train.tokens 10k --train.warmup-tokens 1k --train.log-every-steps 1"
    done = shell(f"set -o pipefail; $BYTELM {' '.join(PRETRAIN)} {options} {output}")
    assert done.returncode == 0
    assert complaints(done.stderr) == ""
    assert checkpoint_tokens(tmp_path / "run") >= 10_000


def test_training_without_a_reader_still_fails_with_its_own_status(shell, dataset_folder, tmp_path):
    options = f"--data {dataset_folder} --out run --train.tokens 50k --train.lr 1e30 --train.nonfinite stop"
    done = shell(f"set -o pipefail; $BYTELM {' '.join(PRETRAIN)} {options} | head -1")
    assert done.returncode == 1
    assert "not finite" in done.stderr


def test_a_dataset_is_built_without_a_reader_of_its_messages(shell, text_folder, tokenizer_folder, tmp_path):
    options = f"--tokenizer {tokenizer_folder} --context-length 32 --out data"
    done = shell(f"set -o pipefail; $BYTELM build-dataset {text_folder} {options} | true")
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    assert (tmp_path / "data" / "dataset.json").exists()


PRINTING = ("--help", "--version", "tokenize --help", "corpus list", "tokenize x --json")


@pytest.mark.parametrize(
    ("command", "output"),
    [
        *((command, ">/dev/full") for command in PRINTING),
        (PRINTING[-1], "1>&-"),
        *(pytest.param(command, "1>&-", marks=pytest.mark.slow) for command in PRINTING[:-1]),
    ],
)
def test_a_result_that_cannot_be_written_is_an_error(shell, tokenizer_folder, command, output):
    said = "No space left on device" if output == ">/dev/full" else "Bad file descriptor"
    done = shell(f"$BYTELM {command.replace(' x', f' x --tokenizer {tokenizer_folder}')} {output}")
    assert done.returncode == 1
    assert done.stderr.endswith(f"{said}: standard output\n")
    assert complaints(done.stderr).count("\n") == 1


@pytest.mark.parametrize("command", ["--help", "tokenize --help", "corpus list", "tokenize x", "tokenize x --json"])
def test_a_reader_that_closes_early_is_no_error(shell, tokenizer_folder, command):
    done = shell(f"set -o pipefail; $BYTELM {command.replace(' x', f' x --tokenizer {tokenizer_folder}')} | true")
    assert (done.returncode, complaints(done.stderr)) == (0, "")


EVIL = "red \x1b[31m bell \x07 null \x00 csi \x9b2J override \u202e end"


@pytest.fixture
def terminal(tmp_path):
    """Run the installed command on its own terminal, and return the terminal's output."""
    import pty

    def run(*arguments):
        ours, theirs = pty.openpty()
        process = subprocess.Popen([BYTELM, *map(str, arguments)], cwd=tmp_path, stdout=theirs, stderr=theirs)
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 65536):
                shown += piece
        except OSError:  # the other end is closed
            pass
        process.wait(300)
        os.close(ours)
        return shown.decode()

    return run


def test_numbers_of_a_table_that_is_wider_than_the_terminal_are_not_cut(printed, monkeypatch):
    monkeypatch.setenv("COLUMNS", "40")
    table(["head", *"abcd"], [["layers.0", *["+0.310 ± 0.02"] * 4], ["a" * 60, *["1"] * 4]])
    lines = printed.readouterr().out.splitlines()
    assert lines[1].split() == ["layers.0", *["+0.310", "±", "0.02"] * 4]
    assert [line.split()[0] for line in lines[2:]] == ["a" * 24, "a" * 24, "a" * 12]


def test_control_characters_of_documents_and_file_names_are_shown_escaped(terminal, tmp_path):
    (tmp_path / "a\x1b]0;title\x07.txt").write_text((EVIL + "\n") * 40)
    shown = terminal("corpus", "show", "a\x1b]0;title\x07.txt")
    assert "red ␛[31m bell ␇ null ␀ csi \\u009b2J override \\u202e end" in shown
    assert "a␛]0;title␇.txt" in shown
    assert not {"\x07", "\x00", "\x9b", "\u202e"} & set(shown)
    assert "\x1b[31m" not in shown
    assert "\x1b]" not in shown


def test_corpus_show_prints_names_in_backticks_as_the_document_has_them(tmp_path, in_process):
    (tmp_path / "a.txt").write_text("Call `train` with `top_k=3`.\n" * 20)
    assert "Call `train` with `top_k=3`." in in_process("corpus", "show", "a.txt").stdout


@pytest.mark.parametrize("command", [["runs"], ["corpus", "show"], ["tokenize", "x", "--tokenizer"], ["evaluate"]])
def test_control_characters_in_errors_are_escaped(in_process, command):
    done = in_process(*command, "no\x1b[31m\x07such")
    assert done.returncode == 1
    assert "no␛[31m␇such" in done.stderr


def test_generated_text_is_raw_for_programs_and_escaped_on_a_terminal(trained_gpt, in_process, terminal):
    command = ("generate", trained_gpt, "--prompt", "a\x1b[31mb", "--tokens", "3", "--greedy")
    assert in_process(*command).stdout.startswith("a\x1b[31mb")
    assert "a␛[31mb" in terminal(*command)


@pytest.mark.parametrize("command", ["tokenize --file -", "tokenize -"])
def test_a_closed_standard_input_is_an_error(shell, tokenizer_folder, command):
    done = shell(f"$BYTELM {command} --tokenizer {tokenizer_folder} <&-")
    assert_refused(done, "Bad file descriptor: standard input")


def test_a_dash_reads_a_text_or_a_prompt_from_standard_input(shell, in_process, tokenizer_folder, trained_gpt):
    as_json = f"--tokenizer {tokenizer_folder} --json"
    ids = [shell(f"echo import | $BYTELM tokenize {text} {as_json}").stdout for text in ("-", "--file -")]
    assert ids[0] == ids[1] == shell(f"$BYTELM tokenize $'import\\n' --tokenizer {tokenizer_folder} --json").stdout
    piped = shell(f"echo 'import os' | $BYTELM generate {trained_gpt} --prompt - --tokens 4 --greedy")
    given = in_process("generate", trained_gpt, "--prompt", "import os", "--tokens", "4", "--greedy")
    assert piped.stdout == given.stdout
    assert piped.stdout.startswith("import os")


def test_a_locale_without_unicode_gets_escapes(shell, tokenizer_folder):
    ascii_only = {"LC_ALL": "C", "PYTHONUTF8": "0"}
    done = shell(f"$BYTELM tokenize 'é' --tokenizer {tokenizer_folder}", **ascii_only)
    assert (done.returncode, complaints(done.stderr)) == (0, "")
    assert "2 bytes, 1 character;" in done.stdout
    assert_refused(shell("$BYTELM corpus show é.txt", **ascii_only), ".txt")


@pytest.mark.slow
def test_control_c_while_modules_are_imported_is_no_traceback(tmp_path, dataset_folder):
    """Ctrl-C at ten moments of the first two seconds, after Python itself has started."""
    command = [BYTELM, *PRETRAIN, "--data", dataset_folder, "--out", "run"]
    for moment in range(10):
        process = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        maps = Path(f"/proc/{process.pid}/maps")
        while "_lzma" not in maps.read_text() and "numpy" not in maps.read_text() and process.poll() is None:
            time.sleep(0.005)
        time.sleep(0.15 * moment)
        process.send_signal(signal.SIGINT)
        printed, said = process.communicate(timeout=300)
        assert process.returncode == 130, said
        training = "SIGINT: saving a checkpoint" in printed  # a fast machine has imported everything by then
        assert complaints(said) == ("" if training else "bytelm pretrain: interrupted\n")


@pytest.mark.parametrize(
    "moment", [pytest.param(m, marks=() if m % 12 == 1 else pytest.mark.slow) for m in range(1, 40, 3)]
)
def test_control_c_before_the_arguments_are_parsed_shows_no_traceback(moment):
    """Ctrl-C at an import of the command's own modules."""
    code = """
import builtins, os, signal, sys
moment, imports, real = int(sys.argv[1]), [], builtins.__import__
def counted(name, *arguments):
    if imports or name == "pipelines.cli.dispatch":
        imports.append(name)
    if len(imports) == moment:
        os.kill(os.getpid(), signal.SIGINT)
    return real(name, *arguments)
builtins.__import__ = counted
from pipelines.cli.command import main
sys.argv = ["bytelm", "tokenize", "a"]
sys.exit(main())
"""
    done = subprocess.run([sys.executable, "-c", code, str(moment)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) in ((-signal.SIGINT, ""), (130, "bytelm tokenize: interrupted\n"))


def test_a_control_c_that_a_library_swallows_stops_training_before_its_first_step():
    code = """
import contextlib, signal
from pipelines.cli import process
from pipelines.training.progress import Progress, stop_on_signals
process.prepare()
with contextlib.suppress(KeyboardInterrupt):
    signal.raise_signal(signal.SIGINT)
try:
    with stop_on_signals(Progress()):
        print("trains")
except KeyboardInterrupt:
    print("stops")
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "stops\n"


def test_in_a_notebook_a_signal_that_ended_one_call_does_not_stop_the_next_training():
    code = """
import contextlib, signal
from pipelines.cli import process
from pipelines.training.progress import Progress, stop_on_signals
with contextlib.suppress(KeyboardInterrupt), process.handle(signal.SIGTERM, process.interrupt):
    signal.raise_signal(signal.SIGTERM)
with stop_on_signals(Progress()):
    print("trains")
"""
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "trains\n"


def test_a_control_c_that_a_library_swallows_silences_the_warnings_that_follow():
    """NumPy warns that it is imported a second time if Ctrl-C has ended its first import inside another library."""
    code = """
import contextlib, signal, sys, types, warnings
from pipelines.cli import dispatch, process
verb = types.ModuleType("pipelines.verbs.runs")
def main(arguments):
    warnings.warn("before")
    with contextlib.suppress(KeyboardInterrupt):
        signal.raise_signal(signal.SIGINT)
    warnings.warn("after")
    process.raise_if_interrupted()
verb.main = main
sys.modules["pipelines.verbs.runs"] = verb
sys.argv = ["bytelm", "runs"]
sys.exit(dispatch.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (130, "bytelm runs: warning: before\nbytelm runs: interrupted\n")


def test_the_exit_status_names_the_signal_that_stopped_a_training():
    code = """
import sys, types
from pipelines.cli import dispatch, process
verb = types.ModuleType("pipelines.verbs.train")
def main(arguments):
    raise process.StoppedBySignal(15)
verb.main = main
sys.modules["pipelines.verbs.train"] = verb
sys.argv = ["bytelm", "train"]
sys.exit(dispatch.main())
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (143, "bytelm train: interrupted\n")


AGAIN = """
start = threading.Thread.start
def start_and_press(thread):
    start(thread)
    signal.raise_signal(signal.SIGINT)
threading.Thread.start = start_and_press
"""


@pytest.mark.parametrize("while_repeated", ["", AGAIN], ids=["once", "again while it is repeated"])
def test_a_control_c_in_a_destructor_ends_the_command_without_a_traceback(while_repeated):
    code = f"""
import signal, threading, time
from pipelines.cli import process
process.prepare()
{while_repeated}
class Dying:
    def __del__(self):
        signal.raise_signal(signal.SIGINT)
try:
    Dying()
    time.sleep(60)
except KeyboardInterrupt:
    print("stops")
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("stops\n", "")


@pytest.mark.parametrize(
    "verb",
    [
        "train-tokenizer",
        "build-dataset",
        "export-hf",
        "import-hf",
        "export-onnx",
        "export-gguf",
        "import-gguf",
        "report",
    ],
)
def test_an_out_below_a_file_is_refused_before_the_work(in_process, tmp_path, verb, text_folder, tokenizer_folder):
    (tmp_path / "file").write_text("")
    more = {
        "train-tokenizer": (text_folder, "--vocab-size", "300"),
        "build-dataset": (text_folder, "--tokenizer", tokenizer_folder, "--context-length", "32"),
    }
    done = in_process(verb, *more.get(verb, ("nowhere",)), "--out", "file/x")
    assert_refused(done, "--out is file/x, but", "is a file, not a folder: choose another --out")


def test_a_version_is_printed(bytelm):
    assert bytelm("-V").stdout == bytelm("--version").stdout
    assert bytelm("-V").stdout.startswith("bytelm 0.")
