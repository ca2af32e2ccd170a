"""One module per kind of vocabulary: how it is trained, and how tokenizer.json holds it."""
