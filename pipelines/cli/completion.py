"""`bytelm --completion SHELL`: a script of tyro that completes verbs and options in a shell."""

import importlib
import inspect
from collections.abc import Callable, Sequence
from typing import Any

import tyro

from lm.config import ModelConfig
from pipelines.cli.errors import UsageError
from pipelines.cli.parsing import registry, with_quiet
from pipelines.recipes.recipe import Recipe

SHELLS = ("bash", "zsh", "fish")
# Defaults of parameters whose fields are options; none of them is required.
DEFAULTS: dict[str, dict[str, Any]] = {"pretrain": {"recipe": Recipe()}, "params": {"model": ModelConfig()}}


def print_script(verbs: Sequence[str], shell: str) -> None:
    """Print the completion script of `bytelm` for `shell` and exit; UsageError for an unknown shell."""
    if shell not in SHELLS:
        raise UsageError(f"--completion is {shell!r}: choose one of {', '.join(SHELLS)}")
    tyro.extras.subcommand_cli_from_dict(
        {verb: _signature(verb) for verb in verbs},
        prog="bytelm",
        args=["--tyro-print-completion", shell],
        registry=registry(),
        config=(tyro.conf.DisallowNone,),
    )


def _signature(verb: str) -> Callable[..., Any]:
    """Return a function with the parameters of a verb."""
    name = verb.replace("-", "_")
    module = importlib.import_module(f"pipelines.verbs.{name}")
    # `corpus` and `dataset` are followed by a second word, which chooses a function.
    target = getattr(module, {"corpus": "show", "dataset": "verify_dataset"}.get(verb, name))
    return with_quiet(inspect.unwrap(target), DEFAULTS.get(verb, {}))
