"""The page in a browser shows the numbers of bytelm, and works by pointer, keyboard and screen reader.

`make test-page` runs these tests with playwright and an installed Chromium.
"""

import re
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import bytelm
from lm.decoding.generation import generate
from lm.model import LanguageModel
from pipelines.generation.text_generation import filled_masks
from pipelines.run.folder import Run
from pipelines.scoring.display import LEVELS
from pipelines.serving.opening import opening_of
from tests.loaded_runs import variant
from tests.serving.pages import TOUCH, WIDE, bars_of, check_looks, choose, facts_of, serving, tokens_of
from tokenizer import Tokenizer

TEXT = "import os\n\ndef main(naïve):\n\treturn 0  # 漢 🙂 <|endoftext|>\n"
HOSTILE = "<img src=x onerror=alert(1)>"
STRIP = "#strips .strip"


@pytest.fixture(scope="module")
def runs(trained_gpt, trained_bert, trained_t5, text_folder):
    """Return runs of all architectures, and one with another tokenizer, random weights and a hostile name."""
    folders = {"gpt": trained_gpt, "bert": trained_bert, "t5": trained_t5}
    loaded = {name: bytelm.load_run(folder, device="cpu") for name, folder in folders.items()}
    run = loaded["gpt"]
    texts = [path.read_text() for path in sorted(text_folder.iterdir())[:5]]
    config = replace(run.config, model=replace(run.config.model, vocab_size=400))
    tok = Tokenizer.train(texts, vocab_size=400)
    loaded[HOSTILE] = variant(run, model=LanguageModel(config.model, seed=1).eval(), config=config, tokenizer=tok)
    return loaded


@pytest.fixture(scope="module")
def openings(trained_gpt, trained_bert, trained_t5):
    folders = {"gpt": trained_gpt, "bert": trained_bert, "t5": trained_t5}
    return {name: opening_of(Run(folder)) for name, folder in folders.items()}


@pytest.fixture(scope="module")
def address(runs, openings):
    with serving(runs, openings) as (address, _):
        yield address


@pytest.fixture
def visit(open_page, address):
    """Return visit(address, **options), which opens the page and waits for its first tokens."""

    def visit(address=address, **options):
        page = open_page(address, **options)
        page.wait_for_selector(f"{STRIP} .token")
        return page

    return visit


@pytest.fixture
def page(visit):
    return visit()


def read(page, text, run="gpt"):
    """Enter a text on the page and wait for its scores."""
    page.select_option("#run", run)
    page.fill("#text", text)
    page.wait_for_function("([strip, text]) => document.querySelector(strip)?.textContent === text", arg=[STRIP, text])


def level(bits):
    return f"level-{sum(bits >= each for each in LEVELS)}"


def test_a_text_is_coloured_by_the_levels_of_bytelm_score(page, runs):
    text = "import os\n\ndef main(folder):\n    return 0\n"
    read(page, text)
    expected = bytelm.score_text(runs["gpt"], text)
    got = tokens_of(page, STRIP)
    assert [each[0] for each in got] == [piece.decode() for piece in expected.pieces]
    for (_, classes, label), bits, rank in zip(got, expected.surprisal_bits, expected.predictions.ranks, strict=True):
        if min(abs(bits - each) for each in LEVELS) > 1e-3:
            assert level(bits) in classes.split()
        assert f"{bits:,.2f}".rstrip("0").rstrip(".") in label or f"{bits:.1f}" in label
        assert f"rank {rank:,}" in label
    legend = page.locator("#legend .token").all_text_contents()
    assert legend == ["0–1", "1–2", "2–4", "4–8", "8–12", "12+"]
    assert f"{expected.bits_per_byte:.3f}".rstrip("0") in page.locator(".totals").text_content()


def test_levels_differ_by_their_bars_and_not_only_by_colour(page):
    heights = page.locator("#legend .token").evaluate_all(
        "spans => spans.map(span => Number(getComputedStyle(span).getPropertyValue('--height') || 0))"
    )
    assert heights == sorted(set(heights))


def test_a_token_under_the_pointer_shows_its_numbers_and_ten_candidates(page, runs):
    text = "import os\nimport sys\n"
    read(page, text)
    expected = bytelm.score_text(runs["gpt"], text, top=10)
    made = expected.predictions
    page.locator(f"{STRIP} .token").nth(3).hover()
    facts = facts_of(page, "#read-detail")
    assert facts["surprisal"] == f"{expected.surprisal_bits[3]:.2f}".rstrip("0").rstrip(".") + " bits"
    assert facts["entropy"] == f"{expected.entropy_bits[3]:.2f}".rstrip("0").rstrip(".") + " bits"
    assert facts["rank"] == f"{made.ranks[3]:,}"
    assert facts["id"] == str(expected.ids[3])
    shares = [float(share.removesuffix(" %")) for _, share in bars_of(page, "#read-detail")]
    np.testing.assert_allclose(shares, 100 * np.exp(made.top_log_probabilities[3]), atol=0.06)


def test_typing_key_by_key_ends_with_the_scores_of_the_text(page, runs):
    read(page, "x")
    text = "def f(x):\n    return x"
    page.fill("#text", "")
    page.locator("#text").press_sequentially(text, delay=15)
    page.wait_for_function("([strip, text]) => document.querySelector(strip)?.textContent === text", arg=[STRIP, text])
    expected = bytelm.score_text(runs["gpt"], text)
    labels = [label for *_, label in tokens_of(page, STRIP)]
    for label, rank in zip(labels, expected.predictions.ranks, strict=True):
        assert f"rank {rank:,}" in label


def test_a_late_answer_to_an_older_text_is_dropped(page):
    read(page, "start")
    held = []
    page.route("**/api/score", lambda route: held.append(route))
    page.fill("#text", "older text")
    page.wait_for_timeout(400)
    page.fill("#text", "newer text")
    page.wait_for_timeout(400)
    assert len(held) == 2
    held[1].continue_()
    page.wait_for_function("strip => document.querySelector(strip)?.textContent === 'newer text'", arg=STRIP)
    held[0].continue_()
    page.wait_for_timeout(400)
    assert page.locator(STRIP).text_content() == "newer text"


def test_white_space_is_kept_and_marked(page):
    read(page, "a  b\t\tc\n\n  d")
    assert page.locator(f"{STRIP} .newline").count() == 2
    assert page.locator(f"{STRIP} .tab").count() == 2
    mark = "span => getComputedStyle(span, '::before').content"
    assert page.locator(f"{STRIP} .space").first.evaluate(mark) == '"·"'
    box = page.locator(STRIP).bounding_box()
    assert box["height"] > 3 * 30  # three lines


def test_markup_in_text_names_and_tokens_stays_text(visit, runs):
    page = visit()
    read(page, HOSTILE * 2, HOSTILE)
    assert page.locator("img").count() == 0
    assert page.locator("#run option:checked").text_content() == HOSTILE
    page.select_option("#other", "gpt")
    page.wait_for_selector("#strips h3")
    assert page.locator("#strips h3").first.text_content() == HOSTILE
    page.select_option("#as", "difference")
    page.wait_for_selector(".first-1, .first-2, .second-1, .second-2")
    page.locator(f"{STRIP} .token").nth(2).hover()
    choose(page, "write")
    page.fill("#prompt", HOSTILE)
    page.fill("#max_tokens", "3")
    page.click("#go")
    page.wait_for_function("() => document.querySelector('#go').textContent === 'Write'")
    assert HOSTILE in page.locator("#written").text_content()
    assert page.locator("img").count() == 0


def test_invisible_characters_are_shown_as_escapes(page):
    page.fill("#text", "a\u202eb\u00adc\x01d")
    page.wait_for_function("strip => document.querySelector(strip).textContent.endsWith('d')", arg=STRIP)
    shown = page.locator(STRIP).text_content()
    assert shown.isprintable()
    assert "\\u{1}" in shown


def test_the_keyboard_reaches_every_token(page):
    text = "import os\nimport sys\nimport re\n"
    read(page, text)
    page.locator("#as, #other, #show").last.focus()
    for _ in range(10):
        page.keyboard.press("Tab")
        if page.evaluate("document.activeElement.getAttribute('role')") == "option":
            break
    active = "document.activeElement.id.split('-').at(-1)"
    assert page.evaluate(active) == "0"
    count = page.locator(f"{STRIP} .token").count()
    for key, place in (("ArrowRight", 1), ("ArrowRight", 2), ("ArrowLeft", 1), ("End", count - 1), ("Home", 0)):
        page.keyboard.press(key)
        assert page.evaluate(active) == str(place)
        shown = page.locator("#read-detail .facts dd").first.text_content()
        assert shown in page.evaluate("document.activeElement.getAttribute('aria-label')")
    page.keyboard.press("ArrowDown")
    assert int(page.evaluate(active)) > 2
    page.keyboard.press("ArrowUp")
    assert page.evaluate(active) == "0"
    page.keyboard.press("Enter")
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "true"
    page.locator(f"{STRIP} .token").nth(4).hover()  # the chosen token is held
    assert page.locator("#read-detail h3").text_content() == page.locator(f"{STRIP} .token").first.text_content()
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement.getAttribute('aria-selected')") == "false"


def test_editing_the_end_keeps_the_tokens_before_it(page):
    read(page, "import os\nimport sys\n")
    page.locator(f"{STRIP} .token").first.evaluate("span => { span.dataset.kept = 'yes' }")
    read(page, "import os\nimport sys\nimport re\n")
    assert page.locator(f"{STRIP} .token").first.get_attribute("data-kept") == "yes"


@pytest.mark.parametrize("kind", ["rank", "entropy", "pieces"])
def test_a_text_can_be_coloured_by_rank_entropy_or_token(kind, page, runs):
    text = "import os\nimport sys\n"
    read(page, text)
    page.select_option("#show", kind)
    expected = bytelm.score_text(runs["gpt"], text)
    steps = {"rank": (2, 11, 101, 1001), "entropy": LEVELS}
    values = {"rank": expected.predictions.ranks, "entropy": expected.entropy_bits}
    if kind == "pieces":
        names = ["odd" if i % 2 else "even" for i in range(len(expected.ids))]
    else:
        names = [f"level-{sum(value >= each for each in steps[kind])}" for value in values[kind]]
    page.wait_for_function(
        """([strip, names]) => names.every(
            (name, i) => document.querySelectorAll(`${strip} .token`)[i].classList.contains(name))""",
        arg=[STRIP, names],
    )
    assert [classes.split()[1] for _, classes, _ in tokens_of(page, STRIP)] == names


def test_two_runs_are_shown_side_by_side(page, runs):
    text = "import os\n"
    read(page, text)
    page.select_option("#other", HOSTILE)
    page.wait_for_selector("#strips .panel >> nth=1")
    strips = [page.locator(STRIP).nth(i).locator(".token").all_text_contents() for i in range(2)]
    for got, name in zip(strips, ("gpt", HOSTILE), strict=True):
        assert got == [piece.decode() for piece in bytelm.score_text(runs[name], text).pieces]
    page.locator(STRIP).first.locator(".token").nth(1).hover()
    assert page.locator("#read-detail .card").count() == 2
    assert page.locator(STRIP).nth(1).locator(".marked").count() == 1


def test_the_difference_of_two_tokenizers_is_exact_between_shared_ends_of_tokens(page, runs):
    text = "import os\n\ndef main(folder):\n    return 0\n"
    read(page, text)
    page.select_option("#other", HOSTILE)
    page.select_option("#as", "difference")
    page.wait_for_selector(".panel .note")
    scores = [bytelm.score_text(runs[name], text) for name in ("gpt", HOSTILE)]
    ends = [np.cumsum(score.byte_lengths) for score in scores]
    shared = np.intersect1d(*ends)
    totals = [
        np.cumsum(score.surprisal_bits)[np.searchsorted(end, shared)] for score, end in zip(scores, ends, strict=True)
    ]
    expected = np.diff(totals[1] - totals[0], prepend=0.0)
    got = tokens_of(page, STRIP)
    assert [len(each[0].encode()) for each in got] == np.diff(shared, prepend=0).tolist()
    for (_, classes, label), bits in zip(got, expected, strict=True):
        better = "gpt" if bits > 0 else HOSTILE
        assert f"{better} needs" in label or abs(bits) < 0.01
        if abs(abs(bits) - 1) > 1e-2 and abs(abs(bits) - 3) > 1e-2:
            strength = int(abs(bits) >= 1) + int(abs(bits) >= 3)
            kind = f"{'first' if bits > 0 else 'second'}-{strength}" if strength else "level-0"
            assert kind in classes.split()


CUTS = st.lists(st.binary(min_size=1, max_size=5), min_size=1, max_size=12)
SPELLINGS = st.lists(st.sampled_from(["a", "ß", "漢", "🙂", "\ufeff", "\n", "e\u0301"]), max_size=8).map("".join)


@settings(max_examples=40)
@given(text=SPELLINGS, noise=CUTS, cuts=st.sets(st.integers(1, 20)))
def test_bytes_of_tokens_are_text_or_hex(text, noise, cuts, shared_page):
    data = text.encode()
    edges = sorted({0, len(data), *(cut for cut in cuts if cut < len(data))})
    pieces = [data[a:b] for a, b in pairwise(edges)] + noise
    tokens = [{"hex": piece.hex()} for piece in pieces]
    groups = shared_page.evaluate("async tokens => (await import('/page/pieces.js')).grouped(tokens)", tokens)
    assert [group["from"] for group in groups] == [0, *(group["to"] for group in groups[:-1])]
    assert groups[-1]["to"] == len(pieces)
    for group in groups:
        for piece, parts in zip(pieces[group["from"] : group["to"]], group["parts"], strict=True):
            assert (
                b"".join(part["text"].encode() if "text" in part else bytes.fromhex(part["hex"]) for part in parts)
                == piece
            )
        whole = b"".join(pieces[group["from"] : group["to"]])
        if group["to"] - group["from"] > 1:
            decoded = whole.decode("utf-8", "surrogateescape")
            assert any(ord(character) > 127 and not 0xDC80 <= ord(character) <= 0xDCFF for character in decoded)
        else:
            decoded = whole.decode("utf-8", "surrogateescape")
            valid = "".join(c for c in decoded if not 0xDC80 <= ord(c) <= 0xDCFF)
            assert "".join(part.get("text", "") for part in group["parts"][0]) == valid


@pytest.fixture(scope="module")
def shared_page(browser, address):
    page = browser.new_page()
    page.goto(address)
    yield page
    page.close()


@settings(max_examples=40)
@given(data=st.data())
def test_aligned_stretches_add_up(shared_page, data):
    length = data.draw(st.integers(1, 12))

    def tokenization():
        edges = sorted({0, length, *data.draw(st.sets(st.integers(1, length)))})
        tokens = [{"hex": "61" * (b - a), "bits": float(b - a)} for a, b in pairwise(edges)]
        if data.draw(st.booleans()):
            tokens.append({"hex": "3c", "special": True, "bits": 0.5})
        return edges, tokens

    (first_edges, first), (second_edges, second) = tokenization(), tokenization()
    got = shared_page.evaluate("async each => (await import('/page/compare.js')).aligned(...each)", [first, second])
    shared = sorted({*first_edges} & {*second_edges})
    assert len(got) == len(shared) - 1
    assert [token for stretch in got for token in stretch["first"]] == first
    assert [token for stretch in got for token in stretch["second"]] == second
    difference = sum(token["bits"] for token in second) - sum(token["bits"] for token in first)
    assert sum(stretch["bits"] for stretch in got) == pytest.approx(difference)


def test_tokens_with_different_bytes_are_not_aligned(shared_page):
    """For example, a sentinel is a special token of only one tokenizer."""
    runs = [[{"hex": "3c", "special": True}, {"hex": "61"}], [{"hex": "3c"}, {"hex": "61"}]]
    assert shared_page.evaluate("async runs => (await import('/page/compare.js')).aligned(...runs)", runs) is None


def test_characters_spread_over_tokens_have_one_outline(page):
    page.fill("#text", "🙂")
    page.wait_for_selector(".shared")
    assert page.locator(".shared").count() == 1
    assert page.locator(".shared .hex").all_text_contents() == ["f0", "9f", "99", "82"]
    assert page.locator(".shared").get_attribute("title") == "🙂"


def write(page, prompt, **options):
    choose(page, "write")
    page.fill("#prompt", prompt)
    for name, value in options.items():
        page.fill(f"#{name}", str(value))
    page.click("#go")
    page.wait_for_function("() => document.querySelector('#go').textContent === 'Write'")


def test_the_page_writes_what_generate_writes_and_continues_from_a_candidate(page, runs):
    run = runs["gpt"]
    write(page, "import", temperature=0, max_tokens=6)
    prompt = [*run.around.before, *run.tokenizer.encode("import")]

    def expected(ids, tokens):
        made = generate(run.model, torch.tensor(ids), tokens, temperature=0, stop_ids=run.around.stops)
        return [run.tokenizer.token_bytes(i).decode() for i in made.tolist()]

    texts = expected(prompt, 6)
    assert [each[0] for each in tokens_of(page, "#written")] == texts
    page.locator("#written .token").nth(1).click()
    candidates = [text for text, _ in bars_of(page, "#write-detail")]
    page.locator("#write-detail .bars button").nth(3).click()
    page.wait_for_function("() => document.querySelectorAll('#written .token').length > 2")
    page.wait_for_function("() => document.querySelector('#go').textContent === 'Write'")
    assert page.evaluate("document.activeElement.id") == "go"  # the candidate is gone
    got = [each[0] for each in tokens_of(page, "#written")]
    assert got[:2] == [texts[0], candidates[3]]
    ids = [*prompt, *(i for text in got[:2] for i in [ids_of(run, text)])]
    assert got[2:] == expected(ids, 6)
    page.click("#clear")
    assert page.locator("#written .token").count() == 0


def test_by_default_the_page_writes_at_most_half_a_context(page, runs):
    run = runs["gpt"]
    write(page, "import", temperature=0)
    assert page.locator("#problem").is_hidden()
    assert page.get_attribute("#max_tokens", "placeholder") == str(run.config.model.context_length // 2)
    prompt = torch.tensor([*run.around.before, *run.tokenizer.encode("import")])
    tokens = run.config.model.context_length // 2
    expected = generate(run.model, prompt, tokens, temperature=0, stop_ids=run.around.stops)
    assert page.locator("#written .token").count() == len(expected)


def test_an_unused_id_is_not_a_candidate_to_continue_with(shared_page):
    script = """async candidates => {
        const { bars } = await import('/page/detail.js');
        const list = bars(candidates, { onChoose() {} });
        return [...list.children].map(item => item.querySelector('button') !== null);
    }"""
    assert shared_page.evaluate(script, [{"id": 1, "hex": "61", "p": 0.5}, {"id": 2, "hex": None, "p": 0.1}]) == [
        True,
        False,
    ]


def ids_of(run, text):
    """Return the id of the token with this text."""
    return next(i for i in range(run.tokenizer.vocab_size) if run.tokenizer.token_bytes(i) == text.encode())


def test_one_token_at_a_time_shows_its_candidates(page):
    choose(page, "write")
    page.fill("#temperature", "0")
    for count in (1, 2, 3):
        page.click("#one")
        page.wait_for_function("count => document.querySelectorAll('#written .token').length === count", arg=count)
        page.wait_for_function("() => !document.querySelector('#one').disabled")
        assert len(bars_of(page, "#write-detail")) == 10


def test_an_encoder_guesses_the_masked_words(page, runs):
    page.select_option("#run", "bert")
    choose(page, "fill")
    text = "import os\n"
    page.fill("#fill-text", text)
    page.wait_for_function("text => document.querySelector('#filled .strip').textContent === text", arg=text)
    pieces = [piece.decode() for piece in bytelm.score_text(runs["bert"], text).pieces]
    word = next(i for i, piece in enumerate(pieces) if piece.startswith(" "))
    page.locator("#filled .token").nth(word).click()
    page.wait_for_selector("#filled .masked")
    masked = [i for i, (_, classes, _) in enumerate(tokens_of(page, "#filled")) if "masked" in classes]
    assert masked == [i for i in range(word, len(pieces)) if "\n" not in pieces[i]]
    prompt = "".join("<|mask|>" if i in masked else piece for i, piece in enumerate(pieces))
    guesses = filled_masks(runs["bert"], prompt)[0]
    page.wait_for_selector("#fill-detail .bars li")
    shares = [float(share.removesuffix(" %")) for _, share in bars_of(page, "#fill-detail")]
    np.testing.assert_allclose(shares[:5], 100 * np.array(guesses["probabilities"]), atol=0.06)
    page.locator("#filled .token").nth(word).click()
    page.wait_for_function("() => !document.querySelector('#filled .masked')")


def test_a_click_on_a_token_of_an_older_text_masks_nothing(page):
    page.select_option("#run", "bert")
    choose(page, "fill")
    page.wait_for_selector("#filled .masked")
    held = []
    page.route("**/api/fill", lambda route: held.append(route))
    page.fill("#fill-text", "a")
    page.locator("#filled .token").last.click()
    page.wait_for_timeout(400)
    for route in held:
        route.continue_()
    page.wait_for_function("() => document.querySelector('#filled .strip').textContent === 'a'")
    assert page.locator("#problem").is_hidden() and page.locator("#filled .masked").count() == 0


def test_an_encoder_decoder_scores_a_target_and_shows_its_attention(page, runs):
    page.select_option("#run", "t5")
    page.fill("#text", "import <|sentinel_0|>\n")
    page.fill("#target", "<|sentinel_0|>os")
    page.wait_for_function("strip => document.querySelector(strip)?.textContent.includes('os')", arg=STRIP)
    expected = bytelm.score_text(runs["t5"], "import <|sentinel_0|>\n", target="<|sentinel_0|>os")
    assert [each[0] for each in tokens_of(page, STRIP)] == [piece.decode() for piece in expected.pieces]
    page.select_option("#show", "attention")
    page.select_option("#kind", "cross")
    page.wait_for_selector("#strips .panel >> nth=1")
    page.locator(STRIP).first.locator(".token").nth(1).hover()
    shares = [float(share.removesuffix(" %")) for _, share in bars_of(page, "#read-detail")]
    assert sum(shares) == pytest.approx(100, abs=2)


def test_runs_that_read_other_special_tokens_have_no_difference(open_page, runs):
    run = runs["t5"]
    with serving({"t5": run, "plain": variant(run, around=replace(run.around, special={}))}) as (address, _):
        page = open_page(address)
        page.fill("#text", "import <|sentinel_0|>\n")
        page.fill("#target", "<|sentinel_0|>os")
        page.select_option("#other", "plain")
        page.wait_for_selector("#strips .panel >> nth=1")
        page.select_option("#as", "difference")
        page.wait_for_selector("#problem:not([hidden])")
        assert page.locator("#problem").text_content().startswith("Only one of the runs reads a special token here")
        page.fill("#target", "os")
        page.wait_for_selector(f"{STRIP} .token")
        assert page.locator("#problem").is_hidden()


def test_the_page_says_that_a_source_was_cut(open_page, runs):
    config = replace(runs["t5"].config, model=replace(runs["t5"].config.model, positions="sinusoidal"))
    run = variant(runs["t5"], model=LanguageModel(config.model, seed=0).eval(), config=config)
    long, said = "import os\n" * 30, "The source is longer than the model reads: its end was cut off."
    with serving({"t5": run}) as (address, _):
        page = open_page(address)
        page.fill("#text", long)
        page.fill("#target", "os")
        page.wait_for_selector("#strips .note")
        assert page.locator("#strips .note").text_content() == said
        page.fill("#text", "import")
        page.wait_for_function("() => !document.querySelector('#strips .note')")
        for text in (long, "import"):
            write(page, text, max_tokens=2)
            assert (said in page.locator("#write-status").text_content()) == (text == long)


def test_attention_of_a_token_is_listed_and_tinted(page):
    read(page, "import os\nimport sys\n")
    page.select_option("#show", "attention")
    page.select_option("#head", "1")
    page.wait_for_function("strip => document.querySelector(strip).textContent.startsWith('<|endoftext|>')", arg=STRIP)
    page.locator(f"{STRIP} .token").nth(3).hover()
    shares = [float(share.removesuffix(" %")) for _, share in bars_of(page, "#read-detail")]
    assert sum(shares) == pytest.approx(100, abs=1)
    weights = page.locator(f"{STRIP} .token").evaluate_all(
        "spans => spans.map(s => Number(s.style.getPropertyValue('--weight')))"
    )
    assert max(weights) == 1.0
    assert set(weights[4:]) == {0.0}  # a decoder does not attend to later tokens
    page.locator(f"{STRIP} .token").first.click()
    page.select_option("#head", "0")
    page.wait_for_function("() => document.querySelector('#read-detail').textContent.includes('<|endoftext|>')")


def test_an_error_is_gone_with_its_text(page):
    page.fill("#text", "word " * 20_000)
    page.wait_for_selector("#problem:not([hidden])")
    page.fill("#text", "")
    page.wait_for_selector("#problem", state="hidden")


def test_the_access_token_moves_from_the_address_to_the_session_and_its_requests(visit, runs):
    with serving({"gpt": runs["gpt"]}, names=["other.example"]) as (address, access):
        page = visit(f"{address}#token={access.token}")
        assert page.url == address
        assert page.evaluate("sessionStorage.getItem('bytelm-token')") == access.token
        page.reload()
        page.wait_for_selector(f"{STRIP} .token")


def test_without_the_access_token_the_page_says_where_to_find_it(browser, runs):
    with serving({"gpt": runs["gpt"]}, names=["other.example"]) as (address, access):
        page = browser.new_page()
        page.goto(address)
        page.wait_for_selector("#problem:not([hidden])")
        assert "whole address that bytelm serve printed, with #token=TOKEN" in page.locator("#problem").text_content()
        page.evaluate("token => { location.hash = `token=${token}` }", access.token)
        page.wait_for_selector(f"{STRIP} .token")
        page.close()


def test_the_page_opens_with_validation_text_of_the_model_already_coloured(page, openings):
    text, _ = openings["gpt"]
    assert len(text) > 10
    assert page.input_value("#text") == page.locator(STRIP).text_content() == text
    assert page.locator(f"{STRIP} [class*=level-]").count() > 3
    page.select_option("#run", "bert")
    assert page.input_value("#text") == openings["bert"][0]
    page.fill("#text", "my text")
    page.select_option("#run", "gpt")
    assert page.input_value("#text") == "my text"


def test_an_encoder_decoder_opens_with_a_source_and_its_target(page, openings):
    page.select_option("#run", "t5")
    assert (page.input_value("#text"), page.input_value("#target")) == openings["t5"]
    page.wait_for_selector(f"{STRIP} [class*=level-]")


def test_filling_in_begins_with_a_masked_word_and_its_guesses(page):
    page.select_option("#run", "bert")
    choose(page, "fill")
    page.wait_for_selector("#filled .masked")
    page.wait_for_selector("#fill-detail .bars li")


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("import os\nimport sys\n", True),
        ("for (let i = 0; i < n; i++) {\n  sum += a[i];\n}", True),
        ("def main(folder):\n    return 0\n", True),
        ("It was a dark and stormy night; the rain fell (in torrents) - from noon: 100 % of it.", False),
        ("ROMEO:\nO, she doth teach the torches to burn bright;\n  It seems", False),
        ("She sat by the <|mask|> and <|mask|>.", False),
        ("", False),
    ],
)
def test_code_is_shown_in_a_monospaced_font(text, code, page):
    page.fill("#text", text)
    font = "element => getComputedStyle(element).fontFamily.includes('monospace')"
    assert page.locator("#text").evaluate(font) == code
    if text:
        page.wait_for_selector(f"{STRIP} .token")
        assert page.locator(STRIP).first.evaluate(font) == code


@pytest.mark.parametrize("text", ["שלום עולם ושלום", "سلام دنیا سلام"])
def test_right_to_left_text_reads_from_the_right(text, page):
    """These characters are spread over tokens, whose hexadecimal digits alone would run from left to right."""
    page.fill("#text", text)
    page.wait_for_selector(".shared >> nth=5")
    assert page.locator("#text").evaluate("area => getComputedStyle(area).direction") == "rtl"
    boxes = [page.locator(".shared").nth(i).bounding_box() for i in (0, 1, 2)]
    assert boxes[0]["x"] > boxes[1]["x"] > boxes[2]["x"]
    page.locator(f"{STRIP} .token").first.focus()
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("document.activeElement.id.split('-').at(-1)") == "1"


def test_attention_between_right_to_left_tokens_reads_from_the_right(page):
    """The start token, which has Latin letters, does not decide the direction."""
    page.fill("#text", "שלום עולם ושלום")
    page.wait_for_selector(".shared >> nth=2")
    page.select_option("#show", "attention")
    page.wait_for_selector(f"{STRIP} .shared .weight >> nth=2")
    tokens = page.locator(f"{STRIP} .weight")
    lefts = tokens.evaluate_all("tokens => tokens.slice(0, 6).map((token) => token.getBoundingClientRect().left)")
    assert tokens.first.inner_text() == "<|endoftext|>"
    assert all(first > second for first, second in pairwise(lefts))


def test_on_a_touch_screen_only_a_tap_opens_the_details_of_a_token(visit):
    page = visit(**TOUCH)
    shown = page.locator(".view:not([hidden]) .detail:not(.empty)")
    touched = "span => span.dispatchEvent(new PointerEvent('pointerover', { pointerType: 'touch', bubbles: true }))"
    page.locator(f"{STRIP} .token").nth(2).evaluate(touched)  # as when a finger scrolls the page
    page.select_option("#show", "attention")
    page.wait_for_selector(".weight")
    assert shown.count() == 0
    page.locator(f"{STRIP} .token").nth(2).tap()
    assert shown.count() == 1
    write(page, "import", max_tokens=3)
    assert shown.count() == 0
    page.locator("#written .token").nth(1).tap()
    assert shown.count() == 1


def test_on_a_touch_screen_the_words_are_of_touch_and_nothing_is_wider(visit):
    page = visit(**TOUCH)
    for run, views in (("gpt", ("read", "write")), ("bert", ("read", "fill"))):
        page.select_option("#run", run)
        for view in views:
            choose(page, view)
            page.wait_for_timeout(300)
            words = page.locator("main").inner_text().lower()
            assert "tap" in words and not re.search(r"\b(click|point at|press|hover)\b", words)
            assert page.evaluate("document.documentElement.scrollWidth") <= 360


def test_an_error_clears_the_result_of_the_text_before(page):
    page.fill("#text", "a b " * 9000)
    page.wait_for_selector("#problem:not([hidden])")
    assert page.locator(f"{STRIP} .token").count() == 0
    assert page.locator("#legend").is_hidden()
    page.fill("#text", "import os")
    page.wait_for_selector(f"{STRIP} .token")
    assert page.locator("#problem").is_hidden()
    page.select_option("#run", "bert")
    choose(page, "fill")
    page.wait_for_selector("#filled .masked")
    page.fill("#fill-text", "a b " * 900)
    page.wait_for_selector("#problem:not([hidden])")
    assert page.locator("#filled .token").count() == 0


def test_errors_of_the_server_are_shown(page):
    choose(page, "write")
    page.fill("#max_tokens", "99")
    page.click("#go")
    page.wait_for_selector("#problem:not([hidden])")
    assert page.locator("#problem").text_content().startswith("“Tokens” is 99, but must be from 1 to ")
    assert page.locator("#write-status").text_content() == ""


LOOKS = [f"level-{i}" for i in range(6)] + ["first-1", "first-2", "second-1", "second-2", "odd", "even", "unscored"]


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_on_every_tint_has_the_contrast_that_wcag_requires(scheme, visit):
    """axe cannot judge text on gradients, and tokens have a gradient as background."""
    page = visit(color_scheme=scheme)
    colours = page.evaluate(
        """looks => looks.map(look => {
            const span = Object.assign(document.createElement('span'), { className: `token ${look}` });
            const tint = document.createElement('span');
            document.querySelector('#strips').append(span, tint);
            tint.style.color = getComputedStyle(span).getPropertyValue('--tint');
            const paper = getComputedStyle(document.body).backgroundColor;
            const colours = [getComputedStyle(span).color, getComputedStyle(tint).color];
            span.remove(); tint.remove();
            return colours.map(colour => colour === 'rgba(0, 0, 0, 0)' ? paper : colour);
        })""",
        LOOKS,
    )
    assert len({tint for _, tint in colours}) > 6
    ratios = {look: contrast(*pair) for look, pair in zip(LOOKS, colours, strict=True)}
    assert {look: ratio for look, ratio in ratios.items() if ratio < 4.5} == {}


def contrast(*colours):
    """Return the contrast ratio of two colours such as rgb(0, 0, 0), as WCAG 2.2 defines it."""
    low, high = sorted(map(luminance, colours))
    return (high + 0.05) / (low + 0.05)


def luminance(colour):
    red, green, blue = (int(part) / 255 for part in re.findall(r"\d+", colour)[:3])
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in (red, green, blue)]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, TOUCH["viewport"]], ids=["wide", "phone"])
def test_axe_finds_nothing_and_nothing_is_wider_than_the_screen(size, scheme, visit):
    page = visit(viewport=size, color_scheme=scheme)
    check = partial(check_looks, page)
    check("the page at first")
    page.fill("#text", TEXT)
    page.wait_for_selector(".shared")
    page.locator(f"{STRIP} .token").nth(3).click()
    check("a text")
    for kind in ("rank", "entropy", "pieces", "attention"):
        page.select_option("#show", kind)
        page.wait_for_timeout(400)
        check(kind)
    page.select_option("#show", "surprisal")
    page.select_option("#other", HOSTILE)
    page.wait_for_selector("#strips .panel >> nth=1")
    page.locator(f"{STRIP} .token").nth(2).click()
    check("two runs")
    page.select_option("#as", "difference")
    page.wait_for_selector(".panel .note")
    page.locator(f"{STRIP} .token").nth(2).click()
    check("difference")
    write(page, "import", max_tokens=8)
    page.locator("#written .token").nth(2).click()
    check("writing")
    page.select_option("#run", "bert")
    check("an encoder")
    choose(page, "fill")
    page.fill("#fill-text", "import os\n")
    page.locator("#filled .token").nth(1).click()
    page.wait_for_selector("#filled .masked")
    check("masks")
    page.select_option("#run", "t5")
    check("an encoder-decoder")
