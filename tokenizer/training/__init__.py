"""Training: pretoken counts to a merge list, WordPiece tokens or Unigram pieces."""
