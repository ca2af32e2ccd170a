"""The public tokenizer API: training, loading and saving.

`encoding_methods` and `vocabulary_methods` have the other methods.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from tokenizer.argument_checks import file_path, whole_number
from tokenizer.integer_methods import IntegerMethods
from tokenizer.special import END_OF_TEXT
from tokenizer.splitting.patterns import Pattern

# Importing these takes longer than encoding a short text, which needs none of them.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any, Literal, Unpack

    from tokenizer.kinds.kind import Kind
    from tokenizer.model_inputs import InputOptions, Inputs
    from tokenizer.splitting.bert_splitter import BertWords
    from tokenizer.splitting.splitter import Splitter
    from tokenizer.training.counting import PretokenCounts, Progress
    from tokenizer.training.train import TrainingOptions


class Tokenizer(IntegerMethods):
    """A byte-level BPE, WordPiece or Unigram tokenizer: text to ids and back. Create one with `train` or `load`.

    The same vocabulary gives the same ids as in tiktoken, tokenizers and transformers. Training gives the same merges
    as tokenizers (byte_order="gpt2") and rustbpe ("raw"). The differences:

    - Bytes are accepted, too. Each byte of invalid UTF-8 is a pretoken and decodes exactly.
    - A lone surrogate in a str raises ValueError; tiktoken replaces it silently.
    - Special tokens in the text follow tiktoken's rule; Hugging Face always splits them off.
    - Text that a custom regex does not match is a pretoken, as in Hugging Face; tiktoken drops it.
    - No special tokens are added around a text, as with Hugging Face's add_special_tokens=False.
    - A byte without a token raises ValueError; Hugging Face drops it or makes it an unknown token.

    If a file asks for NFC, text is normalized before encoding, as in Hugging Face, and decodes to its normalized form.
    In bytes, only the valid UTF-8 is normalized.

    WordPiece tokenizers give the same ids and decoded text as BERT's in `tokenizers`: the text comes back as words with
    single spaces, in lower case if uncased. `is_lossless` is therefore false, and tokens have no fixed number of bytes.
    Each byte of invalid UTF-8 is read as U+FFFD, which BERT's normalizer deletes. The same holds for Unigram tokenizers
    such as T5's and BPE over characters such as Llama 2's, but their normalizers keep U+FFFD or replace it by a space.

    Threads may share a tokenizer. Plain Python encodes the first short texts; the kernels are loaded on demand.
    """

    @classmethod
    def train(
        cls,
        corpus: object,
        vocab_size: int = 32768,
        pattern: str | Splitter | None = None,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
        memory: int | None = None,
        special_text: Literal["text", "cut"] = "text",
        **options: Unpack[TrainingOptions],
    ) -> Tokenizer:
        """Return a tokenizer trained on a corpus. The result is independent of threads, document order and batching.

        corpus: the path of a text file, or an iterable of documents: str and bytes are texts, `Path` objects are files,
            and Arrow arrays or record batches hold many texts.
        vocab_size: number of special tokens, the 256 bytes (WordPiece: the characters) and merges together.
        pattern: a name (gpt2, cl100k, o200k, llama3, qwen2) or a regex, by default cl100k, also after normalizations
            (nfc, nfd, nfkc, nfkd, lowercase, strip-accents), as in "nfkc+lowercase:cl100k"; for WordPiece bert-uncased
            (the default) or bert-cased; for Unigram metaspace (the default; words are cut at white space and begin with
            one space), nmt_nfkc or nfkc (the same after sentencepiece's normalization of this name), keep-whitespace
            (all white space is kept; runs of spaces can be pieces), llama2 (every space is kept and begins a word), or
            the `pattern` of another Unigram vocabulary; for BPE over characters llama2 (the default) or one of these.
        progress: called as (phase, done, total). The phases are "count" (bytes), "combine" (pretokens; only if counts
            were spilled), "search" (trainings; only to choose min_frequency), "merge" (merges) and, for Unigram,
            "prune" (dropped pieces).
        memory: limit in bytes, without the interpreter and the text being read; None for no limit. Counts that do not
            fit are spilled to disk, as in `count_pretokens`. Merging needs all distinct pretokens in memory.
        special_text: how to treat special tokens spelled in the corpus. "text" (the default): as ordinary text. "cut":
            each one ends a document and is not counted.

        options, all by keyword:
        kind: "bpe" (the default, byte-level), "wordpiece", "unigram", "character-bpe" (BPE over characters),
            "characters", "words" or "integers" (see `train_ids`, also for `base`).
        special_tokens: the first entries of the vocabulary, by default `DEFAULT_SPECIAL_TOKENS`. WordPiece, characters
            and words append [UNK] if it is not among them. Unigram and BPE over characters begin with <unk> and end
            with these. ValueError if an ordinary token can have the same spelling: choose spellings such as <|name|>.
        min_frequency: pairs that occur less often are not merged. By default 2; with merge_by="likelihood" the largest
            value of at least 2 that fills the vocabulary, found by repeated training; for characters and words 1.
        byte_order: BPE only: order of the single bytes' ids: "gpt2" (the default) as in Hugging Face, "raw" as in
            rustbpe.
        tie_break: BPE only: the pair to merge among pairs of equal count. "ids" (the default): smallest left id, then
            smallest right id. "bytes": lexicographically greatest left token, then right token, as in max over
            (count, (left, right)).
        max_token_length: BPE only: largest length of a merged token in bytes. Hugging Face's option allows one less.
        merge_by: WordPiece only: the pair to merge. "frequency" (the default): the one with the largest count, as in
            `tokenizers`. "likelihood": the one with the largest count(ab) / (count(a) count(b)), compared exactly. Ties
            go to the larger count(ab), then the smaller left id, then the smaller right id.
        limit_alphabet: WordPiece and BPE over characters only: number of characters to keep, the most frequent. Others
            are left out of words.
        alphabet_order: WordPiece only: the order of the ids of characters within words, which breaks ties; by default
            the order of code points. With the order of a vocabulary from tokenizers, training gives that vocabulary.
        pieces: Unigram only: `PieceRules` that restrict the pieces.

        Warns if the corpus runs out of pairs or substrings; the vocabulary is then smaller. Raises ValueError for an
        invalid argument, and before merging if the distinct pretokens do not fit in `memory`.
        """
        from tokenizer.training.counting import count_pretokens
        from tokenizer.training.forecast import forecast_for
        from tokenizer.training.train import Options, train_vocabulary

        checked = Options(vocab_size=vocab_size, threads=threads, progress=progress, memory=memory, **options)
        if special_text not in ("text", "cut"):
            raise ValueError(f"special_text must be text or cut, not {special_text!r}")
        forecast = forecast_for(checked.kind, memory)
        splitter = checked.splitter(pattern)
        counts = count_pretokens(
            corpus,
            splitter,
            threads=threads,
            progress=progress,
            memory=memory,
            forecast=forecast,
            cut_at=checked.special_tokens if special_text == "cut" else (),
        )
        return cls(train_vocabulary(counts, checked))

    @classmethod
    def train_from_counts(
        cls,
        counts: PretokenCounts,
        vocab_size: int = 32768,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
        memory: int | None = None,
        **options: Unpack[TrainingOptions],
    ) -> Tokenizer:
        """Return a tokenizer trained on pretoken counts: the same one as `train` on the counted corpus.

        options: as in `train`. threads: for Unigram; merging uses one.
        memory: limit for merging in bytes. If merging needs more, ValueError says so beforehand, with the remedies.
        """
        from tokenizer.training.counting import PretokenCounts
        from tokenizer.training.train import Options, train_vocabulary

        if not isinstance(counts, PretokenCounts):
            raise ValueError(f"counts must be PretokenCounts, which count_pretokens returns, not {counts!r}")
        memory = None if memory is None else whole_number("memory", memory, 1)
        checked = Options(vocab_size=vocab_size, threads=threads, progress=progress, memory=memory, **options)
        return cls(train_vocabulary(counts, checked))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        *,
        pattern: str | Pattern | None = None,
        special_tokens: dict[str, int] | None = None,
        normalizer: Literal["NFC"] | None = None,
    ) -> Tokenizer:
        """Return the tokenizer in a folder or file.

        - tokenizer.json, or a folder with one; Mistral's tekken.json; CLIP's bpe_simple_vocab_16e6.txt.gz. They need no
          arguments.
        - tiktoken ranks: `.tiktoken`, or another name such as Llama 3's tokenizer.model. They need `pattern`. Published
          files are recognised by content or name, such as cl100k_base: pattern and special tokens are then known.
        - SentencePiece models of the kinds Unigram and BPE: `.model`, `.spm`. They need no arguments. A folder of T5 or
          mT5 with spiece.model gives the ids of transformers' T5Tokenizer, with its sentinels.
        - BERT's `vocab.txt`. It needs pattern="bert-uncased" or "bert-cased", or tokenizer_config.json beside it.
        - `vocab.bpe` with `encoder.json`, or `merges.txt` with `vocab.json`. `pattern` defaults to the one of the
          tokenizer_class in tokenizer_config.json, otherwise gpt2. Qwen 2's class also implies NFC.

        special_tokens: spellings and ids, for the last three formats. With merges, they default to those in the other
        files that transformers writes. normalizer: "NFC" for a vocabulary on normalized text, such as Qwen's.

        In `encode`, added tokens that are not special follow the rule of special tokens; lstrip, rstrip, single_word
        and normalized mean the same as in tokenizers. Added tokens have the ids that tokenizers gives them, whatever
        ids the file lists: added tokens that are in the vocabulary have its ids, and the others are numbered from the
        size of the vocabulary on, in the order of the list. `encode` neither truncates nor pads, and adds no tokens
        around a text. `save` keeps the file's truncation, padding and post-processor.
        Raises FileNotFoundError, and ValueError with the file and the field that is damaged or not supported.
        """
        from tokenizer.formats.vocabulary_files import load_vocabulary

        return cls(load_vocabulary(file_path("path", path), pattern, special_tokens, normalizer))

    @classmethod
    def from_ranks(
        cls,
        ranks: Mapping[bytes, int],
        pattern: str | Pattern,
        special_tokens: Mapping[str, int] | None = None,
        *,
        normalizer: Literal["NFC"] | None = None,
    ) -> Tokenizer:
        """Return the tokenizer of tiktoken's ranks, which are the tokens' ids.

        ranks: from the bytes of each token to its id, such as `Encoding._mergeable_ranks`, with all 256 single bytes.
        special_tokens: from spelling to id. Their ids may leave gaps, but the largest id of a vocabulary of n tokens
        must be below 2n + 65,536. If tokenizer.json spells one like an ordinary token, both must have the same id.
        Raises ValueError that names the invalid token.
        """
        from tokenizer.formats.in_memory import checked_ranks, vocabulary_of_ranks

        return cls(vocabulary_of_ranks(checked_ranks(ranks), pattern, special_tokens, normalizer))

    @classmethod
    def from_merges(
        cls,
        vocabulary: Mapping[str, int] | Mapping[bytes, int],
        merges: Iterable[tuple[str, str]] | Iterable[tuple[bytes, bytes]],
        pattern: str | Pattern,
        special_tokens: Mapping[str, int] | None = None,
        *,
        normalizer: Literal["NFC"] | None = None,
    ) -> Tokenizer:
        """Return the tokenizer of a vocabulary and its merges in order.

        Tokens are bytes, as in `merges`, or spelled as in `get_vocab` and vocab.json. special_tokens: as in
        `from_ranks`. Raises ValueError that names the invalid token or merge.
        """
        from tokenizer.formats.in_memory import vocabulary_of_merges

        return cls(vocabulary_of_merges(vocabulary, merges, pattern, special_tokens, normalizer))

    @classmethod
    def from_wordpiece(
        cls,
        vocabulary: Mapping[str, int],
        pattern: str | BertWords = "bert-uncased",
        special_tokens: Mapping[str, int] | None = None,
    ) -> Tokenizer:
        """Return the WordPiece tokenizer of a vocabulary such as {"[UNK]": 0, "play": 1, "##ing": 2}.

        special_tokens: by default those of BERT that are in the vocabulary. Others are added to it. Raises ValueError
        that names the invalid token.
        """
        from tokenizer.formats.in_memory import vocabulary_of_pieces

        return cls(vocabulary_of_pieces(vocabulary, pattern, special_tokens))

    @property
    def _kind(self) -> Kind:
        from tokenizer.kinds.registry import kind_named

        return kind_named(self.kind)

    @property
    def ids_around_text(self) -> tuple[list[int], list[int]]:
        """The ids that transformers adds before and after a text, such as those of [CLS] and [SEP]; `encode` does not.

        Both are empty if tokenizer.json has no template.
        """
        from tokenizer.formats.hugging_face import ids_of_post_processor

        return ids_of_post_processor(self.vocabulary.post_processor)

    @property
    def ids_between_texts(self) -> list[int]:
        """The ids that transformers adds between two texts, such as that of [SEP]."""
        from tokenizer.formats.hugging_face import ids_between

        return ids_between(self.vocabulary.post_processor)

    def __call__(
        self,
        text: str | bytes | Iterable[str | bytes],
        text_pair: str | bytes | Iterable[str | bytes] | None = None,
        **options: Unpack[InputOptions],
    ) -> Inputs:
        """Return the inputs of a model for a text, a list of texts, or pairs of texts, as a tokenizer of transformers.

        The result has the keys input_ids, attention_mask (1 for a token, 0 for padding) and, for WordPiece,
        token_type_ids (1 for the second text). Each is a list for one text, a list of lists for a list of texts, and
        with return_tensors="np" an int64 array (texts, length).

        options, all by keyword:
        add_special_tokens: whether to add tokens around texts, such as [CLS] and [SEP]; the default is True.
        truncation: True or "longest_first" cuts texts to `max_length` ids, special tokens included, the longer text of
            a pair first; "only_first" and "only_second" cut one text of each pair.
        padding: True or "longest" pads to the longest row, "max_length" to `max_length`; False (the default) does not.
        pad_to_multiple_of: makes the padded length a multiple of this number.
        pad_token: the special token to pad with. The default is that of the file, else <|pad|>, [PAD], <pad> or
            <|padding|>.
        padding_side, truncation_side: "right" (the default) or "left".
        return_tensors: "np" for arrays, None for lists.
        allowed_special, disallowed_special: the rule for special tokens spelled in texts, as in `encode`.
            transformers always reads them as special tokens (allowed_special="all").

        Raises ValueError if an array would have rows of different lengths, if padding has no token, and if a text is
        too short to cut.
        """
        from tokenizer.model_inputs import InputMaker

        vocabulary = self.vocabulary
        padding = vocabulary.length_settings.get("padding", {})
        types = vocabulary.kind == "wordpiece"
        make = InputMaker(self.encode_batch, vocabulary.post_processor, padding, self.special_tokens, types)
        return make(text, text_pair, **options)

    def grow(
        self,
        corpus: object,
        entries: int,
        *,
        min_frequency: int = 2,
        max_token_length: int | None = None,
        superwords: int | None = None,
        threads: int | None = None,
        progress: Progress | None = None,
        memory: int | None = None,
        spill_folder: str | os.PathLike[str] | None = None,
    ) -> Tokenizer:
        """Return a new tokenizer with up to `entries` entries, trained further from the merges of this one.

        For BPE; `grow_ids` takes integers. All ids and merges stay. Texts are encoded as before, except that tokens can
        be joined. New ids follow the largest one. No token spells a special token. Warns if pairs run out.

        entries: the largest id plus 1, special tokens included. superwords: let new tokens hold up to this many words
            (SuperBPE, Liu et al. 2025, arXiv 2503.13423). Texts are then cut only at numbers before merging.
        spill_folder: as in `count_pretokens`. All other arguments: as in `train`.
        """
        from tokenizer.training.growing import Growth, grow

        limits: Any = {"max_token_length": max_token_length, "superwords": superwords}
        limits |= {"threads": threads, "progress": progress, "memory": memory, "spill_folder": spill_folder}
        return Tokenizer(grow(self.vocabulary, corpus, Growth(entries=entries, min_frequency=min_frequency, **limits)))

    def trim(
        self,
        corpus: object,
        entries: int | None = None,
        *,
        threads: int | None = None,
        progress: Progress | None = None,
    ) -> Tokenizer:
        """Return a new tokenizer with fewer entries: those that a corpus uses, renumbered in the order of their ids.

        For all kinds but SentencePiece models. Special tokens, the padding token, bytes and single characters stay (not
        with words or characters). A text is encoded as before if all of its tokens stay.

        entries: number of entries to keep, special tokens included; by default all that are used, and the parts that
        merges join to them. BPE repeatedly leaves out the least used token that is not part of another one, and adds
        its count to its parts. Other kinds leave out the least used tokens. Other arguments: as in `train`.
        """
        from tokenizer.trimming import trim

        return Tokenizer(trim(self.vocabulary, corpus, entries, threads, progress))

    @property
    def end_of_text(self) -> int | None:
        """The id of the token that ends texts; None if there is none.

        It is `<|endoftext|>`, else the last token that transformers adds after a text, else `</s>`.
        """
        _, after = self.ids_around_text
        special = self.special_tokens
        return special.get(END_OF_TEXT, after[-1] if after else special.get("</s>"))

    def add_special_tokens(self, special_tokens: Sequence[str]) -> Tokenizer:
        """Return a new tokenizer with more special tokens; this one is unchanged.

        New ids follow the largest one, in this order. Existing special tokens keep their ids, and so do ordinary tokens
        that become special, such as [unused1]. In a SentencePiece model, the new tokens are control pieces, and
        ValueError is raised for the spelling of an ordinary piece.
        """
        return Tokenizer(self._kind.with_special_tokens(self.vocabulary, special_tokens))

    def as_tokenizers(self) -> Tokenizer:
        """Return a tokenizer that encodes a SentencePiece model as `tokenizers` does; others are returned unchanged.

        Its `save` writes tokenizer.json. A few texts are encoded differently. Raises ValueError for models that
        `tokenizers` cannot express.
        """
        vocabulary = self._kind.as_tokenizers(self.vocabulary)
        return self if vocabulary is self.vocabulary else Tokenizer(vocabulary)

    def as_sentencepiece(self) -> Tokenizer:
        """Return a tokenizer with the same pieces and ids that encodes as sentencepiece does.

        For Unigram and BPE over characters. Its `save` writes tokenizer.model. A few texts are encoded differently.
        Special tokens become control pieces, and the ids that transformers adds around a text are not stored.
        SentencePiece models are returned unchanged. Raises ValueError for other kinds, and for vocabularies that a
        SentencePiece model cannot express.
        """
        vocabulary = self._kind.as_sentencepiece(self.vocabulary)
        return self if vocabulary is self.vocabulary else Tokenizer(vocabulary)

    def save(self, folder: str | os.PathLike[str]) -> None:
        """Write folder/tokenizer.json atomically, in the format of tokenizers and transformers. Ranks become merges.

        A SentencePiece model is written as folder/tokenizer.model, because tokenizers gives other ids for some texts.
        `as_sentencepiece` converts other vocabularies of these kinds.
        """
        self._kind.save(self.vocabulary, Path(file_path("folder", folder)))
