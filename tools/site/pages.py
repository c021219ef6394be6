"""A hook of mkdocs: pages that are made of files outside docs/.

README.md, which is the first page, its neighbours, the sources of examples and benchmarks that pages link to, and the
help of the command.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCUMENTS = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
}
LANGUAGES = {".py": "python", ".toml": "toml", ".cff": "yaml", ".sh": "bash", ".md": "markdown"}
LINK = re.compile(r"(\]\()([^)#\s]+)(#[^)]*)?\)")


def on_files(files: Files, config: Any) -> Files:
    """Add the documents of the root, the sources that pages link to, and the reference of the command."""
    for name, page in DOCUMENTS.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text()))
    seen = [ROOT / name for name in DOCUMENTS] + sorted((ROOT / "docs").rglob("*.md"))
    for source in sorted({found for page in seen for found in _linked(page) if found.is_file()}):
        name = source.relative_to(ROOT).as_posix()
        if not name.startswith("docs/") and name not in DOCUMENTS:
            fence = f"```{LANGUAGES.get(source.suffix, 'cpp')}\n{source.read_text().rstrip()}\n```"
            head = "---\nsearch:\n  exclude: true\n---\n"
            files.append(File.generated(config, _page_of(name), content=f"{head}# {name}\n\n{fence}\n"))
    files.append(File.generated(config, "reference/command.md", content=_command()))
    return files


def on_page_markdown(markdown: str, page: Page, config: Any, files: Files) -> str:
    """Point links to files of the repository to their pages."""
    uri = page.file.src_uri
    origin = next((name for name, made in DOCUMENTS.items() if made == uri), f"docs/{uri}")

    def moved(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(origin), found[2]))
        if ":" in found[2] or not (ROOT / target).exists():
            return found[0]
        where = DOCUMENTS.get(target) or (
            target.removeprefix("docs/") if target.startswith("docs/") else _page_of(target)
        )
        return f"{found[1]}{posixpath.relpath(where, posixpath.dirname(uri) or '.')}{found[3] or ''})"

    return LINK.sub(moved, markdown)


def _linked(page: Path) -> set[Path]:
    targets = (found[2] for found in LINK.finditer(page.read_text()))
    return {(page.parent / target).resolve() for target in targets if ":" not in target}


def _page_of(source: str) -> str:
    return f"sources/{source}.md"


def _command() -> str:
    import typer
    from typer.cli import get_docs_for_click

    from hocket.cli._application import _application

    command = _application()
    text = get_docs_for_click(obj=command, ctx=typer.Context(command), name="hocket", title="The hocket command")
    return re.sub(r"\x1b\[[0-9;]*m", "", text)
