"""The vocabulary of BPE over integers: BPE over the characters that stand for integers."""

from __future__ import annotations

from functools import cached_property

from tokenizer.character_bpe_vocabulary import CharacterPairVocabulary
from tokenizer.splitting.integers import WIDTH, Integers

TYPE_CHECKING = False
if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tokenizer.encoding.ids_to_text import ByteDecoding


class IntegerVocabulary(CharacterPairVocabulary):
    """An immutable vocabulary of BPE over integers: the integers below `pattern.base` are their own ids."""

    kind = "integers"
    units = "tokens of integers"
    is_lossless = True
    pattern: Integers

    def decoding(self) -> ByteDecoding:
        from tokenizer.encoding.ids_to_text import ByteDecoding

        return ByteDecoding(self)

    @cached_property
    def integers_per_token(self) -> npt.NDArray[np.int32]:
        """The number of integers of each token, int32 (size,); 0 for special tokens and unused ids."""
        import numpy as np

        return np.array([len(token or b"") // WIDTH for token in self.tokens], dtype=np.int32)

    @cached_property
    def byte_lengths(self) -> npt.NDArray[np.int32]:
        """The length of each token as text, int32 (size,), read-only; 4 bytes for each integer."""
        lengths = self.integers_per_token * WIDTH
        lengths.flags.writeable = False
        return lengths
