"""Parse command lines with tyro, and show its errors as one sentence."""

import inspect
import io
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, redirect_stderr
from dataclasses import replace
from functools import partial
from itertools import groupby
from types import NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin

import tyro
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from pipelines.cli.arguments import Quiet, check_writable, parse_count, parse_number
from pipelines.cli.errors import UsageError, complain
from pipelines.cli.stdout import STDOUT
from pipelines.cli.verbs import refuse_uris
from pipelines.cli.waiting import explained

T = TypeVar("T")
# Sections of tyro's errors, after the first, that say something else than --help does.
_HINTS = ("Unrecognized", "Perhaps you meant", "Arguments similar")


def parse(
    target: Callable[..., T],
    arguments: Sequence[str],
    verb: str,
    more: str = "",
    shown: Callable[[T], None] | None = None,
) -> T:
    """Call `target` with the command-line `arguments`, and return its result, which `shown` prints.

    --help prints the help, whose description ends with `more`, and exits with status 0. A usage error prints one line
    and exits with status 2, or raises UsageError.
    """
    target = inspect.unwrap(target)  # the function beneath @verb has the annotations of the command line
    prog = f"bytelm {verb}"
    try:
        with _unwrapped_errors(arguments), redirect_stderr(io.StringIO()) as error:
            call, quiet = tyro.cli(
                with_quiet(target),
                args=list(arguments),
                prog=prog,
                registry=registry(),
                config=(tyro.conf.DisallowNone,),
                description="\n\n".join(filter(None, (_description(target), more))),
            )
    except SystemExit as leaving:
        if leaving.code:
            complain(verb.split()[0], f"{one_line(error.getvalue())}: `{prog} --help` lists all options")
        raise
    except OSError as error:  # of printing help
        raise OSError(error.errno, error.strerror, STDOUT) from None
    from pipelines.cli.display import show  # --help does not need it

    _check_positionals(call, prog)
    refuse_uris(call.func, inspect.signature(call.func).bind(*call.args, **call.keywords).arguments)
    for name in ("out", "save_counts", "parquet"):
        option = f"--{name.replace('_', '-')}"
        check_writable(option, call.keywords.get(name), f"choose another {option}")
    with show(quiet), explained(verb.split()[0], quiet):
        result = call()
        if shown:
            shown(result)
    return result


@contextmanager
def _unwrapped_errors(arguments: Sequence[str]) -> Iterator[None]:
    """Make tyro print errors without line breaks and colours; --help is as wide as the terminal."""
    before = {name: os.environ.get(name) for name in ("COLUMNS", "TERM")}
    if not {"-h", "--help"} & set(arguments):
        os.environ |= {"COLUMNS": "1000000", "TERM": "dumb"}
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


def one_line(box: str) -> str:
    """Return tyro's error message, printed as `box`, as one line: no border, footer or help texts of options."""
    lines = [line[2:].rstrip(" │╯") for line in box.splitlines()[1:]]  # the first line is the title
    sections = [list(group) for is_rule, group in groupby(lines, lambda line: not line.strip("─- ")) if not is_rule]
    if not sections:
        return " ".join(box.split())
    wanted = [sections[0], *(section for section in sections[1:] if section[0].startswith(_HINTS))]
    return "; ".join(" ".join((section[0], ", ".join(_items(section)))).strip(" .") for section in wanted)


def _items(section: list[str]) -> list[str]:
    """Return the options or words listed below a section's first line; their help texts are indented further."""
    return [line.strip() for line in section[1:] if not line.startswith(" " * 8)]


def with_quiet(target: Callable[..., T]) -> Callable[..., tuple[partial[T], bool]]:
    """Return a function with the parameters of `target` and `quiet`, which returns the bound call and `quiet`."""

    def bind(*positional: Any, quiet: bool, **named: Any) -> tuple[partial[T], bool]:
        return partial(target, *positional, **named), quiet

    signature = inspect.signature(target)
    option = inspect.Parameter("quiet", inspect.Parameter.KEYWORD_ONLY, default=False, annotation=Quiet)
    # Before the other options: --help lists it beside -h.
    parameters = sorted([option, *signature.parameters.values()], key=lambda parameter: parameter.kind)
    bind.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect.signature
    hints = {name: _as_union(hint) for name, hint in _parameter_annotations(target).items()} | {"quiet": Quiet}
    for parameter in signature.parameters.values():
        hint = _default_hint(parameter)
        if hint is not None:
            hints[parameter.name] = Annotated[hints[parameter.name], tyro.conf.arg(help_behavior_hint=hint)]
    bind.__annotations__ = hints
    # tyro would break lines of --help where the lines of an argument's description end.
    bind.__doc__ = re.sub(r"\n {8,}", " ", inspect.cleandoc(target.__doc__ or ""))
    return bind


def _parameter_annotations(function: Callable[..., Any]) -> dict[str, Any]:
    """Return the annotations of the parameters; that of the result may name a type that only type checkers import."""
    return {name: hint for name, hint in inspect.get_annotations(function).items() if name != "return"}


def _as_union(hint: Any) -> Any:
    """Return the annotation `A | B` as Union[A, B]. For `A | B`, tyro would import typeguard to check the default."""
    if get_origin(hint) is Annotated:
        plain, *rest = get_args(hint)
        return Annotated[_as_union(plain), *rest]
    return Union[get_args(hint)] if isinstance(hint, UnionType) else hint  # noqa: UP007


def _default_hint(parameter: inspect.Parameter) -> str | None:
    """Return the replacement of "(default: None)" and "(default: )" in --help; None for other defaults."""
    if parameter.kind is parameter.VAR_KEYWORD or tyro.conf.UseAppendAction in get_args(parameter.annotation):
        return None
    if parameter.default is parameter.empty:
        return "(required)"
    return "" if parameter.default is None or parameter.default == () else None


def _check_positionals(call: partial[Any], prog: str) -> None:
    """Raise UsageError for an empty sequence of a required parameter, which tyro accepts."""
    given = inspect.signature(call.func).bind(*call.args, **call.keywords).arguments
    hints = _parameter_annotations(call.func)
    for name, parameter in inspect.signature(call.func).parameters.items():
        if parameter.default is parameter.empty and given.get(name) in ((), []):
            metavar = next(each.metavar for each in get_args(hints[name]) if getattr(each, "metavar", None))
            raise UsageError(f"Missing from {prog}: {metavar.split()[0]}: `{prog} --help` lists all options")


def _description(target: Callable[..., Any]) -> str:
    """Return the docstring of `target` for --help: without arguments, return values and exceptions."""
    text = inspect.cleandoc(target.__doc__ or "").partition("\nArgs:")[0]
    text = re.sub(r"(;|,? and)\s+return\b.*?(?=[.:](\s|$))", "", text, flags=re.DOTALL)
    paragraphs = []
    for paragraph in text.split("\n\n"):
        sentences = re.split(r"(?<=\.)\s+", " ".join(paragraph.split()))
        paragraphs.append(" ".join(each for each in sentences if not each.startswith(("Raises ", "Returns "))))
    return "\n\n".join(filter(None, paragraphs))


def registry() -> ConstructorRegistry:
    """Return the rules that parse numbers such as 2M, and optional values by the rule of their type."""
    rules = ConstructorRegistry()

    @rules.primitive_rule
    def numbers(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        if info.type not in (int, float):
            return None
        from_text, metavar = (parse_count, "N") if info.type is int else (parse_number, "FLOAT")
        accepted = info.type if info.type is int else (int, float)
        return PrimitiveConstructorSpec(
            nargs=1,
            metavar=metavar,
            instance_from_str=lambda words: from_text(words[0]),
            is_instance=lambda value: isinstance(value, accepted) and not isinstance(value, bool),
            str_from_instance=lambda value: [str(value)],
        )

    @rules.primitive_rule
    def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        members = set(get_args(info.type)) - {NoneType}
        if info.type_origin not in (Union, UnionType) or len(members) != 1 or NoneType not in get_args(info.type):
            return None
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(members.pop(), info.markers))
        assert isinstance(spec, PrimitiveConstructorSpec)
        return replace(
            spec,
            is_instance=lambda value: value is None or spec.is_instance(value),
            str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
        )

    return rules
