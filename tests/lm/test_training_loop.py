"""The training loop of docs/training-loop.md works with `lm` alone."""

import re
import subprocess
import sys
from pathlib import Path

import torch

from lm.config import ModelConfig
from lm.model import LanguageModel

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "training-loop.md").read_text(encoding="utf-8")


def test_the_loop_of_the_page_learns_its_text_with_lm_alone(tmp_path):
    (script,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert len(script.splitlines()) <= 65
    script += "import sys\nassert not {'pipelines', 'corpora', 'tokenizer', 'bytelm'} & sys.modules.keys()\n"
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    first, *_, last, text = done.stdout.splitlines()
    assert first.startswith("step 0: 5.5")  # ln 256
    assert float(re.search(r"held out: ([\d.]+) nats", last)[1]) < 1
    assert text.startswith("It was a dark")


def test_a_model_has_weights_of_its_seed_unless_it_is_made_to_be_loaded():
    config = ModelConfig(vocab_size=50, width=32, heads=2, layers=1, context_length=16)
    weights, again, other = (LanguageModel(config, *seed).state_dict() for seed in ((), (0,), (1,)))
    assert all(torch.equal(weights[name], again[name]) for name in weights)
    assert not torch.equal(weights["embedding.weight"], other["embedding.weight"])
    assert 0.015 < weights["embedding.weight"].std() < 0.025
    empty = LanguageModel(config, seed=None)
    empty.load_state_dict(weights)
    ids = torch.arange(16).unsqueeze(0)
    assert torch.equal(empty.eval()(ids), LanguageModel(config).eval()(ids))
