"""Where documents come from: corpus cards, readers of files, tables and the hub, and synthetic sources."""

from corpora.cards import Card, list_cards, load_card
from corpora.corpus import Corpus, open_corpus
from corpora.documents import Dropped
from corpora.pair_corpus import PairCorpus, PairTexts, open_pairs
from corpora.summary import CorpusSummary, summarize

__all__ = [
    "Card",
    "Corpus",
    "CorpusSummary",
    "Dropped",
    "PairCorpus",
    "PairTexts",
    "list_cards",
    "load_card",
    "open_corpus",
    "open_pairs",
    "summarize",
]
