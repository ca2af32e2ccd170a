"""Pre-tokenization: splitters of texts into pretokens, their normalizers and their automata."""
