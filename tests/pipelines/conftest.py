"""Fixtures that several test files use."""

import json
from dataclasses import replace

import pytest


@pytest.fixture(scope="session")
def peers(tmp_path_factory, tokenizer_folder):
    """Return get(kind), which returns a hub folder, its model in `transformers`, and the run imported from it."""
    from pipelines.verbs.import_hf import import_hf
    from tests.pipelines.exchange_cases import save_peer

    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("peers") / kind
            peer = save_peer(folder, kind, tokenizer_folder)
            made[kind] = folder, peer, import_hf(str(folder), out=folder.with_name("run"))
        return made[kind]

    return get


@pytest.fixture(scope="session")
def pair_dataset(tmp_path_factory):
    """Return a dataset of 380 pairs for training and 20 for validation."""
    from pipelines.verbs.build_dataset import build_dataset
    from pipelines.verbs.train_tokenizer import train_tokenizer

    folder = tmp_path_factory.mktemp("translator")
    pairs = [{"en": f"the number {i}", "de": f"die Zahl {i}"} for i in range(400)]
    for split, chosen in (("train", pairs[:-20]), ("validation", pairs[-20:])):
        lines = "".join(json.dumps(pair) + "\n" for pair in chosen)
        (folder / f"numbers.{split}.jsonl").write_text(lines)
    corpus = [str(folder / "numbers.*.jsonl")]
    train_tokenizer(corpus, pairs=("en", "de"), vocab_size=270, out=folder / "tok")
    build_dataset(corpus, pairs=("en", "de"), tokenizer=folder / "tok", out=folder / "data")
    return folder / "data"


@pytest.fixture(scope="session")
def trained_translator(pair_dataset, small_recipe):
    """Return the run folder of an encoder-decoder trained on pairs, with a context of 32."""
    from pipelines.verbs.pretrain import pretrain

    model = replace(small_recipe.model, architecture="encoder-decoder")
    recipe = replace(small_recipe, objective="sequence-pairs", model=model)
    out = pair_dataset.with_name("run")
    pretrain(recipe, data=pair_dataset, out=out)
    return out
