"""Recorded runs as one HTML file: the page, with what its views show of each whole run."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

from hocket.errors import InvalidArgument
from hocket.whole_file import check_output, write_text

if TYPE_CHECKING:
    from hocket.observe.saved import ObservedRun
    from hocket.observe.serve.opened_results import OpenedResults
    from hocket.observe.store.interface import RunInStore, RunStore


def write_report(run: ObservedRun, path: str | Path) -> None:
    """Write one HTML file about a run: the page of `serve_store`, with what its views show of the whole run.

    The file needs no network and no other file. Needs ``pip install 'hocket[store]'``.

    Args:
        run: from `open_run`.
        path: of the file, which must end in .html.

    Raises:
        InvalidArgument: it has another ending, or nothing can be written there.
        MissingPackage: a package that the store needs is not installed, or hocket was installed without its page.

    Examples:
        >>> from pathlib import Path
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-to-report")
        >>> observe.write_report(observe.open_run("run-to-report"), "report.html")
        >>> "cat /etc/hostname" in Path("report.html").read_text()
        True
    """
    from hocket.observe.serve.opened_results import OpenedResults

    target = Path(path)
    check_report_path(target)
    write_text(target, page_of_runs([run.folder], OpenedResults()))


def check_report_path(path: Path) -> None:
    """Check that a report can be written there.

    Raises:
        InvalidArgument: it does not end in .html, or nothing can be written there.
    """
    if path.suffix != ".html":
        raise InvalidArgument(f"{path} must end in .html")
    check_output(path)


def page_of_runs(folders: Sequence[Path], results: OpenedResults) -> str:
    """Return the page of runs and of files as one HTML file.

    Args:
        folders: of runs, or of their tables, with different names.
        results: files that are shown beside them.

    Raises:
        MissingPackage: a package that the store needs is not installed, or hocket was installed without its page.
    """
    from hocket.observe.serve.page_document import check_page, page_document

    check_page()
    return page_document(results, _answers_of_runs(folders) if folders else {})


def _answers_of_runs(folders: Sequence[Path]) -> dict[str, dict[str, bytes]]:
    from hocket.observe.serve.run_loader import load_run, name_in_store
    from hocket.observe.store.owner import StoreOwner

    with TemporaryDirectory(prefix="hocket-store-") as place, StoreOwner(place) as owner:
        stored = [load_run(owner, folder, name_in_store(folder)) for folder in folders]
        return {run.name: _answers_of(run, owner) for run in stored}


def _answers_of(run: RunInStore, owner: RunStore) -> dict[str, bytes]:
    """What the views show of a whole run, by the paths at which a server has them."""
    from hocket.observe.serve.requests import json_bytes
    from hocket.observe.serve.runs import summary_of
    from hocket.observe.serve.view import ViewSource, ViewWindow
    from hocket.observe.serve.view_routes import all_views

    path = f"runs/{run.name}"
    answers = {path: json_bytes(summary_of(run, owner, is_live=False))}
    for view in all_views():
        if view.is_of_run:
            window = ViewWindow(spans=view.num_spans)
            answers[f"{path}/views/{view.name}"] = json_bytes(view.make(ViewSource(run, owner), window))
    return answers
