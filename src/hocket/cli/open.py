"""`hocket open`: show files that other commands have written, and recorded runs, on a page in the browser."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli._observe_store import Host, Opens, PageOptions, Port, check_run, place_of_store, serve_place
from hocket.cli._output import AsJson, json_text
from hocket.cli._termination import cleaned_up_when_terminated
from hocket.cli._verbs import add_verb, argument, optional
from hocket.errors import InvalidArgument
from hocket.whole_file import check_output, write_text

if TYPE_CHECKING:
    from hocket.observe.serve.opened_results import OpenedResults


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    add_verb(application, open_files, "open")


def open_files(
    files: Annotated[
        list[Path],
        argument(
            metavar="FILE...", help="Files of results, folders of recorded runs or of their tables, or one store."
        ),
    ],
    html: Annotated[
        Path | None, optional("--html", metavar="PAGE", help="Write the page as one HTML file, and serve nothing.")
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    opens: Opens = False,
    as_json: AsJson = False,
) -> int:
    """Show files that other commands have written, and recorded runs, on a page in the browser, until Ctrl-C.

    What a file is, it says itself: results of `hocket bench run --format json`, times of gradient engines (`hocket
    bench engines -o`), tuning tables, observations of a run, pipeline schedules, schedules of collectives, recorded
    steps, and what `hocket simulate --json` or `hocket observe fabric --json` has printed. Several results of
    benchmarks are compared, each with those that are named before it.
    With observations, a tuning table shows what the choices of that run cost.

    A recorded run, a folder of its tables or a store of runs is shown as by `hocket observe serve`. The page is at the
    address that is printed, with the token that it needs.

    Examples:
      hocket open results.json
      hocket open before.json after.json --open
      hocket open ~/.cache/hocket/table.json times.observations.json
      hocket pipeline convert zb-v -n 4 -m 8 -o zb.json && hocket open zb.json
      hocket open results.json table.json hocket-run-20261129-101500
      hocket open results.json --html results.html
    """
    from hocket.observe.serve.opened_results import open_results
    from hocket.observe.serve.page_document import check_page

    folders = [path for path in files if path.is_dir()]
    if html is not None:
        check_output(html, is_replaced=True)
        if any(html.resolve() == path.resolve() for path in files if path.exists()):
            raise InvalidArgument(f"--html {html} would replace a file that is opened: name another one")
    store = _store_among(folders)
    runs = [folder for folder in folders if folder != store]
    _check_runs(runs)
    if store is not None and runs:
        raise InvalidArgument(f"{store} is a store, and {runs[0]} a run: open one of both")
    if store is not None and html is not None:
        raise InvalidArgument(f"{store} is a store: --html writes the folders of runs that are named, and files")
    results = open_results([path for path in files if path not in folders])
    check_page()
    if html is not None:
        return _write(results, runs, html, as_json)
    alone = runs if len(files) == 1 else []
    with place_of_store(None if store is None else str(store), alone, is_temporary=not alone) as place:
        serve_place(place, runs, PageOptions(host, port, opens=opens, as_json=as_json), results=results)
    return 0


def _check_runs(runs: Sequence[Path]) -> None:
    """Check that folders are recorded runs, or have the tables of one, with different names.

    Raises:
        RecorderError: a folder is no run.
        InvalidArgument: two have the same name.
    """
    from hocket.observe.serve.run_loader import name_in_store

    names: dict[str, Path] = {}
    for run in runs:
        check_run(run)
        first = names.setdefault(name_in_store(run), run)
        if first is not run:
            raise InvalidArgument(f"{first} and {run} have the same name: rename one, or open one of both")


def _write(results: OpenedResults, runs: Sequence[Path], path: Path, as_json: bool) -> int:
    from hocket.observe.serve.report import page_of_runs

    with cleaned_up_when_terminated():
        write_text(path, page_of_runs(runs, results))
    facts = {"written": str(path), "results": [asdict(each) for each in results.listed], "runs": [*map(str, runs)]}
    print(json_text(facts) if as_json else f"wrote {path}")
    return 0


def _store_among(folders: Sequence[Path]) -> Path | None:
    """The store that is named.

    Raises:
        InvalidArgument: there are two.
    """
    from hocket.observe.store.segments import STORE_FILE

    stores = [folder for folder in folders if (folder / STORE_FILE).is_file()]
    if len(stores) > 1:
        raise InvalidArgument(f"{stores[0]} and {stores[1]} are stores: open one of both")
    return stores[0] if stores else None
