"""Use: serve runs in the browser and through OpenAI's completions API.

Examples:
    bytelm serve runs/gpt
    bytelm serve runs/gpt runs/bert --port 9000
"""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import tyro

from pipelines.cli.arguments import Adapter, Checkpoint, Device, Dtype, RunFolders
from pipelines.cli.display import answer
from pipelines.cli.parsing import parse
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.verbs import verb
from pipelines.run.folder import Run, opened

if TYPE_CHECKING:
    from pipelines.cli.arguments import AnyRun

# PyTorch and oneDNN cache code for each shape of a matrix product, by default for 1,024 shapes. A server meets new
# shapes all the time: smaller caches keep its memory flat and cost no time.
SHAPE_CACHES = {"LRU_CACHE_CAPACITY": "128", "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "128"}
ENVIRONMENT = PASSIVE_THREADS | SHAPE_CACHES


@verb
def serve(
    runs: RunFolders,
    *,
    port: int = 8000,
    host: str = "127.0.0.1",
    allow_host: Annotated[Sequence[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="NAME")] = (),
    allow_origin: Annotated[Sequence[str], tyro.conf.UseAppendAction, tyro.conf.arg(metavar="ORIGIN")] = (),
    token_file: Path | None = None,
    checkpoint: Checkpoint = "auto",
    adapter: Adapter = None,
    device: Device = "auto",
    dtype: Dtype = "float32",
) -> None:
    """Serve runs until Ctrl-C: a page for browsers, and OpenAI's completions API for programs.

    A model is named after its run's folder. Runs of a task answer POST /api/predict. Only this machine can reach the
    server, unless `host` or `allow_host` admits others. Requests then need the access token in the printed address, or
    the one in `token_file`.

    Args:
        runs: Folders of runs.
        port: Port to listen on; 0 chooses a free one.
        host: Address to listen on; 0.0.0.0 for all addresses of this machine.
        allow_host: Host name, without the port, that other machines use for this one. Repeat it for more names.
        allow_origin: Site whose pages may use the API, such as http://localhost:3000. Repeat it for more sites.
        token_file: File with the access token, readable only by its owner. All requests then need the token.
    """
    named = list(runs) if isinstance(runs, Sequence) else [runs]
    if adapter is not None and len(named) > 1:
        raise ValueError(f"`adapter` {adapter} belongs to one run, but {len(named)} runs are named: name one")
    if not named:
        raise ValueError("name at least one run folder")
    if not 0 <= port < 65536:
        raise ValueError(f"`port` is {port}, but must be from 0 to 65535")
    folders = _by_name(named)
    for run in named:
        _refuse_other_mixers(opened(run, checkpoint, device, dtype, any_task=True, adapter=adapter))
    try:
        import pydantic as pydantic
        import starlette as starlette
        import uvicorn as uvicorn
    except ImportError:
        raise ValueError("bytelm serve needs pydantic, starlette and uvicorn: pip install 'bytelm[serve]'") from None
    import asyncio
    import time

    from pipelines.serving.security import access_to, bound_socket, is_any, read_token

    token = read_token(token_file) if token_file else None
    with bound_socket(host, port) as bound:
        port = bound.getsockname()[1]
        access = access_to(host, port, allow_host, origins=allow_origin, token=token)
        # Imported once the options are known to be right, because PyTorch takes seconds.
        from pipelines.run.loaded_run import load_run
        from pipelines.run.predictor import Predictor
        from pipelines.serving.engine import Engine
        from pipelines.serving.models import ServedModel, Service
        from pipelines.serving.opening import opening_of
        from pipelines.serving.server import create_app, serve_until_interrupted

        loaded = {
            name: load_run(folder, checkpoint=checkpoint, device=device, dtype=dtype, adapter=adapter)
            for name, folder in folders.items()
        }
        texts = {name: run for name, run in loaded.items() if run.config.head is None}
        tuned = {name: run for name, run in loaded.items() if run.config.task and run.config.task.used_by == "predict"}
        with Engine(texts) as engine:
            models = {name: ServedModel(name, run, opening_of(run.run)) for name, run in texts.items()}
            tasks = {name: Predictor.of(run.run, run.loaded) for name, run in tuned.items()}
            stopping = asyncio.Event()
            service = Service(models, engine, created=int(time.time()), tasks=tasks)
            app = create_app(service, access, stopping)
            shown = next(iter(allow_host), "127.0.0.1" if is_any(host) else f"[{host}]" if ":" in host else host)
            answer(f"serving {', '.join(service.names)}")
            # A token from a file is not printed: the output may go to a log.
            printed = "" if access.token is None else f"#token={'TOKEN' if token else access.token}"
            answer(f"http://{shown}:{port}/{printed}" + (f" with the TOKEN in {token_file}" if token else ""))
            serve_until_interrupted(app, bound, stopping)


def _refuse_other_mixers(run: Run) -> None:
    """Raise ValueError for a decoder that continues texts without attention in all layers."""
    model = run.recipe.model
    if run.recipe.head is None and model.architecture == "decoder" and not model.attention_only:
        raise ValueError(
            f"{run.folder} is a decoder with the mixer {model.mixer_names}, but bytelm serve needs "
            "model.mixer='attention': use bytelm generate"
        )


def _by_name(runs: "Sequence[AnyRun]") -> "dict[str, AnyRun]":
    """Return the runs by the names of their folders. Raises ValueError if two have the same name."""
    folders: dict[str, AnyRun] = {}
    for folder in runs:
        name = Path(folder).resolve().name
        if name in folders:
            raise ValueError(
                f"{Path(folders[name])} and {Path(folder)} are both named {name}: rename one of the folders"
            )
        folders[name] = folder
    return folders


def main(arguments: list[str]) -> None:
    """Run `bytelm serve` with command-line arguments."""
    parse(serve, arguments, "serve")
