"""A short version of `make fuzz`: readers accept damaged files or refuse them with one sentence."""

import random

import pytest

from tests.fuzz.readers import READERS, mutated, mutated_json, open_reader

INPUTS = 25  # of each kind, per reader


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_accepted_or_refused_with_one_sentence(name, tmp_path):
    reader = open_reader(name, tmp_path / "files")
    assert reader.check(reader.seed)
    chance = random.Random(name)
    for _ in range(INPUTS):
        reader.check(mutated(reader.seed, chance))
        reader.check(mutated_json(reader.seed, chance))
