"""Runs as files of `transformers` and ONNX, and runs made from files of `transformers`."""
