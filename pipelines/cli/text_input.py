"""Texts given on a command line, in files and on standard input."""

from pathlib import Path

from pipelines.cli.process import read_standard_input
from pipelines.files import read_bytes


def argument_text(value: str, name: str) -> str:
    """Return the text of an argument or option called `name`; ValueError if it is not UTF-8."""
    try:
        return value.encode("utf-8", "surrogateescape").decode()  # undoes Python's escapes of invalid bytes
    except UnicodeDecodeError as error:
        raise _not_utf8(name, error) from None
    except UnicodeEncodeError:
        return value  # the tokenizer names the surrogate


def standard_input_text(name: str) -> str:
    """Return the text of standard input, which the argument or option `name` stands for."""
    return _decode(read_standard_input(), name)


def file_text(path: Path) -> str:
    """Return the text in a file; - is standard input. Raises ValueError if it is not UTF-8."""
    return standard_input_text("standard input") if path == Path("-") else _decode(read_bytes(path), str(path))


def without_line_end(text: str) -> str:
    """Return a text without the LF or CR LF at its end."""
    return text.removesuffix("\r\n" if text.endswith("\r\n") else "\n")


def _decode(data: bytes, name: str) -> str:
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        raise _not_utf8(name, error) from None


def _not_utf8(name: str, error: UnicodeDecodeError) -> ValueError:
    return ValueError(f"{name} is not UTF-8 at byte {error.start:,}: convert it")
