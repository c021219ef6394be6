"""The pages agree with the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
DECISIONS = sorted((ROOT / "docs/decisions").glob("*.md"))
_SOURCES = ("src/**/*.py*", "native/**/*.?pp", "tests/**/*.py", "tests/**/*.cpp", "tools/*.py", "benchmarks/*.py")


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


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", page.read_text()):
        if not target.startswith("http"):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_cited_pages_exist() -> None:
    """The pages of subfolders of docs that code and tests cite by path."""
    texts = {path: path.read_text() for pattern in _SOURCES for path in ROOT.glob(pattern) if path.suffix != ".pyc"}
    cited = {(page, path) for path, text in texts.items() for page in re.findall(r"docs/[\w/-]+/[\w-]+\.md", text)}
    assert cited
    missing = {f"{path.relative_to(ROOT)} cites {page}" for page, path in cited if not (ROOT / page).exists()}
    assert not missing


def test_decisions_have_one_form_and_cite_files_that_exist() -> None:
    index = (ROOT / "docs/decisions/index.md").read_text()
    for page in DECISIONS:
        text = page.read_text()
        cited = re.findall(r"`((?:native|src|tests|benchmarks|tools|examples|docs)/[\w./-]+)`", text)
        missing = [name for name in cited if not (ROOT / name).exists()]
        assert not missing, f"{page.name} names {missing}"
        if page.name != "index.md":
            headings = re.findall(r"^#+ .+$", text, re.MULTILINE)
            assert headings[1:] == ["## Context", "## Decision", "## Evidence"], page.name
            assert index.count(f"[{headings[0].removeprefix('# ')}]({page.name})") == 1, f"{page.name} in index.md"
