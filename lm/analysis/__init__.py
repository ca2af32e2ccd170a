"""Analysis: metrics, baselines, model size and memory, attention maps, circuits and embedding geometry."""
