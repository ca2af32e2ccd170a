"""The page of a report: its contents by section, rendered by report.html.j2."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2

from pipelines.cli.display import duration, rounded
from pipelines.cli.escapes import safe
from pipelines.evaluation.numbers import headline, sentences_of
from pipelines.evaluation.results import SPLITS, SplitEvaluation
from pipelines.files import write_whole
from pipelines.reporting.cards import baselines_of, cards_of, codes_of
from pipelines.reporting.introspection_plots import inside_plots
from pipelines.reporting.plots import plots
from pipelines.reporting.subject import Subject
from pipelines.reporting.tables import (
    definitions_of,
    measured_sections,
    measured_tables,
    number_tables,
    sentences,
    trained_texts,
    training_table,
    validation_losses,
)
from pipelines.reporting.tokenizer_facts import TokenizerFacts


def write_page(subjects: Sequence[Subject], path: Path) -> None:
    """Write the report to `path`, whole or not at all. Raises ValueError if `path` is a folder."""
    if path.is_dir():
        raise ValueError(f"{path} is a folder: name the file to write with `out`")
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent),
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    page = environment.get_template("report.html.j2").render(_contents(subjects))
    write_whole(path, safe(page))


def _contents(subjects: Sequence[Subject]) -> dict[str, Any]:
    """Return the variables of the template."""
    samples = [(subject.name, sample) for subject in subjects for sample in subject.samples]
    return {
        "title": " and ".join(subject.name for subject in subjects),
        "several": len(subjects) > 1,
        "cards": [(subject.name, cards_of(subject)) for subject in subjects],
        "verdicts": [f"{verdict(subject)} {trained_on(subject)}" for subject in subjects],
        "results": measured_tables(subjects),
        "above": [*trained_texts(subjects), *sentences(subjects, above=True)],
        "below": sentences(subjects, above=False),
        "training": training_table(subjects),
        "losses": validation_losses(subjects),
        "plots": plots(subjects),
        "sections": measured_sections(subjects),
        "passages": [(subject.name, subject.passage) for subject in subjects if subject.passage],
        "samples": samples[:1],
        "more_samples": samples[1:],
        "tokenizers": _tokenizers(subjects),
        "insides": [
            (subject.name, subject.inside, inside_plots(subject.inside, f"inside-{number}"))
            for number, subject in enumerate(subjects, 1)
            if subject.inside
        ],
        "numbers": number_tables(subjects),
        "definitions": definitions_of(subjects),
        "configurations": [
            (subject.name, (subject.run.folder / "config.toml").read_text(encoding="utf-8")) for subject in subjects
        ],
    }


def _tokenizers(subjects: Sequence[Subject]) -> list[tuple[str, TokenizerFacts]]:
    """Return each tokenizer once, with the names of the runs that use it."""
    facts = {subject.tokenizer.fingerprint: subject.tokenizer for subject in subjects}
    return [
        (", ".join(subject.name for subject in subjects if subject.tokenizer.fingerprint == fingerprint), tokenizer)
        for fingerprint, tokenizer in facts.items()
    ]


def verdict(subject: Subject) -> str:
    """Return a sentence that compares a run with its baselines on the text of its main evaluation."""
    evaluation = subject.main
    if evaluation is None:
        return f"{subject.name} has not been evaluated yet: bytelm evaluate {subject.run.folder} measures it."
    if subject.of_task:
        return " ".join([f"{subject.name}: {headline(evaluation)}.", *sentences_of(evaluation)])
    where = f"on {'the ' if evaluation.split in SPLITS else ''}{subject.text_in_words(evaluation)}"
    objective = subject.run.recipe.objective
    if objective == "masked-token":
        return _masked_verdict(subject.name, evaluation, where)
    if evaluation.bits_per_byte is not None and objective == "next-token":
        bits, unit = evaluation.bits_per_byte, "bits per byte"
        opponents = codes_of(subject, evaluation)
    else:
        bits, unit = evaluation.cross_entropy_bits, "bits per target"
        opponents = baselines_of(evaluation, 1.0)
    bleu = f" Its BLEU is {evaluation.bleu:.1f}." if evaluation.bleu is not None else ""
    return f"{subject.name} needs {bits:.3f} {unit} {where}{_comparison(bits, opponents)}.{bleu}"


def trained_on(subject: Subject) -> str:
    """Return a sentence about a run's training tokens, time and speed; "" if it was imported or not trained."""
    if subject.imported or not subject.seconds:
        return ""
    tokens = rounded(subject.tokens_seen, "tokens")
    hardware = subject.run.facts.get("hardware", "not recorded")
    return (
        f"It was trained on {tokens} in {duration(subject.seconds)}: its machine ({hardware}) trains "
        f"{subject.speed:,.0f} tokens a second."
    )


def _masked_verdict(name: str, evaluation: SplitEvaluation, where: str) -> str:
    usual, bits = evaluation.unigram_accuracy, evaluation.cross_entropy_bits
    text = f"{name} ranks {evaluation.accuracy:.1%} of the masked tokens first {where}"
    if usual is not None:
        text += f", where always guessing the most frequent token is right for {usual:.1%}"
    return f"{text}; it needs {bits:.3f} bits per masked token{_comparison(bits, baselines_of(evaluation, 1.0))}."


def _comparison(own: float, opponents: dict[str, float]) -> str:
    """Return a text such as ": it beats a (1.000), and loses to b (0.500)"; empty without opponents.

    Numbers that are equal at three decimals match.
    """
    groups: dict[str, list[str]] = {"beats": [], "matches": [], "loses to": []}
    for name, bits in sorted(opponents.items(), key=lambda item: item[1]):
        gap = round(bits, 3) - round(own, 3)
        groups["beats" if gap > 0 else "loses to" if gap < 0 else "matches"].append(f"{name} ({bits:.3f})")
    parts = [f"{verb} {_list_text(names)}" for verb, names in groups.items() if names]
    if len(parts) > 1:
        parts[-1] = f"and {parts[-1]}"
    return f": it {', '.join(parts)}" if parts else ""


def _list_text(names: list[str]) -> str:
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
