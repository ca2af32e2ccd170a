"""A command without output yet prints regularly which step it is working on."""

import os
import re
import subprocess
import sys

import pytest

from pipelines.cli import waiting

# Every step of this verb waits for a line on standard input.
STEPS = """
import sys, time
from pipelines.cli import waiting
from pipelines.cli.parsing import parse
from pipelines.cli.display import Bar
from pipelines.cli.errors import complain

waiting.PATIENCE = waiting.INTERVAL = 0.02

def work() -> None:
    waiting.doing("counting sheep")
    sys.stdin.readline()
    with Bar("shearing", 3, "sheep"):
        sys.stdin.readline()
        complain("work", "warning: a sheep is missing")
        sys.stdin.readline()
    print("the bar has printed a line", file=sys.stderr, flush=True)
    time.sleep(0.2)

parse(work, sys.argv[1:], "work")
"""

# The import of MODULE waits for a line on standard input.
SLOW_IMPORT = """
import sys

class Slow:
    def find_spec(self, name, *_):
        if name == "MODULE":
            sys.meta_path.remove(self)
            sys.stdin.readline()

sys.meta_path.insert(0, Slow())
"""

SLOW_COMPILATION = """
import sys
from numba.core import event

class Slow(event.Listener):
    def on_start(self, event):
        sys.stdin.readline()
    def on_end(self, event):
        pass

event.register("numba:compile", Slow())
"""

COMMAND = "from pipelines.cli.dispatch import main; sys.exit(main())"


class Process:
    """A Python process that waits for lines on standard input."""

    def __init__(self, code, *arguments, stderr=subprocess.PIPE, **variables):
        self.process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env=os.environ | {"TERM": "xterm"} | variables,
        )

    def read_waiting_lines(self, what):
        """Read two more waiting lines that name `what`. Lines of the previous step may come first."""
        found = 0
        while found < 2:
            line = self.process.stderr.readline()
            assert re.fullmatch(r"bytelm [a-z-]+: .*, \d+ s \.\.\.\n", line), line + self.process.stderr.read()
            found += line.startswith(f"bytelm {self.verb}: {what}, ")

    def read_up_to(self, start):
        """Read lines up to the first that begins with `start`."""
        while not (line := self.process.stderr.readline()).startswith(start):
            assert line, "the process ended"

    def proceed(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    @property
    def verb(self):
        return self.process.args[3] if self.process.args[3:] else "work"

    def read_to_end(self):
        """Return standard output and standard error up to the end of the process."""
        output, errors = self.process.communicate()
        assert self.process.returncode == 0, errors
        return output, errors


@pytest.fixture
def start():
    processes = []

    def run(*arguments, **options):
        processes.append(Process(*arguments, **options))
        return processes[-1]

    yield run
    for process in processes:
        process.process.kill()
        process.process.communicate()


def test_a_line_appears_within_two_seconds():
    assert waiting.PATIENCE <= waiting.INTERVAL <= 2


def test_lines_name_the_step_until_the_first_output(start):
    process = start(STEPS)
    process.read_waiting_lines("counting sheep")
    process.proceed()
    process.read_waiting_lines("shearing")
    process.proceed()
    while (line := process.process.stderr.readline()).endswith(" ...\n"):
        pass
    assert line == "bytelm work: warning: a sheep is missing\n"
    process.read_waiting_lines("shearing")
    process.proceed()
    output, errors = process.read_to_end()
    assert output.startswith("shearing: 0 sheep in ")
    assert errors.splitlines()[-1] == "the bar has printed a line"


def test_quiet_and_other_ranks_print_no_waiting_line(start):
    for process in (start(STEPS, "--quiet"), start(STEPS, RANK="1")):
        _, errors = process.process.communicate("\n" * 3)
        assert errors == "bytelm work: warning: a sheep is missing\nthe bar has printed a line\n"


def test_a_terminal_shows_one_line_that_other_output_replaces(start):
    leader, follower = os.openpty()
    process = start(STEPS, stderr=follower)
    os.close(follower)
    shown = b""
    while shown.count(b"counting sheep") < 3:
        shown += os.read(leader, 100)
    process.process.communicate("\n" * 3)
    while b"missing\r\n" not in shown:
        shown += os.read(leader, 100)
    os.close(leader)
    assert b"\n" not in shown.partition(b"bytelm work: warning")[0]
    assert b"\r\x1b[Kbytelm work: warning: a sheep is missing\r\n" in shown


@pytest.mark.parametrize(
    ("module", "name", "arguments"),
    [
        ("torch.nn", "PyTorch", ["evaluate", "RUN", "--json"]),
        pytest.param("torch.nn", "PyTorch", ["params", "gpt2", "--json"], marks=pytest.mark.slow),
        pytest.param("torch.nn", "PyTorch", ["generate", "RUN", "--prompt", "x", "--json"], marks=pytest.mark.slow),
        pytest.param(
            "matplotlib.rcsetup",
            "matplotlib",
            ["report", "RUN", "--no-samples", "--no-inside"],
            marks=pytest.mark.slow,
        ),
    ],
)
def test_a_slow_import_is_named_and_the_result_is_whole(start, module, name, arguments, trained_gpt):
    words = [str(trained_gpt) if word == "RUN" else word for word in arguments]
    process = start(SLOW_IMPORT.replace("MODULE", module) + COMMAND, *words)
    process.read_up_to(f"bytelm {words[0]}: importing {name}, ")
    process.read_waiting_lines(f"importing {name}")
    process.proceed()
    output, errors = process.read_to_end()
    assert output.splitlines()[-1][:1] in ("{", "/")
    assert all(line.endswith(" ...") for line in errors.splitlines() if line.startswith("bytelm"))


def test_a_slow_compilation_is_named(start, tmp_path, text_folder):
    words = ["train-tokenizer", text_folder, "--vocab-size", 300, "--out", tmp_path / "tok"]
    process = start(SLOW_COMPILATION + COMMAND, *words, NUMBA_CACHE_DIR=str(tmp_path / "cache"))
    process.read_up_to("bytelm train-tokenizer: compiling kernels, once, ")
    process.read_waiting_lines("compiling kernels, once")
