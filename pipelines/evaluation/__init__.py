"""Evaluation: scored positions, metrics, compressors and BLEU."""
