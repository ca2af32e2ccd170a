"""From text to reports: the verbs of the `bytelm` command, and the packages behind them."""

import os
import sys

# PyTorch reads these when it starts. Operations that Apple GPUs lack run on the CPU; on other GPUs, freed memory of one
# size serves others.
os.environ.setdefault("PYTORCH_ENABLE_MPS_FALLBACK", "1")
if sys.platform == "linux" and "PYTORCH_CUDA_ALLOC_CONF" not in os.environ:
    os.environ.setdefault("PYTORCH_ALLOC_CONF", "expandable_segments:True")


def own_version() -> str:
    """Return the version of the installed bytelm, or of the source folder if it is not installed."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("bytelm")
    except PackageNotFoundError:
        import tomllib
        from pathlib import Path

        project = Path(__file__).parents[1] / "pyproject.toml"
        return str(tomllib.loads(project.read_text(encoding="utf-8"))["project"]["version"])
