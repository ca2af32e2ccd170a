"""Draw pictures/serve.png, the page of `bytelm serve`: `python docs/page_picture.py RUN`.

Needs playwright and chromium.
"""

import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

PICTURE = Path(__file__).with_name("pictures") / "serve.png"
TEXT = (
    "It was a dark and stormy night. The old man sat by the fire and told the children a story about the king of "
    "England, who had lived for many years in the city of London."
)
POINTED_AT = " England"


def main() -> None:
    """Serve the run named on the command line and draw its page."""
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/page_picture.py RUN")
    command = [Path(sys.executable).with_name("bytelm"), "serve", sys.argv[1], "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        address = next(line.strip() for line in server.stdout if re.match("http://", line))
        try:
            draw(address)
        finally:
            server.send_signal(signal.SIGINT)


def draw(address: str) -> None:
    """Write a screenshot of the page at `address`, with TEXT scored and POINTED_AT shown, to PICTURE."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 690})
        page.goto(address)
        page.fill("#text", TEXT)
        page.wait_for_function("text => document.querySelector('.strip')?.textContent === text", arg=TEXT)
        page.locator(".token", has_text=re.compile(f"^{POINTED_AT}$")).first.hover()
        page.locator("#text").blur()
        page.screenshot(path=PICTURE)
        browser.close()


if __name__ == "__main__":
    main()
