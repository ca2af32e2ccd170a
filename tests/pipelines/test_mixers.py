"""Decoders with other mixers than attention train, are evaluated and generate from the command line's functions."""

import json
import re
from dataclasses import replace
from typing import get_args

import pytest

from lm.config import MixerKind
from pipelines.verbs.evaluate import evaluate
from pipelines.verbs.export_hf import export_hf
from pipelines.verbs.generate import generate
from pipelines.verbs.params import params
from pipelines.verbs.pretrain import pretrain

MIXERS = [*(mixer for mixer in get_args(MixerKind) if mixer != "attention"), "mamba2 + attention"]
# One with a KV cache, two recurrent ones, two in turns. tests/lm/test_mixers.py has the gradients and states of all.
SAMPLE = ("hopfield", "gru", "mamba2", "mamba2 + attention")


@pytest.mark.parametrize("mixer", [pytest.param(m, marks=() if m in SAMPLE else pytest.mark.slow) for m in MIXERS])
def test_a_decoder_with_a_mixer_learns_and_generates(mixer, small_recipe, dataset_folder, tmp_path, printed):
    run = tmp_path / "run"
    train = replace(small_recipe.train, lr=1e-2)
    mixers = {"mixers": mixer.split(" + ")} if "+" in mixer else {"mixer": mixer}
    model = replace(small_recipe.model, layers=2, **mixers)
    pretrain(replace(small_recipe, model=model, train=train), data=dataset_folder, out=run)
    lines = map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    first, *_, last = [line["loss"] for line in lines if line["split"] == "validation"]
    assert last < first - 0.5
    evaluate(run)
    texts = [generate(run, prompt="def ", tokens=50, seed=seed) for seed in (1, 1)]
    assert texts[0] == texts[1] != ""
    printed.readouterr()
    params(run, as_json=True)
    costs = json.loads(printed.readouterr().out)
    assert all(costs["parameters"][each] > 0 for each in mixer.split(" + "))
    assert (costs["cache_bytes_per_token"] > 0) == (mixer in ("hopfield", "mamba2 + attention"))
    with pytest.raises(ValueError, match=re.escape(f"model.mixer = 'attention', not '{mixer}'")):
        export_hf(run, out=tmp_path / "export")
