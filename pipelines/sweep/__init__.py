"""The sweep over vocabularies: its plan, vocabularies, runs, statistics and picture."""

from typing import Literal

Kind = Literal["bpe", "wordpiece", "unigram"]
