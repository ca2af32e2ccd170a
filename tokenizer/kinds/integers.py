"""BPE over integers, the kind of vocabularies for music, molecules, opcodes and bytes that are no text."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from tokenizer.kinds.kind import Kind, changed
from tokenizer.splitting.integers import FIRST, MOST, Integers
from tokenizer.vocabulary import LONGEST_TOKEN

if TYPE_CHECKING:
    from typing import Any

    from tokenizer.integer_vocabulary import IntegerVocabulary
    from tokenizer.splitting.splitter import Splitter
    from tokenizer.training.counting import PretokenCounts
    from tokenizer.training.train import Options
    from tokenizer.vocabulary import Vocabulary

DECODER = ({"type": "Fuse"},)


class IntegerPairs(Kind):
    """BPE over integers. A sequence is a document, in which integers are characters (`splitting.integers`)."""

    name, title = "integers", "BPE over integers"
    entries = "tokens"
    is_lossless = merges = merges_characters = True
    kernels = "word pieces"
    patterns, default_pattern, exact_pattern = ("integers",), "integers", "integers"
    needed_splitter = "the pattern integers"
    no_growth = ""
    options = ("base", "min_frequency", "max_token_length")
    pretokens = "sequences"

    def splitter_of(self, spelling: str) -> Splitter | None:
        return Integers(None) if spelling == self.default_pattern else None

    def accepts(self, splitter: Splitter) -> bool:
        return isinstance(splitter, Integers)

    def check(self, options: Options) -> None:
        if options.base is not None and options.base > MOST:
            raise ValueError(f"base is {options.base:,}, but must be at most {MOST:,}")

    def least_entries(self, options: Options) -> tuple[str, int]:
        return ("the integers", options.base) if options.base is not None else ("an integer", 1)

    def train(self, counts: PretokenCounts, options: Options) -> IntegerVocabulary:
        """Return the vocabulary: the integers, merged tokens, special tokens.

        Among pairs of equal count, the one with the smallest left id, then right id is merged first, as in
        `tokenizers`. A merge that makes a present token keeps its id.
        """
        from tokenizer.integer_vocabulary import IntegerVocabulary
        from tokenizer.splitting.integers import WIDTH
        from tokenizer.training.merging import check_memory
        from tokenizer.training.wordpiece_training import PROGRESS_STEP, MergeLoop, lay_out_symbols

        check_memory(counts, options.memory, characters=True)
        integers = Integers(options.base).check(counts.data)
        base = int(integers.max(initial=0)) + 1 if options.base is None else options.base
        wanted = options.vocab_size - base - len(options.special_tokens)
        if wanted < 0:
            raise ValueError(
                f"vocab_size must be at least {options.vocab_size - wanted}: the integers below {base} and "
                f"{len(options.special_tokens)} special tokens"
            )
        spare = None if options.memory is None else options.memory - counts.data.nbytes - integers.nbytes
        laid_out = lay_out_symbols(integers.view("int32"), counts.offsets // WIDTH, counts.counts, spare)
        loop = MergeLoop(laid_out, options.min_count, spare)
        tokens = [chr(FIRST + i) for i in range(base)]
        ids = {token: i for i, token in enumerate(tokens)}
        longest = min(LONGEST_TOKEN, options.max_token_length or LONGEST_TOKEN)
        pairs: list[tuple[str, str]] = []
        new = 0
        while loop.made < wanted and (pair := loop.find(new)):
            left, right = tokens[pair[0]], tokens[pair[1]]
            if len(left) + len(right) > longest:
                loop.refuse()
                continue
            pairs.append((left, right))
            if left + right not in ids:
                ids[left + right] = len(tokens)
                tokens.append(left + right)
                loop.made += 1
            new = ids[left + right]
            if options.progress is not None and (loop.made % PROGRESS_STEP == 0 or loop.made == wanted):
                options.progress("merge", loop.made, wanted)
        special = {spelling: len(tokens) + k for k, spelling in enumerate(options.special_tokens)}
        return IntegerVocabulary(
            ids={**ids, **special}, pairs=pairs, decoder=DECODER, special_tokens=special, pattern=Integers(base)
        )

    def required_ids(self, vocabulary: IntegerVocabulary) -> set[int]:
        """Return the ids of the integers."""
        return {*range(vocabulary.pattern.base or 0)}

    def with_ids(self, vocabulary: IntegerVocabulary, ids: Mapping[int, int], **changes: Any) -> IntegerVocabulary:
        from tokenizer.kinds.character_bpe import KIND as CHARACTER_PAIRS

        trimmed: Any = CHARACTER_PAIRS.with_ids(vocabulary, ids, **changes)
        made: IntegerVocabulary = trimmed
        return made

    def shortage(self, vocabulary: Vocabulary, options: Options) -> str:
        return f"the sequences ran out of pairs that occur at least {options.min_count} times"

    def describe_entries(self, entries: int, merges: int) -> str:
        return f"{entries - merges:,} integers, {merges:,} merges"

    def reads(self, content: Any) -> bool:
        """Return whether a file is BPE over characters without a normalizer or pre-tokenizer, whose id 0 is U+F0000."""
        from tokenizer.formats.hugging_face import is_bpe

        if not is_bpe(content) or content.get("normalizer") or content.get("pre_tokenizer"):
            return False
        vocab = content["model"].get("vocab")
        return isinstance(vocab, dict) and vocab.get(chr(FIRST)) == 0

    def read(self, content: Any) -> IntegerVocabulary:
        from tokenizer.formats.character_bpe_files import parse_character_bpe_json
        from tokenizer.formats.spelled_vocabulary import expect, quote
        from tokenizer.integer_vocabulary import IntegerVocabulary

        read = parse_character_bpe_json(content)
        ordinary = {token: i for token, i in read.ids.items() if token not in read.special_tokens}
        base = sum(len(token) == 1 for token in ordinary)
        known = {chr(FIRST + i) for i in range(base)}
        for token, i in ordinary.items():
            expect(known >= {*token}, f"has the token {quote(token)}, which is no sequence of integers below {base}")
            expect(len(token) > 1 or ord(token) == FIRST + i, f"has the id {i} for {quote(token)}")
        plain = (read.unknown, read.byte_fallback, read.prefix, read.suffix, read.whole_first)
        expect(not any(plain), "has options of model that integers do not need, such as unk_token")
        names = ("ids", "pairs", "decoder", "special_tokens", "added_flags", "post_processor", "length_settings")
        made: IntegerVocabulary = IntegerVocabulary(pattern=Integers(base), **{n: getattr(read, n) for n in names})
        return made

    def json(self, vocabulary: IntegerVocabulary) -> Iterator[str]:
        from tokenizer.formats.character_bpe_files import character_bpe_json
        from tokenizer.splitting.chains import Chain

        return character_bpe_json(changed(vocabulary, pattern=Chain((), as_bytes=False)))


KIND = IntegerPairs()
