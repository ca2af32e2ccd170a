"""The verbs of the `bytelm` command, one module each."""


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
