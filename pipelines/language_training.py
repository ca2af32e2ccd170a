"""Training a vocabulary that treats several languages equally: the option `parity` of train-tokenizer."""

from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from corpora import Corpus, open_corpus
from pipelines.cli.arguments import parse_number
from pipelines.cli.corpus_arguments import ReadingOptions
from pipelines.cli.display import Bar, answer
from pipelines.cli.dry_run import plan_tokenizer
from pipelines.cli.errors import UsageError
from pipelines.reporting.language_parity import language_costs, read_parallel
from pipelines.reporting.tokenizer_summary import OURS, HeldOut, print_summary, summarize
from pipelines.reporting.training_phases import Phases
from tokenizer import PretokenCounts, Tokenizer, count_pretokens
from tokenizer.training.counting import Progress
from tokenizer.training.parity import ParityRules, checked_pattern, train_with_parity_from_counts
from tokenizer.training.train import DEFAULT_MIN_FREQUENCY, TrainingOptions

# Options of train-tokenizer that parity-aware training does not take, with their defaults.
UNFITTING: Mapping[str, Any] = {
    "kind": "bpe",
    "normalize": (),
    "superwords": False,
    "pairs": None,
    "counts": (),
    "save_counts": None,
    "engine": "local",
    "memory": None,
    "min_count": 1,
    "trace": 0,
    "max_token_length": None,
    "byte_order": "gpt2",
    "tie_break": "ids",
}


@dataclass(frozen=True)
class LanguageTexts:
    """The training text of several languages, and how a merge chooses its language.

    parallel: the same sentences in each language, or None. rules: have the ratios in the order of `corpora`.
    """

    corpora: dict[str, Corpus]
    parallel: dict[str, list[str]] | None
    rules: ParityRules

    def count(
        self, pattern: str, cut_at: Sequence[str], threads: int | None, phases: Phases
    ) -> tuple[list[PretokenCounts], HeldOut, dict[str, str]]:
        """Return the counts of each language, about 4 MB of held-out text of each, and the languages of its texts."""
        counts: list[PretokenCounts] = []
        held_out, languages = HeldOut(), {}
        for language, corpus in self.corpora.items():
            own = HeldOut()
            texts = own.apart_from_training(corpus)
            counts.append(count_pretokens(texts, pattern, threads, _after(phases, counts), cut_at=cut_at))
            languages.update({text: language for array in own.texts for text in array.to_pylist()})
            held_out.texts += own.texts
            held_out.bytes += own.bytes
        return counts, held_out, languages

    def train(
        self,
        vocab_size: int,
        pattern: str,
        cut_at: Sequence[str],
        options: TrainingOptions,
        out: Path,
        others: Mapping[str, Tokenizer],
        threads: int | None,
        as_json: bool,
        dry_run: bool,
    ) -> Tokenizer | None:
        """Train a tokenizer, save it in `out`, and print its summary; return it, or None with `dry_run`.

        options: `special_tokens` and `min_frequency` are used. others: tokenizers to compare.
        """
        checked_pattern(pattern)  # refuses before counting
        corpora = self.corpora.values()
        rule = ", ".join(dict.fromkeys(corpus.split_rule for corpus in corpora))
        size = sum(corpus.text_bytes_estimate or 0 for corpus in corpora) or None
        if dry_run:
            plan_tokenizer(vocab_size, size, rule, pattern, out, None, threads)
            answer(f"would merge for {len(corpora)} languages in plain Python, which takes seconds per MB")
            return None
        with nullcontext() if as_json else Bar("counting", size, "B") as bar:
            phases = Phases(bar, size)
            phases.begin("count")
            counts, held_out, languages = self.count(pattern, cut_at, threads, phases)
            parallel = self.parallel and [count_pretokens(each, pattern, threads) for each in self.parallel.values()]
            least = options["min_frequency"]
            tok = train_with_parity_from_counts(
                counts,
                parallel or None,
                vocab_size,
                self.rules,
                options["special_tokens"],
                min_frequency=DEFAULT_MIN_FREQUENCY if least is None else least,
                progress=phases,
            )
            phases.end()
        tok.save(out)
        counted = PretokenCounts.sum(counts)
        summary = {"tokenizer": str(out), "split_rule": rule, "seconds": phases.seconds}
        summary |= summarize(tok, counted, counted, held_out, others, languages)
        if self.parallel:
            named = {OURS: tok, **others}
            summary["parity"] = {name: language_costs(each, self.parallel) for name, each in named.items()}
        print_summary(summary, [*corpora], as_json)
        return tok


def open_languages(
    parity: Sequence[str],
    window: int,
    corpus: Sequence[str],
    split: str | None,
    reading: ReadingOptions,
    given: Mapping[str, Any],
) -> LanguageTexts:
    """Return the texts and rules that the arguments `parity`, `parity_window` and `corpus` name.

    given: the values of the options in `UNFITTING`. Raises ValueError for one that does not fit, for a corpus without a
    language, and for languages that differ.
    """
    if not parity:
        raise UsageError("`parity_window` has no effect without `parity`: give both, or none")
    for name, default in UNFITTING.items():
        if given[name] != default:
            raise UsageError(f"`parity` does not go with `{name}`: leave one of them out")
    if window < 0:
        raise ValueError(f"`parity_window` is {window}, but must not be negative")
    names: dict[str, list[str]] = {}
    for each in corpus:
        language, equals, place = each.partition("=")
        if not (language and equals and place):
            raise ValueError(f"with `parity`, a corpus needs its language, as in en={place or each}")
        names.setdefault(language, []).append(place)
    parallel = read_parallel(Path(parity[0])) if len(parity) == 1 else None
    ratios = None if parallel else dict(map(_ratio, parity))
    if different := names.keys() ^ (parallel or ratios or {}).keys():
        raise ValueError(
            f"`parity` and the corpora differ in the languages {', '.join(sorted(different))}: give the same ones"
        )
    rules = ParityRules(ratios=[ratios[language] for language in names] if ratios else None, window=window)
    corpora = {language: open_corpus(places, split=split, **reading) for language, places in names.items()}
    return LanguageTexts(corpora, parallel and {language: parallel[language] for language in names}, rules)


def _after(phases: Phases, counted: Sequence[PretokenCounts]) -> Progress:
    """Return the progress of counting one more corpus."""
    before = sum(counts.total_bytes for counts in counted)
    return lambda phase, done, total: phases(phase, before + done, total)


def _ratio(given: str) -> tuple[str, float]:
    language, _, ratio = given.rpartition("=")
    try:
        number = parse_number(ratio)
    except ValueError:
        number = 0.0
    if not language or not 0 < number < float("inf"):
        raise ValueError(f"`parity` is {given}: give one file, or a ratio above 0 for each language, as in en=1 hi=2.5")
    return language, number
