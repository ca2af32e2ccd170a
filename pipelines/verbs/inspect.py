"""Measurement: look inside a run: what its layers predict and what its heads do.

Examples:
    bytelm inspect runs/gpt "The king of England"
    bytelm inspect runs/gpt "The sky is" --target " blue" --out inside.html
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack

import tyro

from pipelines.cli.arguments import AsJson, Checkpoint, Device, Dtype, RunFolder, check_writable
from pipelines.cli.display import answer, say, say_on_stderr, table, write
from pipelines.cli.module_options import with_options
from pipelines.cli.parsing import parse
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.text_input import argument_text, standard_input_text
from pipelines.cli.verbs import verb
from pipelines.cli.waiting import doing
from pipelines.inspection.instruments import NAMES, descriptions, instrument
from pipelines.inspection.instruments import options as instrument_options
from pipelines.run.folder import opened

if TYPE_CHECKING:
    from lm.config import ModelConfig
    from pipelines.evaluation.measurement import Result
    from pipelines.inspection.instrument import Instrument

ENVIRONMENT = PASSIVE_THREADS

COMMON = ("target", "against", "corrupt")
RARE = sorted({option.name for option in instrument_options()} - {*COMMON})
# Options by subject: in --help, and only in --help-all.
HELP = {
    "What to look at": ("run texts instruments", ""),
    "Instruments' options": (" ".join(COMMON), " ".join(RARE)),
    "Model": ("checkpoint device dtype", ""),
    "Output": ("out explain json", ""),
}


class _NoMore(TypedDict):
    """No options besides those of the instruments, which `with_options` adds to the signature."""


@verb
@partial(with_options, options=instrument_options())
def inspect(
    run: RunFolder,
    texts: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT ...]")] = (),
    *,
    instruments: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    checkpoint: Checkpoint = "auto",
    device: Device = "auto",
    dtype: Dtype = "float32",
    out: Path | None = None,
    explain: bool = False,
    as_json: AsJson = False,
    **options: Unpack[_NoMore],
) -> "dict[str, list[Result]]":
    """Look inside a run with instruments; return the results of each by name.

    An instrument that reads text has a result for each text; any other has one.

    Args:
        texts: Texts that the model reads; - reads standard input. Some instruments need none.
        instruments: Names of instruments; by default those that suit the run.
        out: HTML page to write, with pictures and definitions.
        explain: Print the definition and the limits of each instrument.
        as_json: Print all numbers as one JSON object.
    """
    if unknown := [name for name in instruments if name not in NAMES]:
        raise ValueError(f"`instruments` names {unknown[0]!r}: choose from {', '.join(NAMES)}")
    contents = [standard_input_text("standard input") if t == "-" else argument_text(t, "a text") for t in texts]
    if as_json:
        say_on_stderr()
    if out is not None:
        if out.is_dir():
            raise ValueError(f"`out='{out}'` is a folder: name the file to write")
        check_writable("`out`", out, "choose another `out`")
    opened_run = opened(run, checkpoint, device, dtype)
    chosen = _chosen(instruments, opened_run.recipe.model, bool(contents), options)
    from pipelines.machine import choose_machine
    from pipelines.run.loaded_run import load_run

    own = opened_run.loaded.loaded.machine.device_name if opened_run.loaded else device
    choose_machine(own, "float32", needs="float64")  # refuses an Apple GPU; `load_run` chooses none by itself
    loaded = load_run(run, checkpoint=checkpoint, device=device, dtype=dtype)
    found = {name: one.look_at(loaded, contents) for name, one in chosen.items()}
    if out is not None:
        doing("drawing the pictures")
        from pipelines.reporting.inspection_page import write_inspection_page

        write_inspection_page(loaded.run.folder.name, found, out)
    if as_json:
        write(json.dumps({name: [one.to_json() for one in results] for name, results in found.items()}))
    else:
        _show(found, contents, explain)
    if out is not None:
        say(f"{out}")
    return found


def _chosen(
    names: Sequence[str], config: "ModelConfig", with_text: bool, options: Mapping[str, Any]
) -> "dict[str, Instrument]":
    """Return the instruments `names` with `options`; by default those that suit a model, and say which do not."""
    every = {name: instrument(name, options) for name in NAMES}
    usual = (name for name, one in every.items() if one.usual and (with_text or not one.reads_text))
    chosen = {name: every[name] for name in names or usual}
    for name, one in list(chosen.items()):
        try:
            one.check(config)
        except ValueError as error:
            if names:
                raise
            del chosen[name]
            say(f"without {name}: {error}")
        if one.reads_text and not with_text:
            raise ValueError(f"{name} needs a text: give at least one")
    used = {option.name for one in chosen.values() for option in fields(one)}
    for name, one in every.items():
        for option in fields(one):
            if option.name not in used and getattr(one, option.name) != option.default:
                raise ValueError(f"`{option.name}` is an option of {name}, which is not among the `instruments`")
    return chosen


def main(arguments: Sequence[str]) -> None:
    """Run the verb; `--help` lists the instruments."""
    parse(inspect, arguments, "inspect", {"Instruments": descriptions()})


def _show(found: "dict[str, list[Result]]", texts: Sequence[str], explain: bool) -> None:
    from pipelines.evaluation.measurement import Table

    for results in found.values():
        for number, result in enumerate(results, 1):
            section = result.section
            assert section is not None, "an instrument's result has a section"
            which = f", text {number}" if len(results) > 1 else ""
            for part in result.parts():
                if isinstance(part, Table):
                    answer(f"\n{section.heading}{which}: {part.title}")
                    table((part.label, *part.heads), [(name, *cells) for name, cells in part.rows], text=part.text)
                else:
                    answer(part)
            if explain and number == len(results):
                answer(f"\n{section.note}")
    if not explain:
        say("\n`explain` prints the definitions and limits of the instruments")
