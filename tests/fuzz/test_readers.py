"""A short part of `make fuzz`: damaged files are read, or refused by a sentence."""

import random

import pytest

from tests.fuzz.readers import READERS, mutated, mutated_json, open_reader

INPUTS = 25  # of each reader


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_is_read_or_refused_by_a_sentence(name, tmp_path):
    reader = open_reader(name, tmp_path / "files")
    assert reader.check(reader.seed)
    chance = random.Random(name)
    for _ in range(INPUTS):
        reader.check(mutated(reader.seed, chance))
        reader.check(mutated_json(reader.seed, chance))
