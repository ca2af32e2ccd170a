"""Vocabulary files: tokenizer.json, tiktoken ranks, vocab.json with merges.txt."""
