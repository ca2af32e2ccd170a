"""The model card of an export: the model, its data, tokenizer and numbers, and how to load it."""

from pathlib import Path

from corpora.object_store import AnyPath
from pipelines import own_version
from pipelines.cli.display import count_text
from pipelines.cli.escapes import safe
from pipelines.evaluation.measurements.trained_text import TrainedText
from pipelines.evaluation.numbers import rows_of
from pipelines.evaluation.results import Evaluation
from pipelines.exchange.possible_exports import possible_exports
from pipelines.files import parse_json
from pipelines.run.folder import Run
from pipelines.run.retention import find_checkpoint, readable_state
from pipelines.run.text_ids import text_ids
from pipelines.tasks.task import Task
from tokenizer import Tokenizer
from tokenizer.kinds.registry import kind_named

TASKS = {"decoder": "text-generation", "encoder": "fill-mask", "encoder-decoder": "text2text-generation"}
HEADS = {
    "sequence": "text-classification",
    "token": "token-classification",
    "span": "question-answering",
    "choice": "multiple-choice",
}
WITHOUT_MASKS = "the exported model predicts next tokens only"
OBJECTIVES = {
    "next-token": "to predict the next token",
    "masked-token": "to predict masked tokens",
    "span-corruption": "to restore spans removed from a text",
    "denoising": "to restore a corrupted text",
    "sequence-pairs": "to write a target for a source",
}
SCORING = (
    "`nats` is the log-probability that `bytelm score` gives for a text that fits into the context and has no special "
    "token spelled in it."
)


def model_card(
    run: Run,
    tok: Tokenizer,
    parameters: int,
    library: str,
    loading: str,
    scoring: str = "",
    checkpoint: str = "auto",
    adds_start: bool = False,
) -> str:
    """Return the card of `run` in Markdown, with front matter for the hub.

    `loading` is Python code. `scoring` is code that continues it with the log-probability of a text. The card names the
    tokens and the evaluation of `checkpoint`, the exported one (see `find_checkpoint`). `adds_start`:
    whether the exported tokenizer of a decoder adds the start token.
    """
    model, train = run.recipe.model, run.recipe.train
    heads = count_text(model.heads, "head") if model.attention_only else f"mixer {model.mixer_names}"
    shape = f"{count_text(model.layers, 'layer')} of width {model.width}, {heads}, context {model.context_length:,}"
    imported = run.facts.get("imported_from")
    task, head = run.recipe.task, run.recipe.head
    learned = OBJECTIVES[run.recipe.objective] if task is None else f"for the task {task.name}"
    origin = f"imported from {imported}" if imported else f"trained {learned}"
    if "init_from" in run.facts:
        origin += f" from the weights of {Path(run.facts['init_from']).name}"
    folder = find_checkpoint(run.folder, checkpoint)
    tokens = readable_state(folder).get("tokens", 0)
    seen = f"{tokens:,} tokens" + (f", about {tokens * train.words // train.tokens:,} words" if train.words else "")
    use = HEADS[head.kind] if head else TASKS[model.architecture]
    parts = [
        f"---\nlibrary_name: {library}\npipeline_tag: {use}\ntags:\n- bytelm\n---",
        f"# {run.name}",
        f"A transformer ({model.architecture}) of {parameters:,} parameters, {origin} by bytelm {own_version()}: "
        f"{shape}, {model.positions} positions.",
        *([_task(task)] if task else []),
        f"## How to {'use' if head else 'load'} it\n\n```python\n{loading}\n```",
        *([f"## How to score a text\n\n{SCORING}\n\n```python\n{scoring}\n```"] if scoring else []),
        f"## Data\n\n{_data(run)}" + (f" The model saw {seen}." if tokens else ""),
        f"## Tokenizer\n\n{kind_named(tok.kind).title} with {tok.vocab_size:,} entries; pattern `{tok.pattern}`; "
        f"fingerprint `{tok.fingerprint}`.{_start(run, tok, adds_start)}",
    ]
    if not imported:
        parts.append(
            f"## Training\n\n{train.optimizer}, peak learning rate {train.lr:g}, {train.schedule} schedule, batches of "
            f"{train.batch_tokens:,} tokens, {train.dtype} activations, seed {train.seed}."
        )
        if train.masked_rows:
            parts[-1] += f" {100 * train.masked_rows:g} % of the blocks trained masked tokens, but {WITHOUT_MASKS}."
    if head is None:
        lines = possible_exports(model, tok, run.facts)
        parts.append("## Formats\n\n" + "\n".join(f"- {line}" for line in lines))
    parts.append(f"## Evaluation\n\n{_evaluation(run, folder.name)}")
    return safe("\n\n".join(parts)) + "\n"


def _task(task: Task) -> str:
    """Return a section about a task: what it reads and the labels that it predicts."""
    columns = ", ".join(f"`{name}`" for name in task.columns or task.usual[0])
    parts = [
        f"## Task\n\n{(task.__doc__ or '').split(chr(10))[0]} It reads the columns {columns}; the last is learned."
    ]
    if labels := getattr(task, "labels", ()):
        parts.append(f"Labels: {', '.join(f'`{label}`' for label in labels)}.")
    return "\n\n".join(parts)


def _start(run: Run, tok: Tokenizer, added: bool) -> str:
    """Return a sentence about the ids that a decoder reads before a text; `added`: the exported tokenizer adds them."""
    is_decoder = run.recipe.model.architecture == "decoder" and run.recipe.head is None
    before = text_ids(run, tok).before if is_decoder else ()
    named = " and ".join(f"`{tok.decode([i])}` (id {i})" for i in before)
    adds = "adds it" if added else "does not add it"
    return f" The model reads {named} before a text; the tokenizer {adds}." if named else ""


def _data(run: Run) -> str:
    """Return sentences about the training data.

    They name each corpus, its share and the sizes of its splits; for a task, its files. If the dataset is gone or
    damaged, they give its fingerprint.
    """
    if run.recipe.task is not None and (files := run.facts["data"]):
        held_out = run.facts.get("test") or []
        tested = ", ".join(f"`{Path(name).name}`" for name in held_out) or f"{run.facts.get('held_out', 0):.0%} of it"
        return f"Trained on {', '.join(f'`{Path(name).name}`' for name in files)}, tested on {tested}."
    try:
        corpora, total = [_corpus(folder) for folder in run.sources], sum(run.sources.values())
        if len(corpora) < 2:  # none: of an imported model
            return f"{corpora[0]}."
        shares = [weight / total for weight in run.sources.values()]
        parts = [f"{share:.4g} of the tokens from {corpus}" for share, corpus in zip(shares, corpora, strict=True)]
        return f"A mixture: {'; '.join(parts)}."
    except (ValueError, LookupError, TypeError, AttributeError, OSError):
        return f"A dataset with the fingerprint `{run.facts['dataset_fingerprint'] or 'unknown'}`."


def _corpus(folder: AnyPath) -> str:
    """Return the corpus of a dataset and the sizes of its splits."""
    path = folder / "dataset.json"
    info = parse_json(path.read_bytes(), str(path), "build the dataset again")
    corpus = info["corpus"]
    splits = ", ".join(f"{name} {split['bytes']:,} bytes" for name, split in info["splits"].items())
    return f"{corpus['name']}, split by {corpus['split_rule']}: {splits}"


def _evaluation(run: Run, checkpoint: str) -> str:
    try:
        evaluation = Evaluation.read(run.folder)
    except ValueError:  # damaged: the export does not need it
        evaluation = None
    if evaluation is None:
        return "Not evaluated yet: `bytelm evaluate` measures the model."
    if any(one.measured.checkpoint != checkpoint for one in evaluation.splits.values()):
        return f"Not evaluated yet: `bytelm evaluate --checkpoint {int(checkpoint[5:])}` measures this checkpoint."
    own = run.facts["dataset_fingerprint"]
    main = evaluation.main(own)
    splits = {one.text_name(own): one for one in (*([main] if main else []), *evaluation.splits.values())}
    head = f"| | {' | '.join(splits)} |\n|---|{'---:|' * len(splits)}\n"
    table = head + "\n".join(f"| {name} | {' | '.join(cells)} |" for name, cells in rows_of(list(splits.values())))
    trained = ((name, split.find(TrainedText)) for name, split in splits.items())
    seen = [(name, text.not_held_out(run.name)) for name, text in trained if text]
    return "\n\n".join([table, *(f"**{name}**: {sentence}" for name, sentence in seen if sentence)])
