"""Vocabulary files: tokenizer.json, tiktoken ranks, SentencePiece models, vocab.txt, vocab.json with merges.txt."""
