"""`hocket observe`: record programs, and see what the processes of a job do, also while they hang."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from time import monotonic, sleep, strftime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hocket.cli import _observe_analysis
from hocket.cli._observe_page import page_beside
from hocket.cli._output import AsJson

if TYPE_CHECKING:
    from hocket.observe import IoCompleteness, JobView, RecordedEvent, RunCompleteness, RunRecording

_HELP = """Record a program, or look at one that runs, hangs or was killed.

Programs that use hocket can be looked at without preparation. Others, with torch.distributed over gloo or with MPI, are
started by `hocket observe run`."""
_RUN_HELP = """Run a command, and record the communication and the file I/O of all processes that it starts.

The programs need not import hocket, and are not changed. Start the launcher under this command: torchrun, mpirun, srun
or hocket run. The exit code is that of the command, and Ctrl-C goes to it. With --json the last line of the output is
the JSON object; before it comes what the command prints.

A run on several hosts needs one agent on each: --listen on the first host, --join on the others, where a launcher is
started on every host. Where mpirun or srun starts the ranks of all hosts, put `hocket observe run --` before their
program, too: the first rank on each host records for all ranks there."""
_RUN_EXAMPLES = """\b
Examples:
  hocket observe run -- python train.py
  hocket observe run --output run-1 -- torchrun --nproc-per-node 2 train.py
  hocket observe run --layers comm -- mpirun -n 4 python stencil.py
\b
Two hosts:
  hocket observe run --listen 10.0.0.1:29777 -- torchrun --nnodes 2 --node-rank 0 ... train.py
  hocket observe run --join 10.0.0.1:29777 -- torchrun --nnodes 2 --node-rank 1 ... train.py
  hocket observe run --listen 10.0.0.1 -- mpirun -hosts a,b -n 8 hocket observe run -- python stencil.py"""
_TOP_HELP = """Show what all processes of a job do: the operation in flight and since when, whom it waits for, rates.

Needs nothing of the processes: they may hang, be stopped, or be dead while their launcher lives. Of a recorded run on
several hosts, it shows all of them on the first one. Ends with Ctrl-C, or when the job has ended."""
_TOP_EXAMPLES = """\b
Examples:
  hocket observe top 4711                  the job of this launcher, or one rank
  hocket observe top 4711 --once --json    one look, for scripts"""
_ATTACH_HELP = """Show what one process does, and its latest operations."""
_ATTACH_EXAMPLES = """\b
Examples:
  hocket observe attach 4711
  hocket observe attach 4711 --last 50 --json"""
_DUMP_HELP = """Copy the recorders of a job into a folder, to read them later or elsewhere.

Works while the processes run, hang or are stopped, and for ranks that were killed, while their launcher lives."""
_DUMP_EXAMPLES = """\b
Examples:
  hocket observe dump 4711 --output hang
  python -c 'import hocket as hk; print(hk.trace.read_recorder("hang/rank-0-4712.recorder").owner)'"""
_DOCTOR_HELP = """Say what can be observed on this machine, and why the rest is unavailable."""
_DOCTOR_EXAMPLES = """\b
Examples:
  hocket observe doctor
  hocket observe doctor --json"""

_MOST_RUNS_AT_ONCE = 10_000
_OTHER_HOSTS_S = 3.0
"""Agents of other hosts answer within about a second."""
_Pid = Annotated[int, typer.Argument(metavar="PID", min=1, help="Number of the launcher, or of one process.")]


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    verbs = typer.Typer(help=_HELP, no_args_is_help=True, rich_markup_mode=None)
    verbs.command("run", help=_RUN_HELP, epilog=_RUN_EXAMPLES, context_settings={"allow_interspersed_args": False})(run)
    verbs.command("top", help=_TOP_HELP, epilog=_TOP_EXAMPLES)(top)
    verbs.command("attach", help=_ATTACH_HELP, epilog=_ATTACH_EXAMPLES)(attach)
    verbs.command("dump", help=_DUMP_HELP, epilog=_DUMP_EXAMPLES)(dump)
    verbs.command("doctor", help=_DOCTOR_HELP, epilog=_DOCTOR_EXAMPLES)(doctor)
    _observe_analysis.register(verbs)
    application.add_typer(verbs, name="observe")


def run(
    command: Annotated[list[str], typer.Argument(metavar="COMMAND...", help="Program and arguments, after --.")],
    output: Annotated[
        Path | None,
        typer.Option("--output", help="Folder for the run; by default hocket-run-DATE-TIME, in srun with -task-N."),
    ] = None,
    layers: Annotated[str, typer.Option("--layers", help="What to record: comm, io or both.")] = "comm,io",
    interval: Annotated[
        float, typer.Option("--interval", min=0.01, help="Seconds between two samples of CPU, memory and so on.")
    ] = 1.0,
    listen: Annotated[
        str | None,
        typer.Option(
            "--listen", metavar="ADDRESS[:PORT]", help="Agents of other hosts join here; this host's address."
        ),
    ] = None,
    join: Annotated[
        str | None,
        typer.Option(
            "--join",
            metavar="ADDRESS:PORT",
            help="Send what this host records there, to a host that listens within 60 s.",
        ),
    ] = None,
    page: Annotated[
        bool, typer.Option("--page", help="Show the run in the browser while it goes on; the address is printed.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Run a command and record it."""
    wanted = [each.strip() for each in layers.split(",") if each.strip()]
    recording = _recorded(command, output, wanted, interval, listen, join, page)
    if recording.num_hosts == 0:
        pass  # the agent that records this process reports
    elif as_json:
        print(
            json.dumps(
                {
                    **asdict(recording),
                    "folder": str(recording.folder) if recording.folder else None,
                    "io": _io_as_json(recording.io),
                }
            )
        )
    else:
        _print_recording(recording)
    return recording.exit_code if recording.exit_code >= 0 else 128 - recording.exit_code


def _recorded(
    command: list[str], output: Path | None, layers: list[str], interval_s: float, listen: str | None, join: str | None,
    has_page: bool,
) -> RunRecording:  # fmt: skip
    from hocket.errors import InvalidArgument
    from hocket.observe import follow_run, join_run, record_run
    from hocket.observe.batch import task_in

    if join is not None and (listen is not None or output is not None or has_page):
        raise InvalidArgument("--join sends the run to the host that listens: leave out --output, --listen and --page")
    if output is None and listen is None and join is None:
        followed = follow_run(command)
        if followed is not None:
            return followed
        join = os.environ.get("HOCKET_OBSERVE_JOIN")
    if join is not None:
        return join_run(command, join, layers=layers, interval_s=interval_s)
    task = task_in(os.environ)
    end = "" if task is None or task.step is None or task.rank is None else f"-task-{task.rank}"
    folder = output or _new_folder(strftime("hocket-run-%Y%m%d-%H%M%S") + end)
    with page_beside(folder, stays=sys.stdin.isatty()) if has_page else nullcontext():
        return record_run(command, folder, layers=layers, interval_s=interval_s, listen=listen)


def _new_folder(name: str) -> Path:
    """Make a folder with this name, or with a number behind it where several runs begin within a second."""
    for number in range(1, _MOST_RUNS_AT_ONCE):
        folder = Path(name if number == 1 else f"{name}-{number}")
        try:
            folder.mkdir()
        except FileExistsError:
            continue
        except OSError:
            break  # the check of the folder says why
        return folder
    return Path(name)


def _print_recording(recording: RunRecording) -> None:
    lost = f"; {recording.num_lost} were overwritten before they could be saved" if recording.num_lost else ""
    place = f"in {recording.folder}" if recording.folder else "sent to the first host"
    hosts = f" and those of {recording.num_hosts - 1} other hosts" if recording.num_hosts > 1 else ""
    text = f"{recording.num_events} events of {recording.num_processes} processes{hosts} {place}{lost}"
    for line in (*recording.problems, text, *_io_lines(recording.io)):
        print(f"hocket observe: {line}", file=sys.stderr)


def _io_lines(io: RunCompleteness) -> Iterator[str]:
    from hocket.observe.completeness import describe_io

    total = io.total
    if total.read is None or total.written is None:
        yield f"how much of the I/O was seen is unavailable: {total.reason}"
        return
    for what, account, worst in (("reads", total.read, io.worst_read), ("writes", total.written, io.worst_written)):
        yield describe_io(what, account) + (f"; most of {worst}" if worst else "")
    if io.num_unavailable:
        yield f"{io.num_unavailable} processes are not in these figures: their counters are unavailable"


def _io_as_json(io: RunCompleteness) -> dict[str, Any]:
    return {**asdict(io), "total": _figure_as_json(io.total)}


def _figure_as_json(io: IoCompleteness) -> dict[str, Any]:
    accounts = {
        name: {**asdict(account), "share": account.share, "missing_nbytes": account.missing_nbytes}
        for name, account in (("read", io.read), ("written", io.written))
        if account is not None
    }
    return {**asdict(io), **accounts}


def top(
    pid: _Pid,
    interval: Annotated[float, typer.Option("--interval", min=0.1, help="Seconds between two looks.")] = 1.0,
    once: Annotated[bool, typer.Option("--once", help="Look once, half a second long, and end.")] = False,
    as_json: AsJson = False,
) -> int:
    """Show a job until it ends."""
    from hocket.observe import RunWatcher, find_job
    from hocket.observe.sampler import check_interval

    check_interval(interval)
    watcher = RunWatcher(lambda: find_job(pid))
    if once or as_json or not sys.stdout.isatty():
        watcher.look()
        deadline_s = monotonic() + _OTHER_HOSTS_S
        while True:
            sleep(min(interval, 0.5))
            view = watcher.look()
            if not watcher.awaited or monotonic() > deadline_s:
                break
        if as_json:
            print(json.dumps(_as_json(view)))
        else:
            _print_view(view, pid)
        return 0
    return _show_live(watcher.look, pid, interval)


def _show_live(look: Callable[[], JobView], pid: int, interval_s: float) -> int:
    from rich.live import Live

    from hocket.cli._observe_screen import screen
    from hocket.cli._tables import console_of
    from hocket.errors import RecorderError

    view = look()
    try:
        with Live(console=console_of(160), screen=True, auto_refresh=False) as live:
            while True:
                live.update(screen(view, _title(pid, view), live.console.width), refresh=True)
                sleep(interval_s)
                try:
                    view = look()
                except RecorderError:
                    break  # the job has ended
    except KeyboardInterrupt:
        pass
    _print_view(view, pid)
    return 0


def _print_view(view: JobView, pid: int) -> None:
    from hocket.cli._observe_screen import screen
    from hocket.cli._tables import console_of

    console = console_of(160)
    console.print(screen(view, _title(pid, view), console.width))


def _title(pid: int, view: JobView) -> str:
    return f"process {pid}: {len(view.ranks)} recorded processes, {strftime('%H:%M:%S')}"


def _as_json(view: JobView) -> dict[str, Any]:
    content = asdict(view)
    for rank, shown in zip(view.ranks, content["ranks"], strict=True):
        shown["doing"] = asdict(rank.doing) if rank.doing else None
        shown["io"] = _figure_as_json(rank.io)
    return content


def attach(
    pid: _Pid,
    last: Annotated[int, typer.Option("--last", min=1, max=4096, help="How many of the latest operations.")] = 20,
    as_json: AsJson = False,
) -> int:
    """Print what one process does."""
    from hocket.cli._observe_screen import describe
    from hocket.cli._tables import print_table
    from hocket.observe import activity_of, completeness_of, events_in
    from hocket.observe.completeness import describe_io
    from hocket.observe.processes import io_counters, status_of
    from hocket.trace import find_recorders

    shown = []
    for place in find_recorders(pid):
        snapshot = place.read()
        activity, events = activity_of(snapshot), events_in(snapshot, last)
        io = completeness_of(snapshot, io_counters(status_of(snapshot.owner)))
        shown.append({"owner": asdict(snapshot.owner), "activity": asdict(activity), "io": _figure_as_json(io),
                      "events": [asdict(event) for event in events], "problems": snapshot.problems})  # fmt: skip
        if as_json:
            continue
        owner = snapshot.owner
        print(f"process {owner.pid}, rank {'unknown' if owner.rank is None else owner.rank}: {owner.program}")
        for what, account in (("reads", io.read), ("writes", io.written)):
            print(f"  {describe_io(what, account) if account else f'{what}: unavailable: {io.reason}'}")
        for each in activity.in_flight:
            print(f"  in flight for {each.since_s:.3g} s: {describe(each)}")
        rows = [
            [f"{event.ago_s:.6f}", event.ring, _what(event), _where(event), str(event.number), str(event.nbytes),
             "" if event.seconds is None else f"{event.seconds * 1e6:.1f}", event.state]
            for event in events
        ]  # fmt: skip
        print_table("latest events", ("s ago", "ring", "what", "where", "number", "bytes", "us", "state"), rows)
        for problem in snapshot.problems:
            print(problem, file=sys.stderr)
    if as_json:
        print(json.dumps(shown))
    return 0


def _what(event: RecordedEvent) -> str:
    return event.name if event.value is None else f"{event.name} = {event.value:g}"


def _where(event: RecordedEvent) -> str:
    return event.target if event.peer is None else f"{event.target}, rank {event.peer}"


def dump(
    pid: _Pid,
    output: Annotated[Path, typer.Option("--output", help="Folder for the copies; a new or an empty one.")],
    as_json: AsJson = False,
) -> int:
    """Copy the recorders of a job."""
    from hocket.observe import copy_recorders

    copies = copy_recorders(pid, output)
    if as_json:
        print(json.dumps([str(path) for path in copies]))
    else:
        for path in copies:
            print(path)
    return 0


def doctor(as_json: AsJson = False) -> int:
    """Print all sources."""
    from hocket.observe import find_sources

    sources = find_sources()
    if as_json:
        print(json.dumps([asdict(source) for source in sources]))
        return 0
    width = max(len(source.name) for source in sources)
    for source in sources:
        print(f"{source.name:<{width}}  {'' if source.is_available else 'unavailable: '}{source.reason}")
    return 0
