"""Take the pictures of the page that the documentation has: python tools/page_pictures.py [FOLDER].

Records examples/observed_training.py, one of whose ranks is slow on purpose, and looks at each view in Chromium: 1,200
pixels wide in light colours and 400 wide in dark ones; the overview and the timeline in the other two ways as well, and
while the training goes on. Needs /usr/bin/chromium, and `make page`.
"""

from __future__ import annotations

import io
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from PIL import Image
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[1]
CHROMIUM = "/usr/bin/chromium"
HOCKET = [sys.executable, "-m", "hocket.cli"]
TRAINING = [*HOCKET, "run", "-n", "2", str(ROOT / "examples/observed_training.py"), "--slow-rank", "1"]
WAYS = {
    "1200-light": (1200, "light"),
    "400-dark": (400, "dark"),
    "1200-dark": (1200, "dark"),
    "400-light": (400, "light"),
}
IN_ALL_WAYS = ("overview", "timeline")
MOST_HEIGHT, NUM_COLOURS = 1600, 128
TIMEOUT_S = 60.0


@contextmanager
def served(run: Path, store: Path) -> Iterator[str]:
    """Serve a run; yield the address of its page."""
    command = [*HOCKET, "observe", "serve", str(run), "--store", str(store), "--port", "0", "--json"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield json.loads(process.stdout.readline())["page"]
    finally:
        process.terminate()
        process.wait(TIMEOUT_S)


def save(page: Any, path: Path) -> None:
    """Save what the page shows, with few colours."""
    height = min(page.evaluate("document.documentElement.scrollHeight"), MOST_HEIGHT)
    width = page.viewport_size["width"]
    content = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    Image.open(io.BytesIO(content)).convert("RGB").quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(
        path, optimize=True
    )
    print(path.name, path.stat().st_size // 1024, "KiB", flush=True)


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            sys.exit(f"the page did not come to: {expression}")
        page.wait_for_timeout(50)


def take(browser: Any, address: str, folder: Path) -> None:
    """Take the pictures of a run that is over."""
    for way, (width, scheme) in WAYS.items():
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("nav a")
        until(page, "!location.hash.includes('-live')")
        views = [each.get_attribute("href").rpartition("/")[2] for each in page.query_selector_all("nav a")]
        for view in views if way in ("1200-light", "400-dark") else IN_ALL_WAYS:
            page.click(f"nav a[href$='/{view}']")
            page.wait_for_selector("main h2")
            until(page, "!document.querySelector('main [aria-live]')?.textContent.includes('asking')")
            page.wait_for_timeout(700)  # charts come after their data
            save(page, folder / f"{view}-{way}.png")
        context.close()


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hocket-pictures-") as place, sync_playwright() as started:
        run, store = Path(place) / "training", Path(place) / "store"
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        record = [*HOCKET, "observe", "run", "--output", str(run), "--", *TRAINING, "--steps", "500"]
        recording = subprocess.Popen(record)
        deadline = time.monotonic() + TIMEOUT_S
        while not ((claim := run / "recording").exists() and claim.stat().st_size):
            if time.monotonic() > deadline:
                sys.exit("the training was not recorded")
            time.sleep(0.05)
        with served(run, store) as address:
            page = browser.new_page(viewport={"width": 1200, "height": 640})
            page.goto(f"{address}&/training-live/timeline")
            until(page, "(document.querySelector('canvas')?.ariaLabel ?? '').includes('lanes')")
            page.wait_for_timeout(9000)
            save(page, folder / "live-1200-light.png")
            page.close()
            if recording.wait(10 * TIMEOUT_S) != 0:
                sys.exit("the training failed")
            while not (store / "loaded.json").exists():
                time.sleep(0.1)
            take(browser, address, folder)
        browser.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images/page")
