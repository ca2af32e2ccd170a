"""Evaluation: windows, scores, baselines, compressors and BLEU."""
