"""Measurement: draw textbook figures: attention, masks, architectures, merges, cross-entropy.

Examples:
    bytelm figures --out figures
    bytelm figures next-tokens --run runs/gpt --text "The king of" --out figures
"""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import tyro

from pipelines.cli.arguments import OtherRun, check_writable
from pipelines.cli.display import answer, say
from pipelines.cli.errors import UsageError, did_you_mean
from pipelines.cli.verbs import verb
from pipelines.figures import FIGURES

if TYPE_CHECKING:
    from matplotlib.figure import Figure


@verb
def figures(
    names: Annotated[tuple[str, ...], tyro.conf.Positional, tyro.conf.arg(metavar="[NAME ...]")] = (),
    *,
    out: Path,
    run: OtherRun = None,
    model: Annotated[str | None, tyro.conf.arg(metavar="MODEL")] = None,
    text: str | None = None,
) -> list[Path]:
    """Draw figures that explain a transformer; write each as SVG and PNG, and return the paths.

    The figures are positions, masks, attention, decoder, encoder, encoder-decoder, parameters, merges, next-tokens,
    cross-entropy and temperature. Each has an example that needs no run.

    Args:
        names: Figures to draw; by default all.
        out: Folder to write to.
        run: Run that next-tokens, temperature, merges and cross-entropy show, and whose model is drawn.
        model: Preset, recipe, .toml file or run whose parameters and architecture are drawn; by default `run`.
        text: Text for next-tokens, temperature and merges.
    """
    for name in [name for name in names if name not in FIGURES]:
        raise UsageError(
            f"there is no figure {name!r}: {did_you_mean(name, list(FIGURES))}choose from {', '.join(FIGURES)}"
        )
    check_writable("`out`", out / "figure", "choose another `out`")
    given = _given(run, model, text)
    drawn = {name: _draw(name, given, bool(names)) for name in names or FIGURES}
    from pipelines.figures.canvas import save_figure

    paths = []
    for name, figure in drawn.items():
        paths += save_figure(figure, out, name)
        answer(f"{paths[-1]}: {FIGURES[name].caption}")
    return paths


def _given(run: Any, model: str | None, text: str | None) -> dict[str, Any]:
    """Return the arguments of the figures."""
    from pipelines.run.loaded_run import load_run
    from pipelines.run.named_models import named_model

    given: dict[str, Any] = {} if text is None else {"text": text}
    if run is not None:
        given["run"] = load_run(run)
        given["model"] = given["run"].config.model
    if model is not None:
        given["model"] = named_model(model)[0]
    return given


def _draw(name: str, given: dict[str, Any], named: bool) -> "Figure":
    """Return a figure. If the run or the model does not suit it, draw its example, or raise if it is `named`."""
    try:
        return FIGURES[name].draw(**given)
    except ValueError as error:
        if named or not given.keys() & {"run", "model"}:
            raise
        say(f"{name} is drawn as an example: {error}")
        return FIGURES[name].draw()
