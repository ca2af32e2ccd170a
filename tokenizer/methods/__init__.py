"""The methods of `Tokenizer` by subject: its vocabulary, text to ids, ids to text."""
