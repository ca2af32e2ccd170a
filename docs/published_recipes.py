"""Write the tables of docs/recipes.md: `python docs/published_recipes.py`."""

import textwrap
from pathlib import Path
from typing import Any

from lm.config_costs import parameter_table
from lm.presets import PRESETS
from pipelines.recipes.published import PUBLISHED, Published, Setting, value_of

PAGE = Path(__file__).with_name("recipes.md")
BEGIN, END = "<!-- begin: written by python docs/published_recipes.py -->", "<!-- end -->"


def tables() -> str:
    """Return a section for each source."""
    return "\n\n".join(_section(name, published) for name, published in PUBLISHED.items())


def _section(name: str, published: Published) -> str:
    kind = "Preset" if published.without_recipe else "Recipe"
    facts = f"{kind} `{name}`. Source: {published.source}."
    if published.preset:
        model = PRESETS[published.preset]
        total = parameter_table(model)["total"]
        facts += f" {total:,} parameters with {model.vocab_size:,} entries."
    facts = textwrap.fill(facts, 120, break_long_words=False)
    rows = "\n".join(_row(name, setting) for setting in published.settings)
    return f"## {published.title}\n\n{facts}\n\n| field | published | here | where |\n|---|---|---|---|\n{rows}"


def _row(name: str, setting: Setting) -> str:
    here = _text(value_of(name, setting.field)) + (f" ({setting.note})" if setting.note else "")
    published = "" if setting.published is None else _text(setting.published)
    return f"| `{setting.field}` | {published} | {here} | {setting.place} |"


def _text(value: Any) -> str:
    if isinstance(value, bool):
        return f"{value}".lower()
    return f"{value:,}" if isinstance(value, int) else f"{value}"


def page(text: str) -> str:
    """Return the page `text` with its tables replaced."""
    before, _, rest = text.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{tables()}\n\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
