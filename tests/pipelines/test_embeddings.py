"""Embeddings: analogies on a grid of known vectors and beside a direct computation, and files of word vectors."""

import gzip

import numpy as np
import pytest
import torch

import bytelm
from lm.introspection.analogies import analogies, chance_of_parallels
from pipelines.inspection.instruments.embeddings import Embeddings
from pipelines.inspection.word_vectors import read_word_vectors
from tests.loaded_runs import induction_run

GLOVE = "man 1 0 0\nwoman 1 1 0\nking 1 0 5\nqueen 1 1 5\nnew york -1 -1 -1\n"


def test_analogies_of_a_grid_are_solved_and_parallel():
    grid = torch.tensor([[1.0, 0, 0], [1, 1, 0], [1, 0, 5], [1, 1, 5], [-1, -1, -1]])
    quadruples, every = torch.tensor([[0, 1, 2, 3], [0, 2, 1, 3]]), torch.ones(5, dtype=torch.bool)
    found = analogies(grid, quadruples, every)
    assert found.ranks.tolist() == [1, 1] and found.nearest.tolist() == [3, 3]
    assert found.parallel.tolist() == pytest.approx([1, 1]) and found.chance_rank == 1.5
    assert chance_of_parallels(grid, quadruples) == pytest.approx(0)
    with pytest.raises(ValueError, match="four different entries"):
        analogies(grid, torch.tensor([[0, 1, 2, 0]]), every)


def test_ranks_are_those_of_a_direct_computation():
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(50, 7))
    quadruples = np.array([generator.choice(40, 4, replace=False) for _ in range(20)])
    allowed = np.arange(50) < 40
    found = analogies(torch.from_numpy(vectors), torch.from_numpy(quadruples), torch.from_numpy(allowed))
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    for row, (a, b, c, d) in enumerate(quadruples):
        scores = {i: float(unit[i] @ (unit[b] - unit[a] + unit[c])) for i in range(40) if i not in (a, b, c)}
        order = sorted(scores, key=scores.get, reverse=True)
        assert found.ranks[row] == 1 + order.index(d) and found.nearest[row] == order[0]
        first, second = vectors[b] - vectors[a], vectors[d] - vectors[c]
        cosine = first @ second / np.linalg.norm(first) / np.linalg.norm(second)
        assert found.parallel[row] == pytest.approx(cosine)
    assert found.candidates == 37 and found.chance_rank == 19
    displacements = [vectors[list(q[[1, 3]])] - vectors[list(q[[0, 2]])] for q in quadruples]
    cosines = [
        float(x[0] @ y[1] / np.linalg.norm(x[0]) / np.linalg.norm(y[1]))
        for i, x in enumerate(displacements)
        for j, y in enumerate(displacements)
        if i != j
    ]
    assert chance_of_parallels(torch.from_numpy(vectors), torch.from_numpy(quadruples)) == pytest.approx(
        np.mean(cosines)
    )


def test_vectors_are_read_in_both_formats(tmp_path):
    (tmp_path / "glove.txt").write_text(GLOVE.replace("new york", "newyork"))
    (tmp_path / "word2vec.txt").write_text("5 3\n" + GLOVE.replace("\n", " \n"))
    with gzip.open(tmp_path / "word2vec.txt.gz", "wt") as file:
        file.write("5 3\n" + GLOVE)
    expected = [[1, 0, 0], [1, 1, 0], [1, 0, 5], [1, 1, 5], [-1, -1, -1]]
    for name in ("glove.txt", "word2vec.txt", "word2vec.txt.gz"):
        found = read_word_vectors(tmp_path / name)
        assert found.vectors.tolist() == expected and found.words[:4] == ["man", "woman", "king", "queen"]
    assert found.words[4] == "new york"
    for content, words in {
        "": "has no word vectors",
        "a 1 2\nb 1\n": "line 2 of .* is not a word and 2 numbers",
        "a 1 nan\n": "line 1 of",
        "2 2\na 1 2\n": "announces 2 words, but has 1",
    }.items():
        (tmp_path / "bad.txt").write_text(content)
        with pytest.raises(ValueError, match=words):
            read_word_vectors(tmp_path / "bad.txt")
    with pytest.raises(ValueError, match="there is no file"):
        read_word_vectors(tmp_path / "missing.txt")


def test_the_same_words_are_looked_up_in_a_model_and_a_file(trained_gpt, tmp_path):
    run = bytelm.load_run(trained_gpt)
    (tmp_path / "vectors.txt").write_text(GLOVE.replace("new york", "newyork"))
    single = [run.tokenizer.decode([i]) for i in range(262, 290)]
    words = [w for w in single if w.strip() == w and w.isalpha()][:4]
    lines = ["man woman king queen", ": heading", " ".join(words), "man woman king nobody"]
    (tmp_path / "analogies.txt").write_text("\n".join(lines))
    instrument = Embeddings(
        near=("king",), analogies=str(tmp_path / "analogies.txt"), vectors=str(tmp_path / "vectors.txt")
    )
    model, given = instrument.look(run, "").spaces
    assert given.entries == 5 and given.nearest["king"][0][0] == "queen" and given.skipped == 2
    assert (given.analogies[0].words, given.analogies[0].rank) == (("man", "woman", "king", "queen"), 1)
    (x, y), (u, v), *_ = given.analogies[0].coordinates
    assert (u - x) ** 2 + (v - y) ** 2 <= 1 + 1e-9
    of_model, of_file = instrument.look(run, "").pictures()
    assert of_file.groups == [given.analogies[0].arrows] and of_model.groups == [model.analogies[0].arrows]
    (first, second), axes = of_file.groups[0], of_file.figure().axes[0]
    assert [point[0] for arrow in (first, second) for point in arrow] == ["man", "woman", "king", "queen"]
    arrows = [text for text in axes.texts if text.arrow_patch is not None]
    assert [(arrow.xyann, arrow.xy) for arrow in arrows] == [(begin[1:], end[1:]) for begin, end in (first, second)]
    displacements = [np.subtract(arrow.xy, arrow.xyann) for arrow in arrows]
    np.testing.assert_allclose(*displacements, atol=1e-6)  # king is to queen as man is to woman
    assert model.dimensions == 32 and model.skipped == 2 and len(model.analogies) == 1
    assert 1 <= model.analogies[0].rank <= model.entries - 3 and model.chance_rank == (model.entries - 2) / 2
    said = [part if isinstance(part, str) else part.title for part in instrument.look(run, "").parts()]
    assert any("median rank" in one for one in said) and any("left out" in one for one in said)
    none = Embeddings(near=("unpronounceable",)).look(run, "")
    assert none.spaces[0].missing == ("unpronounceable",) and not none.spaces[0].nearest
    assert none.parts() == ["no vector in the model: 'unpronounceable'"]
    (tmp_path / "analogies.txt").write_text("one two three\n")
    with pytest.raises(ValueError, match=r"line 1 of .* has 3 words"):
        instrument.look(run, "")


def test_a_word_that_becomes_the_unknown_token_has_no_vector(trained_gpt, tmp_path):
    run = induction_run(bytelm.load_run(trained_gpt))
    (tmp_path / "analogies.txt").write_text("a b c d\na b c unpronounceable\n")
    asked = Embeddings(near=("a", "unpronounceable"), analogies=str(tmp_path / "analogies.txt"))
    (space,) = asked.look(run, "").spaces
    assert list(space.nearest) == ["a"] and space.missing == ("unpronounceable",)
    assert [one.words for one in space.analogies] == [("a", "b", "c", "d")] and space.skipped == 1
