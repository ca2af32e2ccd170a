"""Pictures of what instruments find, and the page of `bytelm inspect`."""

import re
from dataclasses import dataclass

import matplotlib.image
import numpy as np
import pytest

import bytelm
from pipelines.evaluation.measurement import Result, Section
from pipelines.reporting.inspection_page import write_inspection_page
from pipelines.reporting.pictures import Bars, Curves, HeatMap
from pipelines.reporting.svg import VARIABLES, draw_svg

TEXT = "import os\n\ndef path():"


@pytest.fixture(scope="module")
def found(trained_gpt):
    return bytelm.inspect(trained_gpt, TEXT, instruments=("lens", "attribution", "heads"))


def test_a_heat_map_has_the_values_and_labels_of_its_rows_and_columns():
    values = np.array([[0.25, -1.0, np.nan], [0.5, -0.0, 1.0]])
    picture = HeatMap(title="", maps={"": values}, rows=["a", "b"], columns=["$x", "y", "z"], signed=True)
    axes = picture.figure().axes[0]
    np.testing.assert_array_equal(axes.images[0].get_array().filled(np.nan), values)
    assert axes.images[0].get_clim() == (-1, 1)
    assert [label.get_text() for label in axes.get_yticklabels()] == ["a", "b"]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["$x", "y", "z"]
    assert [text.get_text() for text in axes.texts] == ["0.25", "-1.00", "0.50", "0.00", "1.00"]


def test_a_large_heat_map_labels_some_rows_and_writes_no_values():
    axes = HeatMap(title="", maps={"": np.ones((100, 4))}, rows=[*map(str, range(100))], columns="abcd").figure().axes
    labels = [label.get_text() for label in axes[0].get_yticklabels()]
    assert len(labels) == 64 and (labels[0], labels[-1]) == ("0", "99") and not axes[0].texts


def test_crowded_labels_are_upright_and_layers_are_whole_numbers():
    names = [f"{layer}.{head}" for layer in range(3) for head in range(4)]
    maps = {kind: np.ones((2, 12)) for kind in "QKV"}
    (axes, *_) = HeatMap(title="", maps=maps, rows="ab", columns=names).figure().axes
    assert {label.get_rotation() for label in axes.get_xticklabels()} == {90}
    (axes,) = Curves(title="", x=range(4), panels={"a": {"a": [1, 2, 3, 4]}}, label="layer").figure().axes
    assert all(float(place).is_integer() for place in axes.get_xticks())


def test_bars_and_curves_have_their_values():
    axes = Bars(title="", values={"a": 2.0, "b": -1.0}, intervals={"a": (1, 3), "b": (-2, 0)}, x="").figure().axes[0]
    assert [bar.get_width() for bar in axes.patches] == [2.0, -1.0]
    panels = Curves(title="", x=[1, 10], panels={"loss": {"gpt": [3, 2]}, "score": {"a": [0, 1]}}, label="tokens")
    lines = [axes.lines[0].get_ydata().tolist() for axes in panels.figure().axes]
    assert lines == [[3, 2], [0, 1]]


def test_labels_that_look_like_ids_or_colours_of_a_drawing_are_kept():
    labels = ["url(#a)", next(iter(VARIABLES))]
    drawn = draw_svg(Bars(title="", values=dict.fromkeys(labels, 1.0), x="").figure(), "one", "title")
    assert [label for label in labels if f">{label}</text>" in drawn] == labels
    assert "url(#one-" in drawn
    assert "var(--" in drawn


def test_pictures_of_results_are_saved_in_the_format_of_the_files_name(found, tmp_path):
    for name, results in found.items():
        assert results[0].pictures(), name
        for number, picture in enumerate(results[0].pictures()):
            picture.save(tmp_path / f"{name}-{number}.png")
            assert matplotlib.image.imread(tmp_path / f"{name}-{number}.png").shape[1] > 500
    found["attribution"][0].pictures()[0].save(tmp_path / "bars.svg")
    assert "<svg" in (tmp_path / "bars.svg").read_text()


def test_the_lens_and_the_scores_of_heads_are_in_their_pictures(found):
    lens, heads = found["lens"][0], found["heads"][0]
    assert list(lens.pictures()[0].maps[""][-1]) == list(lens.layers[-1].probabilities)
    drawn = heads.pictures()[0].maps["induction"]
    assert [score for row in drawn for score in row] == [row.induction for row in heads.heads]


def test_the_page_is_whole_and_needs_no_network(trained_gpt, in_process, tmp_path):
    page = tmp_path / "inside.html"
    said = in_process("inspect", trained_gpt, "import <os>", "second", "--out", page)
    assert said.returncode == 0 and str(page) in said.stdout + said.stderr
    html = page.read_text("utf-8")
    for words in ("Logit lens", "cannot tell", "import &lt;os&gt;", "Scores of heads", "Terms of the logit"):
        assert words in html
    assert html.count("<svg") >= 2 + 2 + 1
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    loaded = re.findall(r'(?:src|href)="(?!#|data:)([^"]+)"', html)
    assert loaded == []
    refused = in_process("inspect", trained_gpt, "--out", tmp_path)
    assert refused.returncode == 1 and "is a folder: name the file to write" in refused.stderr


def test_a_result_without_pictures_is_on_the_page(tmp_path):
    @dataclass(frozen=True)
    class Plain(Result):
        section = Section("Plain", "A number, which cannot tell more.")

        def parts(self):
            return ["the number is 7"]

    write_inspection_page("gpt", {"plain": [Plain()]}, tmp_path / "page.html")
    html = (tmp_path / "page.html").read_text("utf-8")
    assert "the number is 7" in html and "<svg" not in html
