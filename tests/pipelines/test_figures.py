"""Figures: what they draw, and that their texts can be read. No pixels are compared."""

import math
import re
import resource
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.colors import to_hex, to_rgb
from matplotlib.patches import Rectangle
from matplotlib.text import Text

import bytelm
from lm.config import ModelConfig
from lm.config_costs import parameter_table, stacks
from lm.layers import LayerNorm
from lm.model import LanguageModel
from lm.positions import sinusoidal_table
from lm.presets import preset
from pipelines.cli.escapes import visible
from pipelines.figures import FIGURES
from pipelines.figures.architecture import stages
from pipelines.figures.canvas import SMALL, save_figure
from pipelines.figures.cross_entropy import counted_parts, draw_cross_entropy
from pipelines.figures.merges import draw_merges, merge_steps
from pipelines.figures.next_tokens import counted_steps, draw_next_tokens
from pipelines.figures.temperature import draw_temperatures, probabilities
from pipelines.reporting.svg import SERIES, VARIABLES
from tests.loaded_runs import variant
from tokenizer import Tokenizer


@pytest.fixture(scope="module")
def drawn():
    """Return every figure, drawn without a run."""
    return {name: entry.draw() for name, entry in FIGURES.items()}


def texts_of(figure):
    """Return the texts that are drawn; tick labels only for ticks in view."""
    found = [*figure.texts, *(text for legend in figure.legends for text in legend.get_texts())]
    for axes in figure.axes:
        found += [*(text for text in axes.get_children() if isinstance(text, Text))]
        if axes.axison:
            found += [axes.xaxis.label, axes.yaxis.label]
            for axis, place in ((axes.xaxis, 0), (axes.yaxis, 1)):
                low, high = sorted(axis.get_view_interval())
                found += [text for text in axis.get_ticklabels() if low <= text.get_position()[place] <= high]
    return [text for text in found if text.get_visible() and text.get_text().strip()]


def printed(axes):
    """Return the texts inside axes as numbers, row by row."""
    return np.array([float(text.get_text().replace("−", "-").replace("∞", "inf")) for text in axes.texts])


def bars(axes):
    return [patch for patch in axes.patches if isinstance(patch, Rectangle)]


@pytest.mark.parametrize("name", FIGURES)
def test_all_texts_are_large_inside_the_figure_and_apart(drawn, name):
    figure = drawn[name]
    FigureCanvasAgg(figure).draw()
    width, height = figure.canvas.get_width_height()
    boxes = []
    for text in texts_of(figure):
        box = text.get_window_extent()
        assert text.get_fontsize() >= SMALL, text
        assert box.x0 > -1 and box.y0 > -1 and box.x1 < width + 1 and box.y1 < height + 1, text
        boxes.append((box.padded(-1), text))
    assert len(boxes) > 3
    for (a, first), (b, second) in combinations(boxes, 2):
        assert not a.overlaps(b), (first, second)


# Machado et al. 2009: linear RGB as seen by people who lack one kind of cone.
SIGHTS = {
    "all cones": np.eye(3),
    "without red cones": [[0.152, 1.053, -0.205], [0.115, 0.786, 0.099], [-0.004, -0.048, 1.052]],
    "without green cones": [[0.367, 0.861, -0.228], [0.280, 0.673, 0.047], [-0.012, 0.043, 0.969]],
    "without blue cones": [[1.256, -0.077, -0.179], [-0.078, 0.931, 0.148], [0.005, 0.691, 0.304]],
}


@pytest.mark.parametrize("sight", SIGHTS)
def test_two_fills_differ_for_people_with_any_colour_vision(sight):
    blue, ochre = (np.array(SIGHTS[sight]) @ np.array(to_rgb(SERIES[i])) ** 2.2 for i in (5, 4))
    assert np.abs(blue - ochre).max() > 0.25


@pytest.mark.parametrize("name", FIGURES)
def test_figures_use_the_palette_and_hatch_the_second_fill(drawn, name):
    known = {*VARIABLES, "#ffffff", "#000000"}
    for axes in drawn[name].axes:
        if axes.get_label() == "<colorbar>":
            continue
        for patch in axes.patches:
            colours = {to_hex(patch.get_edgecolor())} | ({to_hex(patch.get_facecolor())} if patch.get_fill() else set())
            assert colours <= known, patch
            assert (to_hex(patch.get_facecolor()) == SERIES[4]) == bool(patch.get_hatch()), patch
        assert {to_hex(line.get_color()) for line in axes.lines} <= known


@pytest.mark.parametrize("name", FIGURES)
def test_every_figure_is_written_in_both_formats(drawn, tmp_path, name):
    svg, png = save_figure(drawn[name], tmp_path, name)
    assert (svg.name, png.name) == (f"{name}.svg", f"{name}.png")
    assert b"<svg" in svg.read_bytes() and png.read_bytes().startswith(b"\x89PNG")


def test_a_full_disk_keeps_the_figure_of_before_and_is_named(drawn, tmp_path):
    """A limit on file sizes makes writing fail, as on a full disk."""
    for path in save_figure(drawn["masks"], tmp_path / "new", "masks"):
        path.write_text("before")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(OSError, match=r"File too large: '.*/new/masks\.svg'"):
            save_figure(drawn["masks"], tmp_path / "new", "masks")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert {path.name: path.read_text() for path in (tmp_path / "new").iterdir()} == {
        "masks.svg": "before",
        "masks.png": "before",
    }


def test_the_verb_writes_the_same_files_each_time_and_prints_captions(tmp_path, in_process):
    for folder in ("one", "two"):
        done = in_process("figures", "merges", "temperature", "--out", str(tmp_path / folder))
        assert done.returncode == 0, done.stderr
        assert f"merges.png: {FIGURES['merges'].caption}\n" in done.stdout
    names = [f"{name}.{suffix}" for name in ("merges", "temperature") for suffix in ("png", "svg")]
    assert sorted(path.name for path in (tmp_path / "one").iterdir()) == names
    assert all((tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes() for name in names)


def test_the_page_of_figures_names_all_of_them():
    page = (Path(__file__).parents[2] / "docs" / "figures.md").read_text(encoding="utf-8")
    assert [name for name in FIGURES if f"`{name}`" not in page] == []


def test_an_unknown_figure_suggests_the_nearest_and_writes_nothing(tmp_path, in_process):
    done = in_process("figures", "mask", "--out", str(tmp_path / "out"))
    assert done.returncode == 2 and "did you mean 'masks'" in done.stderr
    assert not (tmp_path / "out").exists()


def test_rows_of_the_heat_map_are_positions(drawn):
    [image] = drawn["positions"].axes[0].get_images()
    assert np.array_equal(image.get_array(), sinusoidal_table(64, 64).numpy())
    assert drawn["positions"].axes[0].get_ylabel() == "position"


def test_shares_of_parameters_are_those_that_params_prints(drawn, capsys):
    assert bytelm.params("gpt2")["parameters"]["total"] == 124_439_808
    table = parameter_table(preset("gpt2"))
    widths = {
        text.get_text(): bar.get_width()
        for text, bar in zip(
            drawn["parameters"].axes[0].get_yticklabels(), bars(drawn["parameters"].axes[0]), strict=True
        )
    }
    assert sum(widths.values()) == pytest.approx(1.0)
    with bytelm.show():
        bytelm.params("gpt2")
    shown = capsys.readouterr().out
    for name, share in widths.items():
        assert share == table[name] / table["total"]
        [label] = [
            text.get_text() for text in drawn["parameters"].axes[0].texts if f"{table[name]:,} " in text.get_text()
        ]
        assert re.search(rf"{name} +{table[name]:,} +{share * 100:.1f} %", shown)
        assert label == f"{table[name]:,} ({share * 100:.1f} %)"


SHAPE = {"vocab_size": 50, "context_length": 16, "layers": 2, "width": 32, "heads": 4, "mlp_width": 48}
SIZES = {"B": 3, "T": 5, "S": 7}
MODELS = [
    {"positions": "learned"},
    {"mlp_norm": False},
    {"kv_heads": 2, "norm": "rmsnorm", "bias": False, "tied_head": False, "activation": "swiglu"},
    {"architecture": "encoder", "embedding_norm": True, "positions": "learned", "token_types": 2},
    {"architecture": "encoder-decoder", "positions": "sinusoidal", "decoder_layers": 1},
]


@pytest.mark.parametrize("position", ["pre", "post", "branch", "sandwich"])
@pytest.mark.parametrize("options", MODELS)
def test_stages_are_the_modules_of_the_model_in_the_order_they_run(options, position):
    config = ModelConfig(**SHAPE, norm_position=position, **options)
    model, ran = LanguageModel(config, seed=0).eval(), []

    def listen(kind, module):
        module.register_forward_hook(lambda _, inputs, output: ran.append((kind, tuple(output.shape))))

    both = config.architecture == "encoder-decoder"
    stack = model.decoder if both else model.stack
    block = stack.blocks[-1]  # the first may lack a norm
    for name, module in block.named_modules():
        if isinstance(module, LayerNorm) or type(module).__name__ == "RMSNorm":
            listen("norm", module)
        elif name in ("attention.output", "cross_attention.output", "mlp"):
            listen({"attention.output": "mixer", "cross_attention.output": "cross"}.get(name, name), module)
    ids = torch.zeros(SIZES["B"], SIZES["T"], dtype=torch.int64)
    source = (torch.zeros(SIZES["B"], SIZES["S"], dtype=torch.int64),) if both else ()
    with torch.no_grad():
        hidden = model(ids, *source)
        logits = model.logits(hidden)
    expected = stages(config, stacks(config)[-1])

    def shape(stage):
        return tuple(SIZES.get(axis) or int(axis.replace(",", "")) for axis in stage.shape.strip("()").split(", "))

    assert [(stage.kind, shape(stage)) for stage in expected if stage.in_block and stage.kind != "add"] == ran
    assert shape(expected[-1]) == tuple(logits.shape)
    assert sum(stage.kind == "add" for stage in expected) == len(block.places._fields) - 2 + both
    assert any(stage.name.startswith("final") for stage in expected) == (type(stack.final_norm).__name__ != "Identity")


def test_every_assembly_is_drawn_with_both_norm_positions(drawn):
    for name, sublayers in (("decoder", 2), ("encoder", 2), ("encoder-decoder", 5)):
        titles = [axes.get_title() for axes in drawn[name].axes]
        assert titles == ["pre-norm", "post-norm"]
        for axes in drawn[name].axes:
            assert sum(text.get_text() == "+" for text in axes.texts) == sublayers
    with pytest.raises(ValueError, match=r"model\.residual is 'parallel', but the drawing is for 'sequential'"):
        FIGURES["decoder"].draw(model=preset("pythia-70m"))


def test_printed_weights_times_printed_values_are_the_printed_output(drawn):
    queries, keys, values, scores, weights, output = (printed(axes) for axes in drawn["attention"].axes)
    weights, values, output = weights.reshape(3, 3), values.reshape(3, 2), output.reshape(3, 2)
    assert weights.sum(axis=1) == pytest.approx([1.0] * 3, abs=0.011)
    assert np.abs(weights @ values - output).max() <= 0.005 * (np.abs(values).sum(axis=0).max() + 1)
    raw = queries.reshape(3, 2) @ keys.reshape(3, 2).T / math.sqrt(2)
    assert np.abs(np.tril(raw) - np.tril(np.where(np.isinf(scores), 0, scores).reshape(3, 3))).max() <= 0.005
    assert np.isneginf(scores.reshape(3, 3)[np.triu_indices(3, 1)]).all()


@pytest.mark.parametrize("word", [" newest", " aaaaa", " lowest", "q"])
def test_the_merges_of_a_word_end_with_its_tokens(word):
    tok = Tokenizer.train(
        ["low low lower newest newest newest widest aaaa aaaa aaa"], vocab_size=268, special_tokens=[]
    )
    steps = merge_steps(tok, word.encode())
    assert [tok.decode_bytes([i]) for i in tok.encode(word)] == steps[-1][1]
    ranks = [tok.merges.index(pair) for pair, _ in steps[1:]]
    assert ranks == sorted(set(ranks))  # each merge once, in the order of training
    assert all(b"".join(tokens) == word.encode() for _, tokens in steps)


def test_each_row_of_the_merges_is_as_wide_as_the_word(drawn):
    rows = {}
    for bar in bars(drawn["merges"].axes[0]):
        rows.setdefault(round(bar.get_y()), []).append(round(bar.get_width() + 0.08))
    assert {sum(widths) for widths in rows.values()} == {len(" newest")}
    assert [len(widths) for widths in rows.values()] == sorted((len(w) for w in rows.values()), reverse=True)
    with pytest.raises(ValueError, match="no merges of bytes"):
        draw_merges(run=SimpleNamespace(tokenizer=Tokenizer.train(["a b"], vocab_size=256, special_tokens=[])))


def test_the_word_of_the_merges_is_a_pretoken_of_the_normalized_text():
    tok = Tokenizer.train(["low-low-low lower " * 5], vocab_size=264, special_tokens=[], pattern="lowercase:cl100k")
    run = SimpleNamespace(tokenizer=tok)
    axes = draw_merges("LOW-Low-LOW", run).axes[0]
    assert [text.get_text() for text in axes.texts if round(text.get_position()[1]) == 0] == ["bytes", *"-low"]
    for text in (" ", "?"):
        with pytest.raises(ValueError, match=r"no merges of bytes in the text: give a run .* or a longer text"):
            draw_merges(text, run)


def test_steps_of_the_count_model_are_relative_frequencies_and_their_product_is_printed():
    steps = counted_steps("a b a c a b")
    assert [step.probabilities for step in steps[:2]] == [{"b": 2 / 3, "c": 1 / 3}, {"a": 1.0}]
    figure = draw_next_tokens("a b a c a b")
    assert [axes.get_title() for axes in figure.axes][:2] == ["P(next | a)", "P(next | a b)"]
    assert "= 0.15\n" in figure.get_supxlabel()  # 2/3 * 1 * 1/3 * 1 * 2/3 = 4/27
    assert f"{-math.log2(4 / 27):.2f} bits" in figure.get_supxlabel()
    with pytest.raises(ValueError, match="fewer than two words"):
        draw_next_tokens("one")


def test_the_steps_of_a_run_are_its_scores(trained_gpt):
    text = "the next number is in the list"
    run = bytelm.load_run(trained_gpt)
    figure = draw_next_tokens(text, run)
    probabilities = run.logits(text).softmax(dim=-1)
    ids = run.ids(text)
    for position, axes in enumerate(figure.axes[:6]):
        [marked] = [bar for bar in bars(axes) if bar.get_hatch()]
        assert marked.get_width() == pytest.approx(probabilities[position, ids[position + 1]].item(), abs=1e-6)
        [arrow] = [i for i, text in enumerate(axes.texts) if text.get_text().endswith("←")]  # tiny bars have no hatch
        assert bars(axes)[arrow] is marked
    targets = probabilities[torch.arange(6), ids[1:7]]
    assert f"−log₂ P = {-targets.log2().sum().item():.2f} bits" in figure.get_supxlabel()


@pytest.fixture
def unigram(trained_gpt):
    """Return a run whose tokens "a" and "▁a" give the same text at the start of a text."""
    run = bytelm.load_run(trained_gpt)
    tok = Tokenizer.train(["a ab ba aa b bab"] * 9, vocab_size=6, kind="unigram", special_tokens=[])
    model = LanguageModel(replace(run.config.model, vocab_size=tok.vocab_size), seed=0).eval()
    around = replace(run.around, before=(), special=tok.special_tokens)
    return variant(run, model=model, config=replace(run.config, model=model.config), tokenizer=tok, around=around)


def test_tokens_of_the_same_text_have_bars_of_their_own(unigram):
    text = "ab a ba"
    probabilities, ids = unigram.logits(text).double().softmax(dim=-1), unigram.ids(text)
    for position, axes in enumerate(draw_next_tokens(text, unigram).axes[: len(ids) - 1]):
        likely = probabilities[position].topk(4).indices.tolist()
        tokens = likely if ids[position + 1] in likely else [*likely[:3], ids[position + 1]]
        assert [bar.get_width() for bar in bars(axes)] == pytest.approx(probabilities[position, tokens].tolist())
        labels = [label.get_text() for label in axes.get_yticklabels()]
        assert labels == [visible(unigram.tokenizer.token_bytes(token)) for token in tokens]
    names = [label.get_text() for label in draw_temperatures(text, unigram).axes[0].get_yticklabels()]
    assert len(names) == len(set(names)) == unigram.tokenizer.vocab_size


def test_entropy_plus_divergence_is_the_cross_entropy_at_the_same_positions(drawn):
    axes = drawn["cross-entropy"].axes[0]
    rows = counted_parts()
    widths = [bar.get_width() for bar in bars(axes)]
    assert widths == pytest.approx([*(row.entropy for row in rows), *(row.divergence for row in rows)])
    sums = [text.get_text() for text in axes.texts if "=" in text.get_text()]
    for row, text in zip(rows, sums, strict=True):
        divergence, total = re.match(r"\+ (\S+) = (\S+)\n", text).groups()
        assert float(total) == pytest.approx(round(row.entropy, 4) + float(divergence), abs=1e-9)
        assert row.loss == pytest.approx(float(total), abs=0.1)  # the loss differs from the sum by chance only
    assert sorted(row.divergence for row in rows) == [row.divergence for row in reversed(rows)]


def test_temperature_one_is_the_softmax_and_others_are_powers_of_it(drawn):
    cold, one, hot = ([bar.get_width() for bar in bars(axes)] for axes in drawn["temperature"].axes)
    assert one == pytest.approx(torch.tensor([3.0, 2.0, 1.5, 0.0, -1.0]).softmax(dim=0).tolist())
    for values, power in ((cold, 2.0), (hot, 0.5)):
        powers = np.array(one) ** power
        assert values == pytest.approx(powers / powers.sum())
    entropies = [float(axes.get_title().split()[-2]) for axes in drawn["temperature"].axes]
    assert entropies == sorted(entropies)


@pytest.mark.parametrize("seed", range(20))
def test_the_rest_of_a_sharp_distribution_has_the_sum_of_its_probabilities(seed):
    logits = torch.randn(300, generator=torch.Generator().manual_seed(seed))
    logits[:3] += 20
    *_, others = probabilities(logits, 0.5, 3)[0]
    exact = sum(math.exp(2 * value) for value in logits[3:].tolist())
    exact /= exact + sum(math.exp(2 * value) for value in logits[:3].tolist())
    assert others == pytest.approx(exact, rel=1e-9)


def test_all_tokens_of_a_run_have_a_bar_or_share_one(trained_gpt):
    figure = draw_temperatures("the", bytelm.load_run(trained_gpt))
    for axes in figure.axes:
        assert sum(bar.get_width() for bar in bars(axes)) == pytest.approx(1.0)
        assert [label.get_text() for label in axes.get_yticklabels()][-1] == "all others"


def test_a_figure_that_a_model_does_not_suit_is_drawn_as_an_example_among_all(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr("pipelines.verbs.figures.FIGURES", {"decoder": FIGURES["decoder"]})
    with bytelm.show():
        assert len(bytelm.figures(out=tmp_path, model="bert-base")) == 2
    said = "decoder is drawn as an example: the architecture of the model is encoder, not decoder"
    assert said in capsys.readouterr().out


def test_a_named_figure_that_a_run_does_not_suit_is_refused(trained_bert, tmp_path):
    for name in ("next-tokens", "temperature"):
        with pytest.raises(ValueError, match="is not a decoder"):
            bytelm.figures([name], run=trained_bert, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ValueError, match="no measured divergence from a synthetic source"):
        draw_cross_entropy(bytelm.load_run(trained_bert))
