"""Draw the README's pictures from a finished demo: `python docs/pictures.py bytelm-demo` (needs chromium)."""

import io
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from rich.console import Console
from rich.text import Text

PICTURES = Path(__file__).with_name("pictures")
BROWSER = "chromium --headless --no-sandbox --disable-gpu --hide-scrollbars --window-size=1280,1500"
# The picture leaves out the folded sections.
SCORED = 'def read(path):\n    with open(path, encoding="utf-8") as banana:\n        return banana.read()\n'
STYLE = "<style>.fold { display: none }</style></head>"


def main() -> None:
    """Draw the pictures from the output folder of `bytelm demo` that the command line names."""
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/pictures.py FOLDER, where FOLDER is the output of bytelm demo")
    if not shutil.which("chromium"):
        sys.exit("chromium is not installed; it draws the picture of the report")
    PICTURES.mkdir(exist_ok=True)
    draw_terminal(Path(sys.argv[1]))
    draw_score(Path(sys.argv[1]) / "gpt")
    draw_report(Path(sys.argv[1]))


def draw_terminal(demo: Path) -> None:
    """Write demo.svg: the tables at the end of the demo."""
    command = [Path(sys.executable).with_name("bytelm"), "demo", "--out", demo]
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    tables = output[output.index("\nreport\n") :].split("\n", 3)[3].partition("\n\ngpt: ")[0]
    save_terminal(Text(tables), "demo", "make demo", 80)


def draw_score(run: Path) -> None:
    """Write score.svg: a scored text in colours."""
    command = [Path(sys.executable).with_name("bytelm"), "score", run, "--top", "3", SCORED]
    environment = {**os.environ, "FORCE_COLOR": "1", "COLORTERM": "truecolor", "COLUMNS": "100"}
    output = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment).stdout
    save_terminal(Text.from_ansi(output), "score", "bytelm score", 100)


def save_terminal(output: Text, name: str, title: str, width: int) -> None:
    """Write NAME.svg: output on a terminal of `width` columns."""
    console = Console(record=True, width=width, file=io.StringIO())
    console.print(output)
    svg = console.export_svg(title=title, unique_id=name)
    (PICTURES / f"{name}.svg").write_text(re.sub(r"@font-face \{.*?\}", "", svg, flags=re.S), encoding="utf-8")


def draw_report(demo: Path) -> None:
    """Write report.png: the start of report.html."""
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "report.html"
        page.write_text((demo / "report.html").read_text(encoding="utf-8").replace("</head>", STYLE), encoding="utf-8")
        options = [f"--screenshot={PICTURES / 'report.png'}", page.as_uri()]
        subprocess.run([*BROWSER.split(), *options], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    main()
