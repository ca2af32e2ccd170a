"""Data sets on the Hugging Face hub, streamed: nothing is downloaded ahead of need or kept."""

import re
from collections.abc import Iterator, Mapping

from corpora.documents import Chunk
from corpora.files import SPLIT_NAMES
from corpora.jsonl import choose_column
from corpora.readers import column_chunks, one_line, quiet_datasets, stream_tables

_SPEC = re.compile(r"hub:(?P<repository>[^/@\s]+/[^/@\s]+)(?:/(?P<config>[^/@\s]+))?(?:@(?P<revision>\S+))?")
_TIMEOUT_SECONDS = 30


def parse_hub_spec(spec: str) -> dict[str, str | None]:
    """repository, config and revision of `hub:owner/name[/config][@revision]`."""
    match = _SPEC.fullmatch(spec)
    if not match:
        raise ValueError(
            f'"{spec}" is not a hub name: write hub:owner/name, hub:owner/name/config or hub:owner/name@revision'
        )
    return match.groupdict()


class Hub:
    """All splits of one configuration of a hub data set, at one commit: the newest, if no revision is given."""

    def __init__(
        self,
        repository: str,
        config: str | None = None,
        revision: str | None = None,
        text_column: str | None = None,
        splits: Mapping[str, str] | None = None,
        bytes_estimate: int | None = None,
    ):
        self._repository = repository
        self._name = "hub:" + repository + (f"/{config}" if config else "")
        self._text_column = text_column
        self.bytes_estimate = bytes_estimate
        self.mapped_bytes = 0
        self._tables = self._load(config, revision)
        named = dict(splits or {SPLIT_NAMES.get(name.lower(), name): name for name in self._tables})
        if missing := [name for name in named.values() if name not in self._tables]:
            raise ValueError(f'{self._name} has no split "{missing[0]}": it has {", ".join(self._tables)}')
        self._splits = named
        # One split alone divides nothing.
        self.own_splits = tuple(named) if len(named) > 1 else ()

    def surely_many(self, documents: int) -> bool:
        return False

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
            tables = stream_tables(table, column)
            yield from column_chunks(tables, column, origin, own, self._failure)

    def _load(self, config: str | None, revision: str | None):
        datasets = quiet_datasets()
        import huggingface_hub

        huggingface_hub.utils.logging.set_verbosity_error()
        try:
            # One question first: it fails at once where `datasets` would try again for half a minute, and its commit
            # makes every pass read the same data.
            commit = (
                huggingface_hub.HfApi().dataset_info(self._repository, revision=revision, timeout=_TIMEOUT_SECONDS).sha
            )
            return datasets.load_dataset(self._repository, config, revision=commit, streaming=True)
        except Exception as error:
            raise self._failure(error) from error

    def _failure(self, error: Exception) -> Exception:
        """One sentence for what the client libraries raise: they have no common kinds of errors."""
        from huggingface_hub import errors

        message = one_line(error)
        match error:
            case errors.GatedRepoError():
                return ValueError(f"{self._name} is gated: ask for access on its page, then `hf auth login`")
            case errors.RepositoryNotFoundError() | errors.HFValidationError():
                return FileNotFoundError(
                    f"{self._name}: there is no such data set on the hub, or it is private: check the name, or "
                    "`hf auth login`"
                )
            case errors.RevisionNotFoundError():
                return FileNotFoundError(f"{self._name} has no such revision on the hub: check what follows @")
        if "scripts are no longer supported" in message:
            return ValueError(
                f"{self._name} is made by a script, which `datasets` no longer runs: try its converted form, "
                f"hub:{self._repository}@refs/convert/parquet"
            )
        if _is_of_the_network(error):
            return ConnectionError(f"{self._name} cannot be fetched from the hub ({message}): check the connection")
        return ValueError(f"{self._name} cannot be read: {message}")


def _is_of_the_network(error: BaseException | None) -> bool:
    """Whether a failed connection is behind an error, whichever HTTP client of the day raised it."""
    while error is not None:
        if isinstance(error, FileNotFoundError):
            return False
        if isinstance(error, OSError) or type(error).__module__.startswith(("http", "requests", "urllib3")):
            return True
        error = error.__cause__ or error.__context__
    return False
