"""Parse command lines with tyro, and name each mistake in one sentence."""

import inspect
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import is_dataclass, replace
from functools import partial
from itertools import pairwise
from types import MappingProxyType, NoneType, UnionType
from typing import Annotated, Any, TypeVar, Union, Unpack, get_args, get_origin, get_type_hints

import tyro
from tyro._arguments import ArgumentDefinition
from tyro._errors import (
    BadValue,
    InstantiationFailure,
    InvalidChoice,
    MissingArgs,
    ParseErrorEvent,
    UnrecognizedArgs,
    on_parse_error,
)
from tyro.constructors import ConstructorRegistry, PrimitiveConstructorSpec, PrimitiveTypeInfo

from pipelines.cli.arguments import SHORT, HelpAll, Quiet, check_writable, parse_count, parse_number
from pipelines.cli.errors import UsageError, nearest
from pipelines.cli.escapes import as_options, command_line
from pipelines.cli.help import FLAGS, Lists, examples, help_text, metavar, page
from pipelines.cli.process import Stdout
from pipelines.cli.verbs import refuse_uris
from pipelines.cli.waiting import explain

T = TypeVar("T")


def parse(
    target: Callable[..., T],
    arguments: Sequence[str],
    verb: str,
    lists: Lists = MappingProxyType({}),
    defaults: Mapping[str, Any] = MappingProxyType({}),
) -> T:
    """Call `target`, the function of `verb`, with the command-line `arguments`, and return its result.

    `defaults` replace the defaults of its parameters. --help and --help-all print the help, with `lists`, and exit with
    status 0. A mistake in the command line raises UsageError.
    """
    target = inspect.unwrap(target)  # the function beneath @verb has the annotations of the command line
    prog = f"bytelm {verb}"
    bind = with_quiet(target, defaults)
    if FLAGS & set(arguments):
        module, whole = sys.modules[target.__module__], "--help-all" in arguments
        print(help_text(bind, registry(), module, prog, _description(target), lists, whole), file=Stdout(), end="")
        raise SystemExit(0)
    with on_parse_error(lambda event: _refuse(arguments, [*_options(bind.__annotations__)], event)):
        call, quiet = tyro.cli(
            bind, args=list(arguments), prog=prog, registry=registry(), config=(tyro.conf.DisallowNone,)
        )
    from pipelines.cli.display import show  # --help does not need it

    _check_positionals(call, prog)
    refuse_uris(call.func, inspect.signature(call.func).bind(*call.args, **call.keywords).arguments, True)
    for name in ("out", "save_counts", "parquet"):
        check_writable(f"`{name}`", call.keywords.get(name), f"choose another `{name}`")
    with show(quiet), command_line(), explain(verb.split()[0], quiet):
        result = call()
        _say_next(call, result)
        return result


def _say_next(call: partial[Any], result: Any) -> None:
    """Print the command that usually follows: what `next_step` in the module of the verb returns, if anything."""
    next_step = getattr(sys.modules[call.func.__module__], "next_step", None)
    arguments = inspect.signature(call.func).bind(*call.args, **call.keywords)
    arguments.apply_defaults()
    given = arguments.arguments
    if next_step is None or given.get("dry_run") or given.get("as_json"):
        return
    if following := next_step(given, result):
        from pipelines.cli.display import say

        say(f"next: {following}")


def parse_second(functions: Mapping[str, Callable[..., Any]], arguments: Sequence[str], verb: str) -> Any:
    """Call the function that the second word of a command names, as `parse` does, and return its result.

    `arguments` are the words after `verb`.
    """
    word, prog = "".join(arguments[:1]), f"bytelm {verb}"
    if word in functions:
        return parse(functions[word], arguments[1:], f"{verb} {word}")
    choices = " or ".join(f"`{prog} {name}`" for name in functions)
    if word not in FLAGS:
        problem = f"there is no `{prog} {word}`" if word else "the second word is missing"
        raise UsageError(f"{problem}: use {choices}")
    module = sys.modules[next(iter(functions.values())).__module__]
    summaries = {name: _description(inspect.unwrap(function)) for name, function in functions.items()}
    usage = f"usage: {prog} {{{','.join(functions)}}} [OPTIONS]"
    summary = f"{choices} with --help explains one of them."
    print(page(usage, summary, examples(module, prog), {"Commands": list(summaries.items())}), file=Stdout(), end="")
    raise SystemExit(0)


def _refuse(words: Sequence[str], options: Sequence[str], event: ParseErrorEvent) -> None:
    """Raise UsageError with one sentence about a mistake in the command line `words`."""
    strange = [word for word in words if _is_option(word) and _option_name(word) not in (*options, *SHORT)]
    match event:
        case MissingArgs():
            missing = ", ".join(map(_usage, (missing.arg for missing in event.missing_arguments)))
            text = "; ".join(filter(None, (f"missing {missing}", _unknown(event.unrecognized_tokens, options))))
        case UnrecognizedArgs():
            text = _unknown(event.tokens, options)
        case BadValue() if event.argument.is_positional() and strange:
            text = _unknown(strange, options)  # the parser takes it for the value of the positional argument
        case BadValue():
            text = f"{event.argument.display_name()} needs a value: {_usage(event.argument)}"
            names = event.argument.lowered.name_or_flags
            if any(_option_name(word) in names and following in strange for word, following in pairwise(words)):
                text += f"; write {names[0]}={metavar(event.argument)} if it begins with a hyphen"
        case InvalidChoice():
            choices = " or ".join(filter(None, (", ".join(event.choices[:-1]), event.choices[-1])))
            text = f"{event.argument.display_name()} is {event.value}, but must be {choices}"
        case InstantiationFailure():
            text = f"{event.argument.display_name()}: {event.message}" if event.argument else event.message
        case _:
            return  # tyro prints what it knows
    raise UsageError(f"{text}: `{event.prog} --help-all` lists all options")


def _usage(argument: ArgumentDefinition) -> str:
    """Return an option with its metavar, or the metavar of a positional argument."""
    lowered = argument.lowered
    return " ".join(filter(None, (*lowered.name_or_flags[: not argument.is_positional()], metavar(argument))))


def _is_option(word: str) -> bool:
    """Return whether the parser takes a word for an option: hyphens and a letter, so neither a number nor "-"."""
    return word.startswith("-") and word.lstrip("-")[:1].isalpha()


def _option_name(word: str) -> str:
    """Return the option in a word such as "--top_k=5", with hyphens."""
    return word.partition("=")[0].replace("_", "-")


def _unknown(words: Sequence[str], options: Sequence[str]) -> str:
    """Return a message about the first word that is no argument, with the options that resemble it."""
    if not words:
        return ""
    word = words[0]
    if not word.startswith("-"):
        return f"unexpected argument {word}"
    similar = nearest(_option_name(word), options)
    return f"unknown option {word}" + (f" (did you mean {' or '.join(similar)}?)" if similar else "")


def _options(hints: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    """Yield the options of parameters or fields with these types."""
    for parameter, hint in hints.items():
        kind, *rules = get_args(hint) if get_origin(hint) is Annotated else (hint,)
        name = next((rule.name for rule in rules if getattr(rule, "name", None) is not None), parameter)
        if get_origin(kind) is Unpack:
            yield from _options(get_type_hints(get_args(kind)[0], include_extras=True), prefix)
        elif is_dataclass(kind):
            yield from _options(get_type_hints(kind, include_extras=True), f"{prefix}{name}." if name else prefix)
        elif tyro.conf.Positional not in rules:
            yield f"--{prefix}{name}".replace("_", "-")
            if kind is bool and tyro.conf.FlagCreatePairsOff not in rules:
                yield f"--{prefix}no-{name}".replace("_", "-")


def with_quiet(target: Callable[..., T], defaults: Mapping[str, Any]) -> Callable[..., tuple[partial[T], bool]]:
    """Return a function with the parameters of `target` and the general options, which returns the call and `quiet`."""

    def bind(*positional: Any, quiet: bool, help_all: bool, **named: Any) -> tuple[partial[T], bool]:
        return partial(target, *positional, **named), quiet

    signature = inspect.signature(target)
    own = [p.replace(default=defaults.get(name, p.default)) for name, p in signature.parameters.items()]
    general = {"quiet": Quiet, "help_all": HelpAll}
    named = inspect.Parameter.KEYWORD_ONLY
    options = [inspect.Parameter(name, named, default=False, annotation=hint) for name, hint in general.items()]
    parameters = sorted([*options, *own], key=lambda parameter: parameter.kind)
    bind.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]  # read by inspect.signature
    hints = {name: _as_union(hint) for name, hint in _parameter_annotations(target).items()} | general
    for parameter in own:
        hint = _default_hint(parameter)
        if hint is not None:
            hints[parameter.name] = Annotated[hints[parameter.name], tyro.conf.arg(help_behavior_hint=hint)]
    bind.__annotations__ = hints
    # tyro would break lines of --help where the lines of an argument's description end.
    bind.__doc__ = re.sub(r"\n {8,}", " ", _docstring(target))
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
            metavar = next(rule.metavar for rule in get_args(hints[name]) if getattr(rule, "metavar", None))
            raise UsageError(f"missing {metavar}: `{prog} --help-all` lists all options")


def _docstring(target: Callable[..., Any]) -> str:
    """Return the docstring of `target` with options instead of arguments."""
    names = {option[2:].replace("-", "_") for option in _options(_parameter_annotations(target))}
    return as_options(inspect.cleandoc(target.__doc__ or ""), names)


def _description(target: Callable[..., Any]) -> str:
    """Return the docstring of `target` for --help: without arguments, return values and exceptions."""
    text = _docstring(target).partition("\nArgs:")[0]
    text = re.sub(r"(;|,? and)\s+return\b.*?(?=[.:](\s|$))", "", text, flags=re.DOTALL)
    paragraphs = []
    for paragraph in text.split("\n\n"):
        sentences = re.split(r"(?<=\.)\s+", " ".join(paragraph.split()))
        paragraphs.append(" ".join(one for one in sentences if not one.startswith(("Raises ", "Returns "))))
    return "\n\n".join(filter(None, paragraphs))


def _short(number: float) -> str:
    """Return a number as it is typed, such as 500k."""
    for unit, letter in ((10**9, "G"), (10**6, "M"), (10**3, "k")):
        if isinstance(number, int) and number >= 10_000 and number % unit == 0:
            return f"{number // unit}{letter}"
    return str(number)


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
            str_from_instance=lambda value: [_short(value)],
        )

    @rules.primitive_rule
    def optional(info: PrimitiveTypeInfo) -> PrimitiveConstructorSpec[Any] | None:
        members = set(get_args(info.type)) - {NoneType}
        if info.type_origin not in (Union, UnionType) or len(members) != 1 or NoneType not in get_args(info.type):
            return None
        spec = ConstructorRegistry.get_primitive_spec(PrimitiveTypeInfo.make(members.pop(), info.markers))
        if not isinstance(spec, PrimitiveConstructorSpec):
            return None  # a table, such as the task of a recipe
        return replace(
            spec,
            is_instance=lambda value: value is None or spec.is_instance(value),
            str_from_instance=lambda value: ["None"] if value is None else spec.str_from_instance(value),
        )

    return rules
