"""The pages agree with the code."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


def test_api_reference_is_that_of_the_docstrings(tmp_path: Path) -> None:
    made = tmp_path / "api.md"
    subprocess.run([sys.executable, str(ROOT / "tools/api_reference.py"), str(made)], check=True, timeout=100)
    assert made.read_text() == (ROOT / "docs/api.md").read_text(), "run: python tools/api_reference.py"


def test_every_variable_has_its_line() -> None:
    sources = [*ROOT.glob("src/**/*.py"), *ROOT.glob("native/**/*.cpp"), *ROOT.glob("tests/**/*.py")]
    read = {
        name
        for path in sources
        for name in re.findall(r"""(?:environ(?:\.get)?[\[(]|getenv\()\s*["'](HOCKET_\w+)""", path.read_text())
    }
    assert len(read) > 8
    told = set(re.findall(r"`(HOCKET_\w+)`", (ROOT / "docs/configuration.md").read_text()))
    assert read <= told, f"not in docs/configuration.md: {sorted(read - told)}"
    everywhere = "".join(path.read_text() for path in sources)
    assert all(name in everywhere for name in told), "docs/configuration.md has a variable that nothing reads"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"
