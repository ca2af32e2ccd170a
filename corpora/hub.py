"""Datasets on the Hugging Face hub, streamed: nothing is downloaded ahead of need or kept."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from corpora.documents import Chunk
from corpora.formats.arrow_files import TABLE_ROWS, column_chunks, one_line
from corpora.input_files import SPLIT_NAMES
from corpora.read_options import choose_column

_SPEC = re.compile(r"hub:(?P<repository>[^/@\s]+/[^/@\s]+)(?:/(?P<config>[^/@\s]+))?(?:@(?P<revision>\S+))?")
_TIMEOUT_SECONDS = 30


class HubName(NamedTuple):
    """A dataset on the hub, one of its configurations, and a commit, tag or branch of it."""

    repository: str
    config: str | None = None
    revision: str | None = None


def parse_hub_spec(spec: str) -> HubName:
    """Return the parts of `hub:owner/name[/config][@revision]`; ValueError for any other form."""
    match = _SPEC.fullmatch(spec)
    if not match:
        raise ValueError(
            f'"{spec}" is not a hub name: write hub:owner/name, hub:owner/name/config or hub:owner/name@revision'
        )
    return HubName(**match.groupdict())


class Hub:
    """All splits of one configuration of a hub dataset, at one commit: the newest, if no revision is given."""

    def __init__(
        self,
        name: HubName,
        text_column: str | None = None,
        splits: Mapping[str, str] | None = None,
        bytes_estimate: int | None = None,
    ):
        self._repository = name.repository
        self._name = "hub:" + name.repository + (f"/{name.config}" if name.config else "")
        self._text_column = text_column
        self.bytes_estimate = bytes_estimate
        self.mapped_bytes = 0
        self._tables = self._load(name.config, name.revision)
        named = dict(splits or self._usual_splits())
        if missing := [split for split in named.values() if split not in [*self._tables]]:
            raise ValueError(f'{self._name} has no split "{missing[0]}": it has {", ".join(self._tables)}')
        self._splits = named
        # A single split separates nothing.
        self.own_splits = tuple(named) if len(named) > 1 else ()

    def _usual_splits(self) -> dict[str, str]:
        """Return the hub's names by ours. ValueError if two of its splits have the same name here."""
        named: dict[str, str] = {}
        for split in self._tables:
            name = SPLIT_NAMES.get(split.lower(), split)
            if name in named:
                raise ValueError(
                    f'{self._name} has two {name} splits, "{named[name]}" and "{split}": choose one in [splits] of a '
                    "corpus card"
                )
            named[name] = split
        return named

    def surely_many(self, documents: int) -> bool:
        return False

    @property
    def size(self) -> int:
        return self.bytes_estimate or 0

    def parts(self, size: int | None = None) -> Iterator["Hub"]:
        yield self

    def identity(self) -> Any:
        return [self._name, self._commit, self._text_column, self._splits]

    def chunks(self) -> Iterator[Chunk]:
        for split, hub_split in self._splits.items():
            origin = f"{self._name} ({hub_split})"
            table = self._tables[hub_split]
            try:
                columns = table.column_names or list(next(iter(table), {}))
            except Exception as error:
                raise self._failure(error) from error
            column = choose_column(columns, self._name, self._text_column)
            own = split if self.own_splits else None
            tables = iter(table.select_columns([column.steps[0]]).with_format("arrow").iter(batch_size=TABLE_ROWS))
            yield from column_chunks(tables, column, origin, own, self._failure)

    def _load(self, config: str | None, revision: str | None) -> dict[str, Any]:
        """Return the splits as iterable datasets of `datasets`, which is slow to import."""
        import datasets
        import huggingface_hub

        datasets.disable_progress_bars()
        datasets.utils.logging.set_verbosity(datasets.utils.logging.CRITICAL)
        huggingface_hub.utils.logging.set_verbosity_error()
        try:
            # Ask for the commit first: that fails at once, while `datasets` would retry for half a minute. With the
            # commit every pass reads the same data.
            about = huggingface_hub.HfApi().dataset_info(self._repository, revision=revision, timeout=_TIMEOUT_SECONDS)
            self._commit = about.sha
            return dict(datasets.load_dataset(self._repository, config, revision=self._commit, streaming=True))
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> Exception:
        """Return an error of the client libraries, which have no common base class, as one sentence."""
        from huggingface_hub import errors

        message = one_line(error)
        match error:
            case errors.GatedRepoError():
                return ValueError(f"{self._name} is gated: ask for access on its page, then `hf auth login`")
            case errors.RepositoryNotFoundError() | errors.HFValidationError():
                return FileNotFoundError(
                    f"{self._name}: no such dataset on the hub, or it is private: check the name, or `hf auth login`"
                )
            case errors.RevisionNotFoundError():
                return FileNotFoundError(f"{self._name} has no such revision on the hub: check the part after @")
        if "scripts are no longer supported" in message:
            return ValueError(
                f"{self._name} is made by a script, which the package datasets no longer runs: try its converted form, "
                f"hub:{self._repository}@refs/convert/parquet"
            )
        if _is_network_error(error):
            return ConnectionError(f"{self._name} cannot be fetched from the hub ({message}): check the connection")
        return ValueError(f"{self._name} cannot be read: {message}")


def _is_network_error(error: BaseException | None) -> bool:
    """Whether a failed connection caused an error, whichever HTTP client raised it."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            return False
        if isinstance(error, OSError) or type(error).__module__.startswith(("http", "requests", "urllib3")):
            return True
        error = error.__cause__ or error.__context__
    return False
