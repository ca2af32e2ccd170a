"""Measurement: show how well a run predicts a text, token by token, or rank continuations.

Examples:
    bytelm score runs/gpt "The quick brown fox"
    bytelm score runs/gpt "The sky is" --choices " blue" " green"
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import tyro

from pipelines.cli.arguments import AsJson, Checkpoint, Device, Dtype, RunFolder
from pipelines.cli.display import say_on_stderr, write
from pipelines.cli.process import PASSIVE_THREADS
from pipelines.cli.text_input import argument_text, file_text, standard_input_text
from pipelines.cli.verbs import verb
from pipelines.run.folder import opened
from pipelines.scoring.options import Masking, check_options

if TYPE_CHECKING:
    from pipelines.run.loaded_run import LoadedRun
    from pipelines.scoring.choices import ChoiceScores
    from pipelines.scoring.minimal_pairs import PairScores
    from pipelines.scoring.questions import QuestionScores
    from pipelines.scoring.texts import TextScore

ENVIRONMENT = PASSIVE_THREADS

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("run text file choices target", ""),
    "Files of examples": ("pairs questions shots", "columns"),
    "Prediction": ("stride", "rolling start masking leading_blank"),
    "Model": ("checkpoint device dtype", ""),
    "Output": ("by top limit parquet json", ""),
}


@verb
def score(
    run: RunFolder,
    text: Annotated[str | None, tyro.conf.Positional, tyro.conf.arg(metavar="[TEXT]")] = None,
    *,
    file: Path | None = None,
    choices: Annotated[Sequence[str] | None, tyro.conf.arg(metavar="C [C ...]")] = None,
    target: Annotated[str | None, tyro.conf.arg(metavar="T")] = None,
    pairs: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")] = (),
    questions: Annotated[tuple[Path, ...], tyro.conf.arg(metavar="FILE ...")] = (),
    shots: int = 0,
    columns: Annotated[tuple[str, ...], tyro.conf.arg(metavar="NAME ...")] = (),
    by: Literal["token", "word"] = "token",
    stride: int | None = None,
    rolling: bool = False,
    start: bool = True,
    masking: Literal["auto", "token", "word"] = "auto",
    leading_blank: bool = False,
    top: int = 5,
    limit: int = 1000,
    parquet: Path | None = None,
    checkpoint: Checkpoint = "auto",
    device: Device = "auto",
    dtype: Dtype = "float32",
    as_json: AsJson = False,
) -> "TextScore | ChoiceScores | PairScores | QuestionScores":
    """Print how well a run predicts a text: surprisal, entropy and rank of each token, and the text's log-probability.

    A decoder predicts each token from the tokens before it, an encoder from all others (pseudo-log-likelihood). An
    encoder-decoder predicts a target from the text. Special tokens spelled in the text are scored as ordinary text.

    Returns the scores as arrays: a TextScore, a ChoiceScores for choices, a PairScores for minimal pairs, or a
    QuestionScores for questions.

    Args:
        text: Text to score, or source of an encoder-decoder; - reads standard input.
        file: UTF-8 file with the text; - reads standard input.
        choices: Continuations of the text to rank by log-probability, as lm-eval ranks multiple choice.
        target: For an encoder-decoder: target to score, given the text as source.
        pairs: Files of minimal pairs in the format of BLiMP or EWoK: the accuracy by paradigm.
        questions: Files of questions with choices, as for the task choices: the accuracy of a decoder, as in lm-eval.
        shots: Number of other questions, with their answers, before each question.
        columns: Fields of a question, of its choices and of its answer; default: the usual names.
        by: Unit to show. The probability of a word includes that the word ends (Pimentel & Meister 2024), except for an
            encoder.
        stride: Tokens between the starts of two windows, for a text longer than the context; half a window by default.
        rolling: For a decoder: windows as in lm-eval's loglikelihood_rolling. They do not overlap, except that the last
            one is moved back to a full context.
        start: For a decoder: begin with the start token from training. Without it, the first token is not scored.
        masking: For an encoder: mask each token alone, or with the later tokens of its word (Kauf & Ivanova 2023).
            auto: token for a text, word for minimal pairs.
        leading_blank: Score the texts of minimal pairs with a blank before them, as lm-eval does.
        top: Number of likeliest tokens to show at each position.
        limit: Maximum number of tokens or words to print; 0 prints all.
        parquet: Parquet file to write, with one row per token, word, choice, pair or question.
        as_json: Print all numbers as one JSON object.
    """
    _check(choices, target, by, stride, rolling, masking, top, limit)
    if parquet and parquet.is_dir():
        raise ValueError(f"`parquet='{parquet}'` is a folder: name a file")
    others = {"a text": text, "`file`": file, "`choices`": choices, "`target`": target}
    _check_files(pairs, questions, {name: value is not None for name, value in others.items()})
    _check_file_options(pairs, questions, shots, columns, leading_blank)
    content, chosen, wanted = ("", [], None) if pairs or questions else _texts(text, file, choices, target)
    if as_json:
        say_on_stderr()
    model = opened(run, checkpoint, device, dtype).recipe.model
    check_options(
        model,
        target=target,
        stride=stride,
        rolling=rolling,
        start=start,
        masking=masking,
        words=by == "word",
        choices=choices is not None,
        pairs=bool(pairs),
        questions=bool(questions),
    )
    from pipelines.run.loaded_run import load_run
    from pipelines.scoring.choices import rank_choices
    from pipelines.scoring.minimal_pairs import score_pairs
    from pipelines.scoring.questions import score_questions
    from pipelines.scoring.texts import score_text

    loaded = load_run(run, checkpoint=checkpoint, device=device, dtype=dtype)
    if pairs:
        how: Masking = "word" if masking == "auto" else masking
        judged = score_pairs(loaded, pairs, start=start, leading_blank=leading_blank, masking=how)
        _show_files(loaded, judged, parquet, as_json)
        return judged
    if questions:
        answered = score_questions(loaded, questions, shots=shots, start=start, columns=columns)
        _show_files(loaded, answered, parquet, as_json)
        return answered
    if chosen:
        ranked = rank_choices(loaded, content, chosen, start=start, top=top)
        _show_choices(ranked, parquet, as_json)
        return ranked
    scored = score_text(
        loaded,
        content,
        target=wanted,
        stride=stride,
        rolling=rolling,
        start=start,
        masking="token" if masking == "auto" else masking,
        top=top,
        words=by == "word",
    )
    _show_text(loaded, scored, limit, parquet, as_json)
    return scored


def _check(
    choices: Sequence[str] | None,
    target: str | None,
    by: str,
    stride: int | None,
    rolling: bool,
    masking: str,
    top: int,
    limit: int,
) -> None:
    """Raise ValueError for options that are wrong for every run."""
    if choices is not None:
        others = {"`target`": target is not None, "`by='word'`": by != "token", "`stride`": stride is not None}
        others |= {"`masking='word'`": masking == "word", "`rolling`": rolling}
        if unused := [option for option, given in others.items() if given]:
            raise ValueError(f"`choices` cannot be combined with {unused[0]}: leave one of them out")
    for option, value in (("`top`", top), ("`limit`", limit)):
        if value < 0:
            raise ValueError(f"{option} is {value}, but must not be negative")


def _check_files(pairs: Sequence[Path], questions: Sequence[Path], others: Mapping[str, bool]) -> None:
    """Raise ValueError for files with another option that gives a text. `others`: whether each is given, by name."""
    given = [name for name, files in (("`pairs`", pairs), ("`questions`", questions)) if files]
    if given and (unfit := [*given[1:], *(name for name, is_given in others.items() if is_given)]):
        raise ValueError(f"{given[0]} reads texts from files: leave {unfit[0]} out")


def _check_file_options(
    pairs: Sequence[Path], questions: Sequence[Path], shots: int, columns: Sequence[str], leading_blank: bool
) -> None:
    """Raise ValueError for options of files that are not given."""
    if leading_blank and not pairs:
        raise ValueError("`leading_blank` is for the texts of `pairs`: leave it out")
    if (shots or columns) and not questions:
        raise ValueError(f"`{'shots' if shots else 'columns'}` is for `questions`: name a file with `questions`")


def _texts(
    text: str | None, file: Path | None, choices: Sequence[str] | None, target: str | None
) -> tuple[str, list[str], str | None]:
    """Return the text, the choices and the target. Raises ValueError if one is missing, empty or not UTF-8."""
    if (text is None) == (file is None):
        raise ValueError("give either a text or `file`")
    if choices is not None and not choices:
        raise ValueError(f"`choices` names no choice to rank after {file or 'the text'}: give at least one")
    if file is not None:
        content = file_text(file)
    else:
        assert text is not None
        content = standard_input_text("standard input") if text == "-" else argument_text(text, "the text")
    if not content and not choices:
        raise ValueError("the text is empty: give at least one character")
    wanted = None if target is None else argument_text(target, "`target`")
    return content, [argument_text(choice, "`choices`") for choice in choices or ()], wanted


def _show_text(run: "LoadedRun", scored: "TextScore", limit: int, parquet: Path | None, as_json: bool) -> None:
    from pipelines.scoring.arrow_tables import rows_of, token_table, totals_of, word_table, write_parquet
    from pipelines.scoring.display import show_text

    words = None if scored.words is None else word_table(scored)
    if parquet:
        write_parquet(parquet, token_table(scored, run.tokenizer) if words is None else words, totals_of(scored))
    if not as_json:
        show_text(scored, run.tokenizer, limit)
        return
    content = {"totals": totals_of(scored), "tokens": rows_of(token_table(scored, run.tokenizer))}
    write(json.dumps(content if words is None else content | {"words": rows_of(words)}))


def _show_files(run: "LoadedRun", scores: "PairScores | QuestionScores", parquet: Path | None, as_json: bool) -> None:
    from pipelines.scoring.accuracy_tables import show
    from pipelines.scoring.arrow_tables import row_table, write_parquet

    content = scores.to_json()
    if parquet:
        write_parquet(parquet, row_table(scores), {name: value for name, value in content.items() if name != "rows"})
    if as_json:
        write(json.dumps(content))
    else:
        show(scores, run.tokenizer)


def _show_choices(ranked: "ChoiceScores", parquet: Path | None, as_json: bool) -> None:
    from pipelines.scoring.arrow_tables import choice_table, rows_of, write_parquet
    from pipelines.scoring.display import show_choices

    rows = choice_table(ranked)
    if parquet:
        write_parquet(parquet, rows, {})
    if as_json:
        write(json.dumps({"choices": rows_of(rows)}))
    else:
        show_choices(ranked)
