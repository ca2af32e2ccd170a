"""The pages of report, entropy and inspect, their tables and pictures, and the summary of a tokenizer."""
