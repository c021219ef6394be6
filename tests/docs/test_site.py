"""The site builds without a warning, has every public name, and needs no other server."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import zlib
from pathlib import Path

import pytest

from .public import public_names

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=200)
    assert built.returncode == 0, built.stderr
    return folder


@pytest.mark.timeout(250)
def test_every_public_name_is_on_a_page(site: Path) -> None:
    inventory = (site / "objects.inv").read_bytes().split(b"\n", 4)[4]
    there = {line.split(" ")[0] for line in zlib.decompress(inventory).decode().splitlines()}
    missing = [name for name in public_names() if name not in there]
    assert not missing, f"no page has {missing}"


def test_pages_load_nothing_from_elsewhere(site: Path) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r"<(?:script|img|link rel=\"stylesheet\")[^>]*(?:src|href)=\"(https?:[^\"]*)", page.read_text()
        )
        assert not loaded, f"{page.relative_to(site)} loads {loaded}"


def test_the_command_has_a_page(site: Path) -> None:
    page = (site / "reference/command/index.html").read_text()
    assert all(f"hocket {verb}" in page for verb in ("run", "bench compare", "pipeline show", "tune export"))
