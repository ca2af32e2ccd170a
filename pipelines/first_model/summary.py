"""What `bytelm train` prints: its choices before the work, and the results after it."""

import os
from collections.abc import Mapping, Sequence

from corpora.splits import TRAIN, VALIDATION
from lm.metrics.units import NATS_PER_BIT
from pipelines.cli.console import messages, results
from pipelines.cli.display import answer, count_text, duration, perplexity_text, quantity, rounded, table
from pipelines.cli.dry_run import COUNTED_PER_SECOND, ENCODED_PER_SECOND
from pipelines.cli.escapes import safe
from pipelines.evaluation.numbers import value_of, with_interval
from pipelines.evaluation.results import Evaluation, SplitEvaluation
from pipelines.first_model.choices import EPOCHS, Budget, Choice, Kind, bytes_per_token, recipe_name, tokens_for
from pipelines.first_model.text_facts import TextFacts
from pipelines.reporting.page import trained_on, verdict
from pipelines.reporting.subject import Subject

# Compressing a longer text takes minutes.
MOST_COMPRESSED_BYTES = 50_000_000
COMPRESSED_PER_SECOND = 1_000_000  # bytes, by all compressors
# With a smaller share held out, the documents of the validation split rarely resemble the others.
LEAST_HELD_OUT = 0.02
LITTLE_HELD_OUT = ": too little to judge the whole text; hold out more, such as the split hash:0.2"
MASKED_ALONE = 2048  # positions of the pseudo-perplexity
START_SECONDS = 3.0  # of any step
REPORT_SECONDS = 15.0  # of a model in the report


def print_choice(name: str, text: TextFacts, choice: Choice, budget: Budget, kinds: Sequence[Kind]) -> None:
    """Print the text, what is chosen for it and why, and how long each step takes."""
    letters = ", ".join(f"{script} {share:.0%}" for script, share in [*text.scripts.items()][:3] if share >= 0.005)
    per_token = bytes_per_token(choice.vocab_size)
    size = choice.size
    characters = rounded(text.characters, "characters")
    rows = [
        ("text", f"{name}: {quantity(text.bytes, 'B')}, {characters} ({letters or 'no letters'})"),
        ("", f"train: {quantity(text.train_bytes, 'B')} in {_documents(text, TRAIN)}{_lengths(text)}"),
        (
            "",
            f"validation: {quantity(text.validation_bytes, 'B')} in {_documents(text, VALIDATION)} ({text.split_rule})"
            + (LITTLE_HELD_OUT if text.validation_bytes < LEAST_HELD_OUT * text.bytes else ""),
        ),
        (
            "vocabulary",
            f"{choice.vocab_size:,} entries, for a training that reads {quantity(choice.read_bytes, 'B')} of text",
        ),
        (
            "context",
            f"{choice.context_length:,} tokens, about {quantity(choice.context_length * per_token, 'B')}",
        ),
    ]
    for kind in kinds:
        shape = f"{size.layers} layers of width {size.width}, {rounded(choice.parameters, 'parameters')}"
        rows.append((kind, f"{recipe_name(kind, choice)}: {shape}"))
    lengths = {kind: _length(text, choice, budget, kind) for kind in kinds}
    alike = len(set(lengths.values())) == 1
    rows += [("training" if alike else f"{kind} training", lengths[kind]) for kind in (kinds[:1] if alike else kinds)]
    if choice.setting.batch_factor > 1:
        rows.append(
            ("batches", f"{choice.setting.batch_factor} times the recipe's, because smaller ones leave the GPU idle")
        )
    seconds = seconds_of_steps(text, choice, budget, kinds)
    times = ", ".join(f"{step} {duration(each)}" for step, each in seconds.items())
    rows.append(("time", f"about {duration(sum(seconds.values()))}: {times}"))
    table((), rows, text=True, to=messages)


def _documents(text: TextFacts, split: str) -> str:
    return count_text(text.documents.get(split, 0), "document")


def _lengths(text: TextFacts) -> str:
    """Return the typical length of several documents as text."""
    several = sum(text.documents.values()) > 2
    return f", half of the text in documents of {quantity(text.typical_bytes, 'B')} or more" if several else ""


def _length(text: TextFacts, choice: Choice, budget: Budget, kind: Kind) -> str:
    """Return the tokens of a training as text, and what limits them."""
    tokens = tokens_for(choice, text, budget, kind)
    if budget.tokens:
        limit = "as asked"
    elif tokens < budget.tokens_of(choice.setting, choice.vocab_size):
        limit = f"{EPOCHS[kind]} epochs of the text, because more gain little"
    elif budget.flops:
        limit = f"{quantity(budget.flops, 'FLOP')}, as asked"
    else:
        limit = f"as many as this machine trains in {duration(budget.seconds)}"
    return f"about {rounded(tokens, 'tokens')}: {limit}"


def seconds_of_steps(text: TextFacts, choice: Choice, budget: Budget, kinds: Sequence[Kind]) -> dict[str, float]:
    """Return about how many seconds each step takes on this machine."""
    rate = budget.speed(choice.setting)
    cores, per_token = os.cpu_count() or 1, 2 * choice.parameters / rate
    seconds = {
        "vocabulary": START_SECONDS + text.train_bytes / COUNTED_PER_SECOND / cores,
        "dataset": START_SECONDS + text.bytes / ENCODED_PER_SECOND / cores,
    }
    for kind in kinds:
        seconds[kind] = START_SECONDS + 3 * per_token * tokens_for(choice, text, budget, kind)
    scored = len(kinds) * text.validation_bytes / bytes_per_token(choice.vocab_size)
    alone = MASKED_ALONE * choice.context_length * ("bert" in kinds)
    compressed = text.bytes / COMPRESSED_PER_SECOND * ("gpt" in kinds and text.bytes <= MOST_COMPRESSED_BYTES)
    seconds["evaluation"] = len(kinds) * START_SECONDS + per_token * (scored + alone) + compressed
    return seconds | {"report": REPORT_SECONDS * len(kinds)}


def print_results(subjects: Sequence[Subject], evaluations: Mapping[str, Evaluation]) -> None:
    """Print the main numbers of the models, and what they wrote."""
    table(
        ("", *(subject.name for subject in subjects)),
        [
            ("parameters", *(f"{subject.parameters:,}" for subject in subjects)),
            ("tokens seen", *(f"{subject.tokens_seen:,}" for subject in subjects)),
            ("tokens/s", *(f"{subject.speed:,.0f}" for subject in subjects)),
        ],
    )
    if "gpt" in evaluations:
        answer("")
        _print_next_token(evaluations["gpt"].validation)
        bits = with_interval("bits_per_byte", evaluations["gpt"].validation)
        answer(f"\nbits per byte of the validation text, with its 95 % interval: {bits}")
    if "bert" in evaluations:
        answer("")
        _print_masked(evaluations["bert"].validation)
    for subject in subjects:
        for sample in subject.samples[:1]:
            results.print(f"\n[bold]{subject.name}[/bold]: {sample.title}")
            results.print(safe(sample.before), style="dim", markup=False, end="")
            results.print(safe(sample.text), markup=False)
    answer("")
    for subject in subjects:
        answer(f"{verdict(subject)} {trained_on(subject)}")


def _print_next_token(gpt: SplitEvaluation) -> None:
    per_byte = gpt.tokens / gpt.bytes
    rows = [("gpt", gpt.cross_entropy_bits, gpt.bits_per_byte)]
    for name, bits in (("bigram", gpt.bigram_cross_entropy_bits), ("unigram", gpt.unigram_cross_entropy_bits)):
        rows.append((name, bits, bits * per_byte))
    cells = [
        (name, f"{bits:.3f}", perplexity_text(bits * NATS_PER_BIT, ",.1f"), f"{bpb:.3f}") for name, bits, bpb in rows
    ]
    for name, size in (gpt.compressors.sizes if gpt.compressors else {}).items():
        cells.append((name, "-", "-", f"{size.alone:.3f}"))
        cells.append((f"{name}, given train", "-", "-", f"{size.given_train:.3f}"))
    table(("next token", "cross-entropy (bits)", "perplexity", "bits per byte"), cells)


def _print_masked(bert: SplitEvaluation) -> None:
    rows = [
        ("bert", bert.cross_entropy_bits, bert.accuracy, "pseudo_perplexity"),
        ("unigram", bert.unigram_cross_entropy_bits, bert.unigram_accuracy, "unigram_pseudo_perplexity"),
    ]
    cells = [(name, f"{bits:.3f}", f"{right:.1%}", value_of(key, bert)) for name, bits, right, key in rows]
    table(("masked tokens", "cross-entropy (bits)", "accuracy", "pseudo-perplexity"), cells)
