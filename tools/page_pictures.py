"""Take the pictures of the page that the documentation has: python tools/page_pictures.py [FOLDER].

Records examples/observed_training.py, one of whose ranks is slow on purpose, and looks at each view in Chromium: 1,200
pixels wide in light colours and 400 wide in dark ones; the overview and the timeline in the other two ways as well. The
view "Dask" is that of examples/dask_transpose.py. An earlier training is looked at while it goes on, which takes a part
of the processors. FOLDER-strip.png has what counts of three pictures. Needs /usr/bin/chromium, and `make page`.
"""

from __future__ import annotations

import io
import json
import os
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
TRAINING = ["hocket", "run", "-n", "2", "examples/observed_training.py", "--slow-rank", "1", "--steps", "500"]
DASK = [sys.executable, "examples/dask_transpose.py"]
WAYS = {
    "1200-light": (1200, "light"),
    "400-dark": (400, "dark"),
    "1200-dark": (1200, "dark"),
    "400-light": (400, "light"),
}
IN_ALL_WAYS = ("overview", "timeline")
MOST_HEIGHT, NUM_COLOURS = 1600, 128
STRIP = {"live-1200-light": (0, 455), "overview-1200-light": (200, 560), "breakdown-1200-light": (185, 420)}
"""Which part of which picture, from top to bottom."""
# Wherever this checkout is, and the environment that it uses.
PLACES = {str(Path(sys.prefix).resolve()): "~/hocket/.venv", str(ROOT.resolve()): "~/hocket"}
RENAME = """places => {
  const texts = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (texts.nextNode())
    for (const [from, to] of Object.entries(places))
      texts.currentNode.data = texts.currentNode.data.replaceAll(from, to);
}"""
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
    page.evaluate(RENAME, PLACES)
    height = min(page.evaluate("document.documentElement.scrollHeight"), MOST_HEIGHT)
    width = page.viewport_size["width"]
    content = page.screenshot(full_page=True, clip={"x": 0, "y": 0, "width": width, "height": height})
    write(Image.open(io.BytesIO(content)), path)


def write(image: Image.Image, path: Path) -> None:
    """Write a picture with few colours."""
    image.convert("RGB").quantize(NUM_COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    print(path.name, path.stat().st_size // 1024, "KiB", flush=True)


def strip_of(folder: Path) -> Image.Image:
    """What counts of some pictures, below each other."""
    parts = []
    for name, (top, bottom) in STRIP.items():
        with Image.open(folder / f"{name}.png") as picture:
            parts.append(picture.convert("RGB").crop((0, top, picture.width, min(bottom, picture.height))))
    strip = Image.new("RGB", (parts[0].width, sum(each.height for each in parts)), "white")
    top = 0
    for each in parts:
        strip.paste(each, (0, top))
        top += each.height
    return strip


def recorded(run: Path, program: list[str] = TRAINING) -> subprocess.Popen[bytes]:
    """Begin to record the training, or another program."""
    command = [*HOCKET, "observe", "run", "--output", str(run), "--", *program]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return subprocess.Popen(command, cwd=ROOT, env={**os.environ, "PATH": path})


def until(page: Any, expression: str) -> None:
    """Wait until an expression is true."""
    deadline = time.monotonic() + TIMEOUT_S
    while not page.evaluate(expression):
        if time.monotonic() > deadline:
            sys.exit(f"the page did not come to: {expression}")
        page.wait_for_timeout(50)


def take(browser: Any, address: str, folder: Path, only: str = "") -> None:
    """Take the pictures of a run that is over: of all views, or of one in two ways."""
    for way, (width, scheme) in WAYS.items():
        context = browser.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme)
        page = context.new_page()
        page.goto(address)
        page.wait_for_selector("nav a")
        until(page, "!location.hash.includes('-live')")
        views = [each.get_attribute("href").rpartition("/")[2] for each in page.query_selector_all("nav a")]
        chosen = views if way in ("1200-light", "400-dark") else list(IN_ALL_WAYS)
        for view in [each for each in chosen if each == only] if only else chosen:
            page.click(f"nav a[href$='/{view}']")
            page.wait_for_selector("main h2")
            until(page, "!document.querySelector('main [aria-live]')?.textContent.includes('asking')")
            page.wait_for_timeout(700)  # charts come after their data
            save(page, folder / f"{view}-{way}.png")
        context.close()


def take_dask(browser: Any, place: Path, folder: Path) -> None:
    """Take the pictures of the view of Dask, of which the training has nothing."""
    run = place / "dask"
    if recorded(run, DASK).wait(10 * TIMEOUT_S) != 0:
        sys.exit("the example of Dask failed")
    with served(run, place / "dask-store") as address:
        while not (place / "dask-store/loaded.json").exists():
            time.sleep(0.1)
        take(browser, address, folder, "dask")


def main(folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="hocket-pictures-") as place, sync_playwright() as started:
        browser = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        run = Path(place) / "live" / "training"
        run.parent.mkdir()
        recording = recorded(run)
        deadline = time.monotonic() + TIMEOUT_S
        while not ((claim := run / "recording").exists() and claim.stat().st_size):
            if time.monotonic() > deadline:
                sys.exit("the training was not recorded")
            time.sleep(0.05)
        with served(run, Path(place) / "live-store") as address:
            page = browser.new_page(viewport={"width": 1200, "height": 640})
            page.goto(f"{address}&/training-live/timeline")
            until(page, "(document.querySelector('canvas')?.ariaLabel ?? '').includes('lanes')")
            page.wait_for_timeout(9000)
            save(page, folder / "live-1200-light.png")
            page.close()
            if recording.wait(10 * TIMEOUT_S) != 0:
                sys.exit("the training failed")
        run = Path(place) / "training"
        if recorded(run).wait(10 * TIMEOUT_S) != 0:
            sys.exit("the training failed")
        with served(run, Path(place) / "store") as address:
            while not (Path(place) / "store/loaded.json").exists():
                time.sleep(0.1)
            take(browser, address, folder)
        take_dask(browser, Path(place), folder)
        browser.close()
    write(strip_of(folder), folder.with_name(f"{folder.name}-strip.png"))


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "docs/images/page")
