"""A command that is silent for a while says that it works."""

import subprocess
import sys

CODE = """
import sys, time
from pipelines.cli.parsing import parse
from pipelines.cli.display import say

def work(seconds: float = 0.0, first: bool = False) -> None:
    if first:
        say("begun")
    time.sleep(seconds)

parse(work, sys.argv[1:], "work")
"""


def run(*arguments):
    return subprocess.run([sys.executable, "-c", CODE, *arguments], capture_output=True, text=True, check=True)


def test_a_command_that_prints_nothing_for_a_while_says_that_it_works():
    assert run("--seconds", "3").stderr == "bytelm work: working ...\n"


def test_a_command_that_prints_or_is_quick_or_quiet_is_not_explained():
    for arguments in ((), ("--seconds", "3", "--first"), ("--seconds", "3", "--quiet")):
        assert run(*arguments).stderr == ""
