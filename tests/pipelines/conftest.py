"""What tests of several files read."""

import pytest


@pytest.fixture(scope="session")
def peers(tmp_path_factory, tokenizer_folder):
    """Of each kind a folder as the hub has it, its model of `transformers`, and the run that was imported from it."""
    from pipelines.import_hf import import_hf
    from tests.pipelines.exchange_cases import save_peer

    made = {}

    def get(kind):
        if kind not in made:
            folder = tmp_path_factory.mktemp("peers") / kind
            peer = save_peer(folder, kind, tokenizer_folder)
            made[kind] = folder, peer, import_hf(str(folder), out=folder.with_name("run"))
        return made[kind]

    return get
