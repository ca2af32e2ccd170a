"""Build the site of these pages without a network: `make docs` writes build/docs/site.

The pages are this repository's Markdown files at their paths, so that their relative links hold. The site also has the
files that they link to, and a reference from the docstrings and the verbs' help. Zensical renders the pages. A last
check finds broken links, and pages that load anything from another host.
"""

import os
import re
import shutil
import subprocess
import sys
import tomllib
from html.parser import HTMLParser
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote, urlsplit

ROOT = Path(__file__).parents[1]
OUTPUT = ROOT / "build" / "docs"
REPORT = ROOT / "bytelm-demo" / "report.html"
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)
PICTURES = (".svg", ".png")
LM = ("", "mixers", "attention", "optim", "decoding", "metrics", "text_statistics", "introspection", "exchange")
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"  # sources have no place among the results


def main() -> None:
    """Write the pages, render them, and check the site. Exit with status 1 if a link is broken."""
    shutil.rmtree(OUTPUT, ignore_errors=True)
    pages, site = OUTPUT / "pages", OUTPUT / "site"
    config = tomllib.loads((ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8"))["project"]
    copy_pages(listed(config["nav"]), pages)
    reference = [{"Verbs": write_verbs(pages)}, *write_packages(pages)]
    render(reference)
    for page in listed(config["nav"]):
        shutil.copy(pages / page, site / page)  # for readers of llms.txt
    (site / "llms.txt").write_text(llms(config, pages), encoding="utf-8")
    if REPORT.exists():
        shutil.copy(REPORT, site / "docs" / "report.html")
    faults, foreign = check(site)
    (OUTPUT / "external-links.txt").write_text("".join(f"{link}\n" for link in sorted(foreign)), encoding="utf-8")
    size = sum(path.stat().st_size for path in site.rglob("*") if path.is_file())
    print(f"{site}: {len(list(site.rglob('*.html')))} pages, {size / 1e6:.1f} MB; {len(foreign)} links to other hosts")
    if faults:
        sys.exit("\n".join(sorted(faults)))


def listed(nav: list[dict[str, Any]]) -> list[str]:
    """Return the pages of the navigation in their order."""
    entries = [value for entry in nav for value in entry.values()]
    return [page for value in entries for page in (listed(value) if isinstance(value, list) else [value])]


def copy_pages(names: list[str], pages: Path) -> None:
    """Write the pages and, recursively, the files of the repository that they link to."""
    todo, done = [name if name != "index.md" else "README.md" for name in names], set()
    while todo:
        name = todo.pop()
        if name in done:
            continue
        done.add(name)
        source, target = ROOT / name, pages / page_of(name)
        target.parent.mkdir(parents=True, exist_ok=True)
        if source.suffix in PICTURES:
            shutil.copy(source, target)
        elif source.suffix == ".md":
            text, links = with_site_links(name, source.read_text(encoding="utf-8"))
            hidden = HIDDEN if not name.startswith("docs/") and "/" in name else ""
            target.write_text(hidden + with_mathml(text), encoding="utf-8")
            todo += links
        else:
            language = {".py": "python", ".json": "json"}.get(source.suffix, "text")
            code = source.read_text(encoding="utf-8")
            target.write_text(f"{HIDDEN}# {name}\n\n`````{language}\n{code}\n`````\n", encoding="utf-8")


def page_of(name: str) -> str:
    """Return the path of a repository file among the site's pages."""
    if name == "README.md":
        return "index.md"
    return name if name.endswith((".md", *PICTURES)) else f"{name}.md"


def with_site_links(name: str, text: str) -> tuple[str, list[str]]:
    """Return the text of the page `name` with links to the site's pages, and the files that it links to."""
    folder, links = (ROOT / name).parent, []

    def link(match: re.Match[str]) -> str:
        picture, words, address = match.groups()
        path, hash_sign, anchor = address.partition("#")
        if urlsplit(address).scheme or not path:
            return match[0]
        if folder / path == ROOT / "docs" / REPORT.name:
            return match[0] if REPORT.exists() else words
        file = Path(os.path.normpath(folder / path))
        if not file.is_file():
            raise SystemExit(f"{name}: {address}: no such file")
        links.append(file.relative_to(ROOT).as_posix())
        target = os.path.relpath(ROOT / page_of(links[-1]), folder)
        return f"{picture}[{words}]({target}{hash_sign}{anchor})"

    parts = FENCE.split(text)
    return "".join(part if index % 2 else LINK.sub(link, part) for index, part in enumerate(parts)), links


def with_mathml(text: str) -> str:
    """Return the text with its blocks of LaTeX as MathML, which browsers draw without a script."""

    def formula(match: re.Match[str]) -> str:
        from latex2mathml.converter import convert

        return f"<div>{convert(' '.join(match[1].split()), display='block')}</div>\n"

    return re.sub(r"^```math\n(.*?)^```\n", formula, text, flags=re.M | re.S)


def write_packages(pages: Path) -> list[dict[str, Any]]:
    """Write a page of docstrings for each package, and return their entries of the navigation."""
    entries = []
    for package in ("bytelm", "tokenizer", "corpora"):
        entries.append({package: write_reference(pages, package, public(import_module(package)))})
    for part in LM:
        package = f"lm.{part}".rstrip(".")
        folder = ROOT / package.replace(".", "/")
        modules = [f"{package}.{path.stem}" for path in sorted(folder.glob("[!_]*.py"))]
        entries.append({package: write_reference(pages, package, {module: module for module in modules})})
    return entries


def public(package: ModuleType) -> dict[str, str]:
    """Return the public classes and functions of a package, and where each is defined. Constants have no docstrings."""
    values = {f"{package.__name__}.{name}": getattr(package, name) for name in package.__all__}
    return {name: f"{v.__module__}.{v.__qualname__}" for name, v in values.items() if hasattr(v, "__qualname__")}


def write_reference(pages: Path, title: str, homes: dict[str, str]) -> str:
    """Write the docstrings of modules, classes and functions to a page, and return its path.

    `homes` has the place of the code for each heading.
    """
    first = (import_module(title).__doc__ or "").strip()
    page = pages / "reference" / f"{title}.md"
    page.parent.mkdir(parents=True, exist_ok=True)
    entries = [f"::: {home}\n    options:\n      heading: {heading}\n\n" for heading, home in homes.items()]
    page.write_text(f"# {title}\n\n{first}\n\n" + "".join(entries), encoding="utf-8")
    return page.relative_to(pages).as_posix()


def write_verbs(pages: Path) -> list[dict[str, str]]:
    """Write a page with the help of each verb, and return their entries of the navigation."""
    entries = []
    for path in sorted((ROOT / "pipelines" / "verbs").glob("[!_]*.py")):
        verb = path.stem.replace("_", "-")
        page = pages / "reference" / "verbs" / f"{verb}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f"# bytelm {verb}\n\n````text\n{help_of(verb)}````\n", encoding="utf-8")
        entries.append({verb: page.relative_to(pages).as_posix()})
    return entries


def help_of(*verb: str) -> str:
    """Return what `bytelm VERB --help-all` prints, followed by the help of its commands."""
    command = [sys.executable, "-m", "pipelines", *verb, "--help-all"]
    environment = {**os.environ, "COLUMNS": "84", "NO_COLOR": "1"}
    text = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment).stdout
    commands = re.match(r"usage: bytelm [\w-]+ \{([\w,-]+)\}", text)
    names = commands[1].split(",") if commands else []
    return "\n".join([text, *(help_of(*verb, name) for name in names)])


def render(reference: list[dict[str, Any]]) -> None:
    """Render the pages as a site whose navigation ends with the reference."""
    text = (ROOT / "docs" / "zensical.toml").read_text(encoding="utf-8")
    marker = '    { "Methods of the tokenizer" = "docs/tokenizer-methods.md" },\n'
    assert marker in text
    entries = "".join(f"    {toml(entry)},\n" for entry in reference)
    config = OUTPUT / "zensical.toml"
    config.write_text(text.replace(marker, marker + entries).replace("../build/docs/", ""), encoding="utf-8")
    config.write_text(config.read_text(encoding="utf-8").replace('paths = [".."]', 'paths = ["../.."]'))
    command = [sys.executable, "-m", "zensical", "build", "--strict", "--config-file", config]
    subprocess.run(command, check=True, cwd=OUTPUT)


def toml(entry: dict[str, Any]) -> str:
    """Return an entry of the navigation as an inline table."""
    ((title, value),) = entry.items()
    written = f"[{', '.join(map(toml, value))}]" if isinstance(value, list) else f'"{value}"'
    return f'{{ "{title}" = {written} }}'


def llms(config: dict[str, Any], pages: Path) -> str:
    """Return llms.txt: one line for each page, with its title and first sentence."""
    lines = [f"# {config['site_name']}", "", f"> {config['site_description']}."]
    for entry in config["nav"]:
        (heading,) = entry
        lines += ["", f"## {heading}", ""]
        for page in listed([entry]):
            paragraphs = (pages / page).read_text(encoding="utf-8").split("\n\n")
            title = next(part for part in paragraphs if part.startswith("# ")).removeprefix("# ")
            text = next(part for part in paragraphs if not part.startswith(("#", "!", "```", "|", "<", "---")))
            sentence = re.match(r".*?\.(?=\s|$)|.*", LINK.sub(r"\2", " ".join(text.split())))
            lines.append(f"- [{title}]({page}): {sentence[0] if sentence else ''}")
    return "\n".join(lines) + "\n"


class Page(HTMLParser):
    """The links, the loaded addresses and the anchors of an HTML page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.links: set[str] = set()
        self.loads: set[str] = set()
        self.anchors: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the addresses and the anchor of an element."""
        given = {name: value for name, value in attrs if value}
        self.anchors |= {given[name] for name in ("id", "name") if name in given}
        loads = tag == "link" and given.get("rel") not in ("canonical", "next", "prev")
        for name in ("href", "src"):
            if name in given:
                (self.loads if loads or name == "src" else self.links).add(given[name])


def check(site: Path) -> tuple[set[str], set[str]]:
    """Return a sentence for each fault of a site, and its links to other hosts.

    A fault is a link to a page or heading that does not exist, or a script, style, font or picture of another host.
    """
    files = {path: Page(path.read_text(encoding="utf-8")) for path in site.rglob("*.html")}
    faults, foreign = set(), set()
    for file, page in files.items():
        name = file.relative_to(site).as_posix()
        faults |= {f"{name} loads {address}" for address in page.loads if is_foreign(address)}
        foreign |= {address for address in page.links if is_foreign(address)}
        for address in page.links | page.loads:
            parts = urlsplit(address)
            if parts.scheme or parts.netloc or file.name == "404.html":
                continue
            target = Path(os.path.normpath(file.parent / unquote(parts.path))) if parts.path else file
            anchors = files[target].anchors if target in files else set()
            if not target.exists() or (parts.fragment and target in files and unquote(parts.fragment) not in anchors):
                faults.add(f"{name} links to {address}, which does not exist")
    for style in site.rglob("*.css"):
        loads = re.findall(r"(?:url\(|@import\s+)[\"']?((?:https?:)?//[^\"')]+)", style.read_text(encoding="utf-8"))
        faults |= {f"{style.relative_to(site)} loads {address}" for address in loads}
    return faults, foreign


def is_foreign(address: str) -> bool:
    """Return whether an address is on another host."""
    return bool(urlsplit(address).netloc)


if __name__ == "__main__":
    main()
