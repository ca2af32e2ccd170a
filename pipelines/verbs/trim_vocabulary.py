"""Text: remove the tokens of a vocabulary that a text never uses, or uses least.

Examples:
    bytelm trim-vocabulary tokenizer my-text/ --unused --out small
    bytelm trim-vocabulary runs/gpt my-text/ --entries 4096 --out runs/small
"""

from pathlib import Path
from typing import Unpack

from pipelines.cli.arguments import AsJson, TokenizerOrRun, TokenizerPattern
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, SplitRule, say_left_out
from pipelines.cli.verbs import verb
from pipelines.vocabulary_change import VocabularyChange
from tokenizer import Tokenizer

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("source corpus split", ""),
    "Reading files": READING,
    "Vocabulary": ("entries unused", "pattern"),
    "Training": ("steps", ""),
    "Memory and time": ("threads", ""),
    "Output": ("out overwrite json", ""),
}


@verb
def trim_vocabulary(
    source: TokenizerOrRun,
    corpus: CorpusNames,
    *,
    out: Path,
    entries: int | None = None,
    unused: bool = False,
    pattern: TokenizerPattern = None,
    steps: int | None = None,
    split: SplitRule = None,
    threads: int | None = None,
    overwrite: bool = False,
    as_json: AsJson = False,
    **reading: Unpack[ReadingOptions],
) -> Tokenizer:
    """Remove the tokens that the training split of a corpus does not need; return the tokenizer.

    Special tokens, bytes and single characters stay, and so do the parts of tokens that stay. Vocabularies of words or
    of characters keep only those that occur. A text is encoded as before if all of its tokens stay. Ids are renumbered
    in their old order.

    A run becomes a run with the new vocabulary and the rows of its tokens.

    Args:
        out: Folder of the new tokenizer or run.
        entries: Number of entries to keep, special tokens included. The least used ones are removed. In BPE, a token
            is removed only if it is not part of another one, and its count is then added to its parts.
        unused: Remove the tokens that the text does not use, instead of `entries`.
        steps: Optimizer steps that train the changed decoder on the training split, with the settings and the batch
            size of its run. The old model trains for as many steps for comparison, and is not saved. For runs only.
        threads: Threads that encode; all cores by default.
        overwrite: Replace an existing tokenizer.
        as_json: Print the summary as JSON, and nothing else.
    """
    if (entries is None) != unused:
        raise ValueError("give either `entries` or `unused`")
    changing = VocabularyChange(source, out, pattern, overwrite, steps)
    if entries is not None and entries >= changing.old.vocab_size:
        raise ValueError(f"`entries` is {entries:,}, but the vocabulary has {changing.old.vocab_size:,}: give fewer")
    from corpora import open_corpus

    text = open_corpus(corpus, split=split, **reading)
    trim = changing.old.trim
    made = changing.apply(
        lambda batches, progress: trim(batches, entries, threads=threads, progress=progress), text, as_json
    )
    say_left_out(text.dropped, text.skipped_files)
    return made
