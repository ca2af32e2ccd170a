"""Text: add tokens to a vocabulary, learned from more text; old ids stay the same.

Examples:
    bytelm grow-vocabulary tokenizer more-text/ --add 1000 --out grown
    bytelm grow-vocabulary runs/gpt code/ --entries 12k --out runs/grown
"""

from pathlib import Path
from typing import Any, Unpack

from pipelines.cli.arguments import AsJson, TokenizerOrRun, TokenizerPattern
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, SplitRule, say_left_out
from pipelines.cli.verbs import verb
from pipelines.tokenizer_options import Superwords
from pipelines.vocabulary_change import VocabularyChange
from tokenizer import Tokenizer

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("source corpus split", ""),
    "Reading files": READING,
    "Vocabulary": ("add entries superwords", "superword_words min_frequency max_token_length pattern"),
    "Training": ("steps", ""),
    "Memory and time": ("threads", ""),
    "Output": ("out overwrite json", ""),
}


@verb
def grow_vocabulary(
    source: TokenizerOrRun,
    corpus: CorpusNames,
    *,
    out: Path,
    add: int | None = None,
    entries: int | None = None,
    superwords: bool = False,
    superword_words: int = Superwords.words,
    min_frequency: int = 2,
    max_token_length: int | None = None,
    pattern: TokenizerPattern = None,
    steps: int | None = None,
    split: SplitRule = None,
    threads: int | None = None,
    overwrite: bool = False,
    as_json: AsJson = False,
    **reading: Unpack[ReadingOptions],
) -> Tokenizer:
    """Train BPE over bytes, characters or integers further on the training split of a corpus; return the tokenizer.

    Old ids and merges stay the same. A text is encoded as before, except that neighbouring tokens can be joined.

    A run becomes a run with the new vocabulary. The row of a new token is half the mean of all rows plus half the mean
    of the rows of its pieces. For a decoder, one of the two means alone is used if its loss on training text is
    significantly lower. To train the run further, give it to pretrain as `init_from`.

    Args:
        out: Folder of the new tokenizer or run.
        add: Number of entries to add.
        entries: Number of entries of the new vocabulary, special tokens included, instead of `add`.
        superwords: Let new tokens hold several words (SuperBPE). Texts are then cut only at numbers before merging, so
            they can be encoded differently than before.
        superword_words: Maximum number of words in a token with `superwords`.
        min_frequency: Minimum count of a pair to merge.
        max_token_length: Maximum length of a new token in bytes, or in integers.
        steps: Optimizer steps that train the changed decoder on the training split, with the settings and the batch
            size of its run. The old model trains for as many steps for comparison, and is not saved. For runs only.
        threads: Threads that count; all cores by default.
        overwrite: Replace an existing tokenizer.
        as_json: Print the summary as JSON, and nothing else.
    """
    if (add is None) == (entries is None):
        raise ValueError("give either `add` or `entries`")
    if add is not None and add < 1:
        raise ValueError(f"`add` is {add}, but must be at least 1")
    from tokenizer.training.growing import Growth

    changing = VocabularyChange(source, out, pattern, overwrite, steps)
    wanted = changing.old.vocab_size + (add or 0) if entries is None else entries
    words = superword_words if superwords else None
    options: Any = {"min_frequency": min_frequency, "max_token_length": max_token_length, "superwords": words}
    options["threads"] = threads
    Growth(entries=wanted, **options).check(changing.old.vocabulary)
    from corpora import open_corpus

    text = open_corpus(corpus, split=split, **reading)
    grow = changing.old.grow
    made = changing.apply(lambda batches, progress: grow(batches, wanted, progress=progress, **options), text, as_json)
    say_left_out(text.dropped, text.skipped_files)
    return made
