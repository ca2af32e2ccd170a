"""Reference trainers and the vocabularies that they learn."""

import rustbpe
import tokenizers
from tokenizers import Regex, decoders, models, pre_tokenizers, trainers

from tokenizer.byte_level import unspell


def merges_of_tokenizers(texts, vocab_size, pattern, special_tokens=(), **options):
    """Return a tokenizers.Tokenizer trained on the texts."""
    peer = tokenizers.Tokenizer(models.BPE())
    peer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.Split(Regex(pattern), "isolated"), pre_tokenizers.ByteLevel(False, use_regex=False)]
    )
    peer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
        **options,
    )
    peer.train_from_iterator(texts, trainer)
    return peer


def vocabulary_of(peer):
    """Return the tokens of a tokenizers.Tokenizer as bytes, by id."""
    special = set(peer.get_added_tokens_decoder())
    by_id = sorted(peer.get_vocab().items(), key=lambda item: item[1])
    return [spelling.encode() if i in special else unspell(spelling) for spelling, i in by_id]


def ranks_of_rustbpe(texts, vocab_size, pattern):
    """Return the tokens that rustbpe learns from the texts as bytes, by id."""
    peer = rustbpe.Tokenizer()
    peer.train_from_iterator(texts, vocab_size, pattern=pattern)
    return [bytes(token) for token, _ in sorted(peer.get_mergeable_ranks(), key=lambda item: item[1])]


def vocabulary(tok):
    """Return the tokens of our tokenizer as bytes, by id."""
    return [tok.token_bytes(i) for i in range(tok.vocab_size)]
