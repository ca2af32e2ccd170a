"""Training: give a run another vocabulary.

Examples:
    bytelm carry-over runs/gpt my-text/ --tokenizer other --out runs/carried
    bytelm carry-over my/gpt web.jsonl --tokenizer cl100k.tiktoken --out my/big
"""

from pathlib import Path
from typing import Unpack

from pipelines.cli.arguments import AsJson, RunFolder, TokenizerPath, TokenizerPattern
from pipelines.cli.corpus_arguments import READING, CorpusNames, ReadingOptions, SplitRule, say_left_out
from pipelines.cli.named_tokenizers import load_tokenizer
from pipelines.cli.verbs import verb
from pipelines.run.folder import Run
from pipelines.vocabulary_change import Batches, VocabularyChange
from tokenizer import Tokenizer

# Options by subject: in --help, and only in --help-all.
HELP = {
    "Text": ("run corpus split", ""),
    "Reading files": READING,
    "Vocabulary": ("tokenizer", "pattern"),
    "Training": ("steps", ""),
    "Output": ("out json", ""),
}


@verb
def carry_over(
    run: RunFolder,
    corpus: CorpusNames,
    *,
    tokenizer: TokenizerPath,
    out: Path,
    steps: int | None = None,
    pattern: TokenizerPattern = None,
    split: SplitRule = None,
    as_json: AsJson = False,
    **reading: Unpack[ReadingOptions],
) -> Tokenizer:
    """Write a copy of a run with another vocabulary; return the tokenizer.

    The rows of tokens that both vocabularies have are copied. The row of any other token is half the mean of all rows
    plus half the mean of the rows of its pieces. For a decoder, one of the two means alone is used if its loss on
    training text is significantly lower. To train the run further, give it to pretrain as `init_from`.

    Args:
        out: Folder of the new run.
        steps: Optimizer steps that train the changed decoder on the training split, with the settings and the batch
            size of its run. The old model trains for as many steps for comparison, and is not saved.
        as_json: Print the summary as JSON, and nothing else.
    """
    changing, new = (
        VocabularyChange(Run.of(run).folder, out, None, overwrite=False, steps=steps),
        load_tokenizer(tokenizer, pattern),
    )
    from corpora import open_corpus

    text = open_corpus(corpus, split=split, **reading)
    made = changing.apply(lambda batches, _: _after(batches, new), text, as_json)
    say_left_out(text.dropped, text.skipped_files)
    return made


def _after(batches: Batches, tok: Tokenizer) -> Tokenizer:
    """Read the text, of which `VocabularyChange` keeps a sample, and return the tokenizer."""
    for _ in batches:
        pass
    return tok
