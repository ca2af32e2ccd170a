"""`--help` and `--help-all` of a verb: its options by subject.

--help shows the options that people set, each with the first sentence of its description. --help-all shows every option
with its whole description. The module of a verb may have a table `HELP` of its subjects; options that no subject names
come last. The docstring of the module has examples, after the line "Examples:".
"""

import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType, ModuleType
from typing import Any

import tyro
from tyro._arguments import ArgumentDefinition, generate_argument_helptext
from tyro._parsers import ParserSpecification
from tyro._singleton import MISSING_NONPROP
from tyro._strings import delimiter_context
from tyro.constructors import ConstructorRegistry

Subjects = Mapping[str, tuple[str, str]]
"""The names of options by subject: first those of --help, then those that only --help-all shows"""
Lists = Mapping[str, Mapping[str, str]]
"""Descriptions by name, such as those of recipes, by the title of the list"""

FLAGS = frozenset({"-h", "--help", "--help-all"})
GENERAL: Subjects = {"General": ("quiet help_all", "")}
WIDEST_NAME = 26  # longer names have a line of their own
WIDEST_LINE = 120


def help_text(
    bind: Callable[..., Any],
    registry: ConstructorRegistry,
    module: ModuleType,
    prog: str,
    description: str,
    lists: Lists = MappingProxyType({}),
    whole: bool = False,
) -> str:
    """Return the help of the verb `prog`, which `module` defines, with the parameters of `bind`.

    `whole`: whether for --help-all.
    """
    arguments = {_name(argument): argument for argument in _arguments(bind, registry)}
    subjects: Subjects = getattr(module, "HELP", {})
    named = {name for names in [*subjects.values(), *GENERAL.values()] for name in " ".join(names).split()}
    others = " ".join(name for name in arguments if name not in named)
    sections = {
        title: [(name, _shortened(text, whole)) for name, text in rows.items()] for title, rows in lists.items()
    }
    for title, (common, rare) in {
        **subjects,
        "Other options" if subjects else "Options": (others, ""),
        **GENERAL,
    }.items():
        shown = [arguments[name] for name in f"{common} {rare if whole else ''}".split() if name in arguments]
        section = sections.setdefault(title if whole else title.partition(":")[0], [])
        section += [(_invocation(each), _text(each, whole)) for each in shown]
    summary = description if whole else description.partition("\n\n")[0]
    return page(_usage(prog, arguments.values()), summary, examples(module, prog), sections)


def page(
    usage: str, description: str, examples: Sequence[str], sections: Mapping[str, Sequence[tuple[str, str]]]
) -> str:
    """Return a help, wrapped to the terminal. `sections` are names with their descriptions, by title."""
    width = min(shutil.get_terminal_size().columns, WIDEST_LINE)
    paragraphs = [textwrap.fill(usage, width, subsequent_indent=" " * len("usage: "), break_on_hyphens=False)]
    paragraphs += [_wrapped(paragraph, width) for paragraph in description.split("\n\n")]
    paragraphs.append("\n".join(["Examples:", *(f"  {example}" for example in examples)]))
    sizes = [len(name) for rows in sections.values() for name, _ in rows]
    column = max((size for size in sizes if size <= WIDEST_NAME), default=WIDEST_NAME) + 4
    for title, rows in sections.items():
        if rows:
            paragraphs.append("\n".join([f"{title}:", *(_row(name, text, column, width) for name, text in rows)]))
    return "\n\n".join(paragraphs) + "\n"


def prefixed(prefix: str, subjects: Subjects) -> Subjects:
    """Return the subjects of the fields of a parameter, as those of a verb."""

    def names(fields: str) -> str:
        return " ".join(f"{prefix}.{field}" for field in fields.split())

    return {
        f"{prefix.capitalize()}: {title}": (names(common), names(rare)) for title, (common, rare) in subjects.items()
    }


def _arguments(bind: Callable[..., Any], registry: ConstructorRegistry) -> list[ArgumentDefinition]:
    with registry, delimiter_context("-"):
        parser = ParserSpecification.from_callable_or_type(
            bind,
            markers={tyro.conf.DisallowNone},
            description="",
            parent_classes=set(),
            default_instance=MISSING_NONPROP,
            intern_prefix="",
            extern_prefix="",
            subcommand_prefix="",
            support_single_arg_types=False,
            prog_suffix="",
        )
        arguments = [part.arg for part in parser.get_args_including_children()]
        for argument in arguments:
            argument.lowered  # noqa: B018 - computed with the registry
        return [argument for argument in arguments if tyro.conf.Suppress not in argument.field.markers]


def _name(argument: ArgumentDefinition) -> str:
    """Return the name of an option in tables of subjects, such as model.vocab_size."""
    return argument.lowered.name_or_flags[-1].removeprefix("--").replace("-", "_")


def _invocation(argument: ArgumentDefinition) -> str:
    """Return an option as it is typed. A flag that is on by default is shown with its negation."""
    lowered = argument.lowered
    if argument.is_positional():
        return str(lowered.metavar)
    flags = ", ".join(lowered.name_or_flags)
    if lowered.action == "boolean_optional_action" and argument.field.default is True:
        group, dot, name = flags.removeprefix("--").rpartition(".")
        flags = f"--{group}{dot}[no-]{name}"
    return f"{flags} {metavar(argument)}" if lowered.metavar else flags


def metavar(argument: ArgumentDefinition) -> str:
    """Return what stands for the value of an option: `SPLIT ...` for `[STR [STR ...]]` of `splits`."""
    several = re.fullmatch(r"\[(.+) \[\1 \.\.\.\]\]", argument.lowered.metavar or "")
    shown = several[1] if several else argument.lowered.metavar or ""
    if shown == "STR":
        shown = re.split(r"\W|_", argument.lowered.name_or_flags[0])[-1].upper()
        shown = re.sub("(?<!U)S$", "", shown) if several else shown  # TOKENS, but not CORPUS
    return f"{shown} ..." if several else shown


def _text(argument: ArgumentDefinition, whole: bool) -> str:
    """Return the description of an option, with its default or that it is required."""
    text = argument.field.helptext
    text = (text() if callable(text) else text) or ""
    hint = generate_argument_helptext(argument, argument.lowered, compact=True).as_str_no_ansi()
    hint = {"(default: False)": "", "(default: True)": "(default: on)", "(default: )": ""}.get(hint, hint)
    return f"{_shortened(text, whole)} {hint}".strip()


def _shortened(text: str, whole: bool) -> str:
    """Return a description, or its first sentence."""
    text = " ".join(text.split())
    return text if whole else re.split(r"(?<! al)\. ", text)[0].removesuffix(".")


def _usage(prog: str, arguments: Iterable[ArgumentDefinition]) -> str:
    words = [_invocation(each) for each in arguments if each.is_positional() or each.lowered.required]
    return " ".join(["usage:", prog, *words, "[OPTIONS]"])


def examples(module: ModuleType, prog: str) -> list[str]:
    """Return the examples in the docstring of a module that begin with the lower-case words of `prog`."""
    lines = (line.strip() for line in (module.__doc__ or "").partition("\nExamples:\n")[2].splitlines())
    return [line for line in lines if line.startswith(" ".join(filter(str.islower, prog.split())))]


def _wrapped(text: str, width: int, first: str = "", others: str = "") -> str:
    return textwrap.fill(
        text, width, initial_indent=first, subsequent_indent=others, break_on_hyphens=False, break_long_words=False
    )


def _row(name: str, text: str, column: int, width: int) -> str:
    indent = " " * column
    if len(name) + 4 <= column:
        return _wrapped(text, width, f"  {name:<{column - 2}}", indent)
    if len(name) + 2 > width:  # many values
        name = _wrapped(name.replace(",", ", "), width - 2, others=indent)
    return f"  {name}\n{_wrapped(text, width, indent, indent)}".rstrip()
