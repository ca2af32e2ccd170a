"""The view "Inside" of the page shows the pictures and tables that the server draws."""

import pytest

import bytelm
from pipelines.reporting.inspection_page import section_of
from tests.loaded_runs import induction_run
from tests.serving.pages import TOUCH, WIDE, check_looks, choose, serving

TEXT, CORRUPT = "c h m q d h", "c h r q d h"
HOSTILE = "<img src=x onerror=alert(1)>"


@pytest.fixture(scope="module")
def induction(gpt):
    return induction_run(gpt)


@pytest.fixture(scope="module")
def address(induction, trained_bert, trained_t5):
    runs = {
        name: bytelm.load_run(folder, device="cpu") for name, folder in (("bert", trained_bert), ("t5", trained_t5))
    }
    with serving({"induction": induction, **runs}) as (address, _):
        yield address


def look(page, instrument, **fields):
    """Choose an instrument, fill in its fields and wait for what it finds or for an error."""
    page.select_option("#instrument", instrument)
    for name, text in fields.items():
        page.fill(f"#inside [name={name}]", text)
    page.click("#look")
    page.wait_for_function("() => !document.querySelector('#inside-status').textContent")


@pytest.fixture
def page(open_page, address):
    page = open_page(address)
    choose(page, "inside")
    return page


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("lens", {}),
        ("attribution", {"target": "m", "against": "r"}),
        ("heads", {}),
        ("patching", {"corrupt": CORRUPT}),
    ],
)
def test_an_instrument_shows_its_pictures_and_tables(name, options, page, induction):
    look(page, name, **({"text": TEXT} if name != "heads" else {}), **options)
    assert page.locator("#problem").is_hidden()
    section = section_of(name, bytelm.inspect(induction, TEXT, instruments=name, **options)[name])
    (found,) = section["results"]
    tables = [part for part in found["parts"] if not isinstance(part, str)]
    titles = [plot.title for plot in found["plots"]] + [table.title for table in tables]
    assert page.locator("#found h3").all_text_contents() == titles
    assert page.locator("#found .note").first.text_content() == section["note"]
    sizes = "images => Promise.all(images.map((image) => image.decode().then(() => image.naturalWidth)))"
    drawn = page.locator("#found img").evaluate_all(sizes)
    assert len(drawn) == len(found["plots"]) and all(width > 300 for width in drawn)
    script = "rows => rows.map(row => [...row.children].map(cell => cell.textContent))"
    cells = page.locator("#found tbody tr").evaluate_all(script)
    assert cells == [[label, *row] for table in tables for label, row in table.rows]


def test_only_the_fields_of_the_chosen_instrument_are_shown_and_the_view_only_for_runs_that_have_some(page):
    def shown():
        return page.locator("#inside [data-field]:not([hidden])").evaluate_all("all => all.map(x => x.dataset.field)")

    assert shown() == ["text"]
    page.select_option("#instrument", "patching")
    assert shown() == ["text", "corrupt", "target", "against", "quick"]
    page.select_option("#run", "bert")
    assert page.locator("#instrument option").all_text_contents() == ["Logit lens", "Heads"]
    page.select_option("#run", "t5")
    assert page.locator("input[value=inside] + span").is_hidden() and page.locator("#read").is_visible()


def test_an_error_names_fields_as_the_page_does_and_clears_what_was_found(page):
    look(page, "attribution", text=TEXT)
    assert page.locator("#found img").count() == 1
    look(page, "attribution", target="c h m")
    said = page.locator("#problem").text_content()
    assert said.startswith("“Target” is 'c h m', which is")
    assert page.locator("#found > *").count() == 0
    look(page, "patching", text=TEXT, target="")
    assert page.locator("#problem").text_content() == "Patching needs a second prompt: give “Corrupt prompt”"
    name = page.evaluate("async () => (await import('/page/dom.js')).shownName('quick')")
    assert name == "Estimate from gradients"


def test_a_text_is_never_html(page):
    look(page, "lens", text=HOSTILE)
    assert page.locator("#problem").is_hidden() and page.locator("#found img[src=x]").count() == 0


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [WIDE, TOUCH["viewport"]], ids=["wide", "phone"])
def test_axe_finds_nothing(size, scheme, open_page, address):
    page = open_page(address, viewport=size, color_scheme=scheme)
    choose(page, "inside")
    look(page, "lens", text=TEXT)
    check_looks(page, "lens")
    look(page, "patching", corrupt=CORRUPT)
    check_looks(page, "patching")
