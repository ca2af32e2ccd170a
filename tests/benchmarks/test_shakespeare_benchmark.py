"""benchmarks.shakespeare: the peer's step is timed in both dtypes, and the faster one counts."""

import json

from benchmarks import shakespeare
from benchmarks.harness import RESULTS
from benchmarks.shakespeare import plain_step_seconds, report
from pipelines.verbs.build_dataset import build_dataset
from pipelines.verbs.train_tokenizer import train_tokenizer


def test_the_peer_is_timed_in_both_dtypes_and_the_faster_one_counts(tmp_path, text_folder, monkeypatch):
    monkeypatch.setattr(shakespeare, "TIMED_STEPS", 1)
    monkeypatch.setattr(shakespeare, "WARM_UP_STEPS", 0)
    train_tokenizer([str(text_folder)], vocab_size=256, out=tmp_path / "tokenizer", special_tokens=())
    build_dataset(
        [str(text_folder)],
        tokenizer=tmp_path / "tokenizer",
        out=tmp_path / "data",
        context_length=64,
        separator=False,
    )
    steps = plain_step_seconds(tmp_path / "data")
    assert [*steps] == ["float32", "bfloat16"] and all(step > 0 for step in steps.values())
    result = json.loads((RESULTS / "shakespeare" / "bytes-tiny.json").read_text(encoding="utf-8"))
    page = report(result | {"plain_step_seconds": {"float32": 0.04, "bfloat16": 0.03}})
    assert "would take 60 s" in page and "(40.0 ms a step in float32, 30.0 ms a step in bfloat16, " in page
