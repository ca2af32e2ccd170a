"""Jinja chat templates, as `transformers` renders them.

A template that comes with a model is untrusted code. It runs in jinja2's sandbox, in a separate process. The process
ends if a text needs more than SECONDS of CPU time or MEMORY bytes. The process runs this file, so this file imports no
other module of the project.
"""

import atexit
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping
from contextlib import suppress
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

SECONDS = 2
MEMORY = 1 << 30
MOST_CHARACTERS = 1 << 22
"""Maximum characters of a rendered conversation"""
NOT_STARTED = "the process that runs templates did not start"
MARKS = "bytelm_marks"
"""Name of a template variable: two characters that enclose each answer of the assistant"""


def render(template: str, variables: Mapping[str, Any]) -> str:
    """Render a template in this process and return the text. Raises ValueError if the template fails."""
    try:
        parts, characters = [], 0
        for part in _compiled(template).generate(variables):
            parts.append(part)
            characters += len(part)
            if characters > MOST_CHARACTERS:
                raise ValueError(f"it writes more than {MOST_CHARACTERS:,} characters")
        return "".join(parts)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(f"the chat template is not valid Jinja: line {error.lineno}: {error.message}") from None
    except Exception as error:  # a template may raise any error
        raise ValueError(f"the chat template fails: {' '.join(str(error).split()) or type(error).__name__}") from None


def render_apart(template: str, variables: Mapping[str, Any]) -> str:
    """Render a template in a process with limits and return the text. Raises ValueError if the template fails."""
    found = json.loads(_process().answer(json.dumps({"template": template, "variables": variables})))
    if "error" in found:
        raise ValueError(found["error"])
    return str(found["text"])


class _Process:
    """A process that answers lines of JSON. It restarts on the next line after it has ended."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: subprocess.Popen[bytes] | None = None
        atexit.register(self.end)

    def answer(self, line: str) -> bytes:
        """Return the answer to a line. Raises ValueError if the process does not start, or exceeds a limit."""
        with self._lock:
            if self._running is not None and self._running.poll() is not None:
                self.end()
            if self._running is None:
                self._running = self._start()
            assert self._running.stdin and self._running.stdout
            try:
                with suppress(BrokenPipeError):  # it has ended
                    self._running.stdin.write(line.encode() + b"\n")
                    self._running.stdin.flush()
                found = self._running.stdout.readline()
                if not found.endswith(b"\n"):
                    raise ValueError(_reason(self._running.wait()))
            except BaseException:  # such as Ctrl-C: the answer must not be taken for that of the next line
                self.end()
                raise
            return found

    def _start(self) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-I", __file__]
        try:
            return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        except OSError as error:
            raise ValueError(f"{NOT_STARTED}: {error.strerror}") from None

    def end(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running.communicate()
            self._running = None


def _reason(status: int) -> str:
    """Return why the process ended with a status, as Popen gives it, instead of answering."""
    if -status in (signal.SIGXCPU, signal.SIGKILL):
        return f"the chat template fails: it needs more than {SECONDS} s or {MEMORY >> 30} GiB"
    return f"{NOT_STARTED}: it ended with status {status}"


@lru_cache(maxsize=1)
def _process() -> _Process:
    return _Process()


class _Generation(Extension):
    """{% generation %} ... {% endgeneration %}: encloses the assistant's text, as in `transformers`."""

    tags = {"generation"}  # noqa: RUF012 - as in Extension

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_mark"), [], [], body).set_lineno(line)

    @jinja2.pass_context
    def _mark(self, context: jinja2.runtime.Context, caller: Any) -> str:
        before, after = context.get(MARKS) or ("", "")
        return f"{before}{caller()}{after}"


@lru_cache(maxsize=8)
def _compiled(template: str) -> jinja2.Template:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )

    def raise_exception(message: str) -> None:
        raise jinja2.TemplateError(message)

    def tojson(value: Any, ensure_ascii: bool = False, indent: int | None = None, **options: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **options)

    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    return environment.from_string(template)


def _answer_lines() -> None:
    """Answer each line of standard input."""
    import resource  # only Unix has it

    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    with suppress(ValueError, OSError):  # macOS has no such limit
        resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    for line in sys.stdin.buffer:
        used = sum(resource.getrusage(resource.RUSAGE_SELF)[:2])
        resource.setrlimit(resource.RLIMIT_CPU, (int(used) + 1 + SECONDS, resource.RLIM_INFINITY))
        try:
            answer = {"text": render(**json.loads(line))}
        except ValueError as error:
            answer = {"error": str(error)}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    _answer_lines()
