"""`hocket observe serve`, which shows runs on a page, and `hocket observe push`, which sends runs to it."""

from __future__ import annotations

import os
import re
import secrets
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from threading import Event, Thread
from typing import TYPE_CHECKING, Annotated

import typer

from hocket.cli._browser import open_browser
from hocket.cli._output import AsJson, json_text
from hocket.errors import InvalidArgument

if TYPE_CHECKING:
    from hocket.observe.serve.opened_results import OpenedResults
    from hocket.observe.store.client import StoreClient
    from hocket.observe.store.owner import Retention

SERVE_HELP = """Show recorded runs on a page in the browser, and runs that go on, until Ctrl-C.

RUN is the folder of a run that `hocket observe run` has saved, or is saving now, or of tables that `hocket observe
export` or `import` has written. The page is at the address that is
printed, with the token that it needs. With --store the page shows all runs of a folder: `hocket observe push` adds
runs to it, from other hosts, too. Events are Parquet files there, which DuckDB, pandas and `hocket observe query STORE
--run NAME` read without this process. Roll-ups of all times from a sixteenth of a second to days answer at once. The
file "token" in the folder is what requests must show; others are refused. STORE may also be a database of ClickHouse
(pip install 'hocket[clickhouse,store]'), for more than a disk holds; HOCKET_CLICKHOUSE_PASSWORD has its password."""
SERVE_EXAMPLES = """\b
Examples:
  hocket observe serve hocket-run-20261129-101500
  hocket observe serve --store runs --keep 30d --keep-bytes 100G
  hocket observe push run-1 runs
  hocket observe serve --store clickhouse://hocket@db.example:8123/runs
  ssh -L 28080:localhost:28080 head        then open the printed address here"""
PUSH_HELP = """Send a recorded run to a store. What the store has is not sent again, so it can be repeated.

STORE is what `hocket observe serve --store` was given on this host, or the address of its page; then the environment
variable HOCKET_STORE_TOKEN has the token."""
PUSH_EXAMPLES = """\b
Examples:
  hocket observe push run-1 runs
  HOCKET_STORE_TOKEN=$(cat token) hocket observe push run-1 http://head:28080 --name train-12"""
_STORE_OF_RUN = "store"
"""And the version of its tables: that of another version is not what this hocket would make of the run."""
TOKEN_VARIABLE = "HOCKET_STORE_TOKEN"
_UNITS_S = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}
_UNITS_NBYTES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

Host = Annotated[str, typer.Option("--host", help="Address to listen at.")]
Port = Annotated[
    int | None,
    typer.Option("--port", min=0, max=65535, help="To listen at; 0: any free one.", show_default="28080 or the next"),
]
Opens = Annotated[bool, typer.Option("--open", help="Open the page in this host's browser.")]


@dataclass(frozen=True)
class PageOptions:
    """The options of a server of the page.

    Args:
        host, port: to listen at; without port: 28080, or the next one that is free.
        names: further names of this host in addresses.
        base_path: of addresses behind a proxy.
        opens: whether to open the page in this host's browser.
        as_json: whether the address is printed as JSON.
    """

    host: str
    port: int | None
    names: tuple[str, ...] = ()
    base_path: str = ""
    opens: bool = False
    as_json: bool = False


def serve(
    runs: Annotated[list[Path] | None, typer.Argument(metavar="[RUN]...", help="Folders of runs.")] = None,
    store: Annotated[
        str | None,
        typer.Option(
            "--store", metavar="STORE", help="Folder of many runs, or the address of a database of ClickHouse."
        ),
    ] = None,
    host: Host = "127.0.0.1",
    port: Port = None,
    name: Annotated[
        list[str] | None, typer.Option("--name", help="A further name of this host in addresses; may be repeated.")
    ] = None,
    base_path: Annotated[
        str, typer.Option("--base-path", metavar="PATH", help="Of addresses behind a proxy that does not take it away.")
    ] = "",
    keep: Annotated[str, typer.Option("--keep", help="How long events are kept, such as 12h or 30d.")] = "",
    keep_bytes: Annotated[
        str, typer.Option("--keep-bytes", help="Most bytes of events, such as 100G; the oldest go first.")
    ] = "",
    keep_rollups: Annotated[str, typer.Option("--keep-rollups", help="How long roll-ups are kept, such as 365d.")] = "",
    beside: Annotated[bool, typer.Option("--beside", hidden=True)] = False,
    opens: Opens = False,
    as_json: AsJson = False,
) -> int:
    """Show runs."""
    from hocket.observe.store.owner import Retention

    retention = Retention(
        _amount("--keep", keep, _UNITS_S), _whole(_amount("--keep-bytes", keep_bytes, _UNITS_NBYTES)),
        _amount("--keep-rollups", keep_rollups, _UNITS_S),
    )  # fmt: skip
    wanted = runs or []
    until = Event() if beside else None
    if until is not None:
        Thread(target=_end_with_input, args=(until,), daemon=True).start()
    for run in wanted if not beside else ():
        check_run(run)
    with place_of_store(store, wanted) as place:
        options = PageOptions(host, port, tuple(name or ()), base_path, opens, as_json)
        serve_place(place, wanted, options, retention=retention, until=until)
    return 0


def serve_place(
    place: str, runs: list[Path], options: PageOptions, *, retention: Retention | None = None,
    until: Event | None = None, results: OpenedResults | None = None,
) -> None:  # fmt: skip
    """Serve a store until Ctrl-C, and print the address of its page.

    Args:
        place: the folder of the store, or its address.
        runs: folders of runs that are brought into it.
        options: of the server.
        retention: what is removed when.
        until: when it is set, the server ends.
        results: files that the page shows beside the runs.
    """
    from hocket.observe.serve.running import DEFAULT_PORT, serve_store

    folder, base_path = folder_of(place), options.base_path.rstrip("/")
    has_address = False
    code = secrets.token_urlsafe(32) if options.opens else ""

    def say(url: str) -> None:
        nonlocal has_address
        has_address = True
        if options.port is None and not url.endswith(f":{DEFAULT_PORT}"):
            print(f"hocket: port {DEFAULT_PORT} is taken; {url.rpartition(':')[2]} is used", file=sys.stderr)
        (folder / "address").write_text(url + "\n")
        page = f"{url}{base_path}/#token={(folder / 'token').read_text().strip()}"
        if options.opens:
            open_browser(f"{url}{base_path}/#token={code}")
        if options.as_json:
            listed = {} if results is None else {"results": [asdict(each) for each in results.listed]}
            print(json_text({"url": url, "page": page, "store": shown_place(place), **listed}), flush=True)
        else:
            print(f"the page is at {page}\nCtrl-C ends it", flush=True)

    try:
        serve_store(
            place, runs=runs, host=options.host, port=options.port, names=options.names, retention=retention,
            base_path=base_path, on_ready=say, until=until, results=results, code=code,
        )  # fmt: skip
    finally:
        if has_address:  # whoever has that port later is not to be told the token
            (folder / "address").unlink(missing_ok=True)


def _end_with_input(until: Event) -> None:
    """Whoever started this process holds its input while it runs."""
    while sys.stdin.read(4096):
        pass
    until.set()


def check_run(folder: Path) -> None:
    """Check that a folder is a recorded run, or has the tables of one."""
    from hocket.observe.saved import load_description
    from hocket.observe.store.segments import STORE_FILE
    from hocket.observe.store.table_folders import check_tables, is_folder_of_tables

    if (folder / STORE_FILE).is_file():
        raise InvalidArgument(f"{folder} is a store of runs: hocket observe serve --store {folder}")
    if is_folder_of_tables(folder):
        check_tables(folder)
    else:
        load_description(folder)


@contextmanager
def place_of_store(store: str | None, runs: list[Path], *, is_temporary: bool = False) -> Iterator[str]:
    """The store that is named; else one in the folder of the only run; else one that is removed at the end.

    Args:
        store: that is named.
        runs: folders of runs.
        is_temporary: whether neither a store nor a run has to be named.

    Raises:
        InvalidArgument: neither is.
    """
    from hocket.observe.store.columns import SCHEMA_VERSION
    from hocket.observe.store.table_folders import is_folder_of_tables

    if store is not None:
        yield store
        return
    if not runs and not is_temporary:
        raise InvalidArgument("name a run, or a store of runs with --store")
    if len(runs) == 1 and not is_folder_of_tables(runs[0]) and os.access(runs[0], os.W_OK):
        place = runs[0] / f"{_STORE_OF_RUN}-{SCHEMA_VERSION}"
        try:
            yield str(place)
        finally:
            (place / "token").unlink(missing_ok=True)  # whoever gets a copy of the run is not to get it
        return
    folder = mkdtemp(prefix="hocket-store-")
    try:
        yield folder
    finally:
        rmtree(folder, ignore_errors=True)


def push(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="Folder of a run that `hocket observe run` has saved.")],
    store: Annotated[str, typer.Argument(metavar="STORE", help="Folder of a store, or its address.")],
    name: Annotated[str, typer.Option("--name", help="Of the run in the store; by default that of its folder.")] = "",
    as_json: AsJson = False,
) -> int:
    """Send a run."""
    from hocket.observe import open_run

    chosen = name or run.resolve().name
    with client_of(store) as client:
        sent = client.push(open_run(run), chosen)
        stored = client.ask(f"/v1/runs/{chosen}")["num_rows"]
    parts = [f"{table} {count} rows" for table, count in sent.items() if count]
    shown = f"{store}: run {chosen}: " + (f"sent {', '.join(parts)}" if parts else "all rows had been sent before")
    print(json_text({"run": chosen, "sent": sent, "stored": stored}) if as_json else shown)
    missing = [table for table, count in sent.items() if not count and stored.get(table) == 0]
    if missing:
        print(f"hocket observe: the store has removed the rows of {', '.join(missing)} (--keep)", file=sys.stderr)
    return 0


def client_of(store: str) -> StoreClient:
    """Return a client of a store that is named by its folder or its address.

    Raises:
        InvalidArgument: it is neither, or nobody serves it here.
    """
    from hocket.observe.store.client import StoreClient

    if store.startswith("http"):
        if TOKEN_VARIABLE not in os.environ:
            raise InvalidArgument(
                f"{TOKEN_VARIABLE} must be the token of {store}: it is in the file token of the store"
            )
        return StoreClient(store, os.environ[TOKEN_VARIABLE])
    folder = folder_of(store)
    if not (folder / "address").is_file():
        raise InvalidArgument(_no_store(store))
    return StoreClient((folder / "address").read_text().strip(), (folder / "token").read_text().strip())


def folder_of(place: str) -> Path:
    """Return the folder of a store with its token and its address, wherever its rows are.

    Raises:
        InvalidArgument: an address of ClickHouse is not valid.
    """
    from hocket.observe.store.clickhouse.address import is_clickhouse, parse_address

    return parse_address(place).folder if is_clickhouse(place) else Path(place)


def shown_place(place: str) -> str:
    """Return how a store is shown: without a password."""
    from hocket.observe.store.clickhouse.address import is_clickhouse, parse_address

    return parse_address(place).shown if is_clickhouse(place) else place


def _no_store(store: str) -> str:
    from hocket.observe.store.clickhouse.address import is_clickhouse
    from hocket.observe.store.segments import RUN_FILE, STORE_FILE

    if is_clickhouse(store):
        shown = shown_place(store)
        return (
            f"nobody serves {shown} here: start hocket observe serve --store {shown}, or name the address of its page"
        )
    folder = Path(store)
    if (folder / STORE_FILE).is_file():
        return f"nobody serves {store}: start hocket observe serve --store {store}"
    if (folder / RUN_FILE).is_file():
        return f"{store} is a recorded run; name the run first, then the store"
    return f"{store} is not a store: name its folder, or its address as in http://127.0.0.1:28080"


def _amount(option: str, text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,12}(?:\.\d{1,3})?)([a-zA-Z]?)", text)
    if match is None or match[2] not in units or not float(match[1]):
        raise InvalidArgument(
            f"{option} must be a number with one of {', '.join(filter(None, units))}, not {text!r:.60}"
        )
    return float(match[1]) * units[match[2]]


def _whole(amount: float | None) -> int | None:
    return None if amount is None else int(amount)
