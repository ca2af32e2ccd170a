"""The site of docs/ holds every page, and its pages name code and tests that exist."""

import ast
import re
import runpy
import tomllib
from pathlib import Path
from types import SimpleNamespace

import pytest

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
builder = SimpleNamespace(**runpy.run_path(str(DOCS / "build_site.py")))
NAVIGATION = tomllib.loads((DOCS / "zensical.toml").read_text(encoding="utf-8"))["project"]["nav"]
NAMED = re.compile(r"((?:`\w+`(?:, | and )?)+) in \[[^\]]+\]\(([^)]+\.py)\)")


def prose(page):
    """Return a page without its blocks of code."""
    return re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(page):
    """Return the anchors of a page's headings."""
    headings = re.findall(r"^#+ (.*)$", prose(page), re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_the_navigation_holds_every_page_once():
    listed = builder.listed(NAVIGATION)
    assert len(listed) == len(set(listed))
    assert set(listed) == {builder.page_of(page.relative_to(ROOT).as_posix()) for page in PAGES}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_leads_to_a_file_and_a_heading(page):
    for link, anchor in re.findall(r"\]\(([^)#:\s]*)(?:#([^)\s]+))?\)", prose(page)):
        target = page.parent / link if link else page
        assert target.exists() or link == "report.html", link
        assert not anchor or anchor in anchors(target), f"{link}#{anchor}"


@pytest.mark.parametrize("page", sorted((DOCS / "ideas").glob("*.md")), ids=lambda page: page.stem)
def test_an_idea_names_a_function_and_a_test_that_exist(page):
    text, found = " ".join(prose(page).split()), set()
    for names, link in NAMED.findall(text):
        tree = ast.parse((page.parent / link).read_text(encoding="utf-8"))
        defined = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.ClassDef))}
        for name in re.findall(r"`(\w+)`", names):
            assert name in defined, f"{link} has no {name}"
            found.add(name)
    assert set(re.findall(r"`(test_\w+)`", text)) <= found
    assert any(name.startswith("test_") for name in found) and any(not name.startswith("test_") for name in found)


@pytest.mark.parametrize("page", sorted((DOCS / "ideas").glob("[!i]*.md")), ids=lambda page: page.stem)
def test_an_idea_has_a_formula_and_code_in_a_short_page(page):
    text = page.read_text(encoding="utf-8")
    assert "```math\n" in text and "```python\n" in text
    assert len(text.splitlines()) <= 60


def test_a_broken_link_and_a_script_of_another_host_are_faults(tmp_path):
    (tmp_path / "page.html").write_text(
        '<h1 id="top">Page</h1><a href="#top">up</a><a href="gone.html">gone</a><a href="page.html#gone">gone</a>'
        '<a href="https://example.org/">elsewhere</a><script src="https://example.org/x.js"></script>'
    )
    (tmp_path / "page.css").write_text('@import "//example.org/x.css"; a { background: url(picture.png) }')
    faults, foreign = builder.check(tmp_path)
    assert faults == {
        "page.html links to gone.html, which does not exist",
        "page.html links to page.html#gone, which does not exist",
        "page.html loads https://example.org/x.js",
        "page.css loads //example.org/x.css",
    }
    assert foreign == {"https://example.org/"}


@pytest.mark.slow
def test_the_site_builds_and_loads_nothing_from_elsewhere(tmp_path):
    pytest.importorskip("zensical", reason="pip install '.[docs]'")
    runpy.run_path(str(DOCS / "build_site.py"), run_name="__main__")
    site = ROOT / "build" / "docs" / "site"
    assert (site / "index.html").exists() and (site / "llms.txt").exists()
    assert "Return" in (site / "reference" / "tokenizer.html").read_text(encoding="utf-8")
