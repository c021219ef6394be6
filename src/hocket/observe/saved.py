"""A recorded run on disk: for each process its recorder as it was at the end, and all events that were saved."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from time import time
from typing import TYPE_CHECKING, Any

from hocket.clock import ClockReading
from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.batch import BatchTask, QueuedJob
from hocket.observe.completeness import IoCompleteness, completeness_of, last_look
from hocket.observe.connections import HostConnections, read_connections
from hocket.observe.description_fields import (
    anchors_from,
    command_from,
    counts_from,
    exit_code_from,
    host_from,
    looks_from,
    readings_from,
    records_from,
    unix_seconds_from,
)
from hocket.observe.one_agent import is_alive
from hocket.observe.run_clock import Anchor, RunClock
from hocket.observe.series import DEVICE_FILES, SERIES_SUFFIX, SavedSeries, read_process_rows, read_series
from hocket.trace import EVENT_FIELDS, Owner, RecorderSnapshot, Ring, are_events, read_recorder
from hocket.versioned_json import Head
from hocket.whole_file import write_text

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

RUN_FILE = "run.json"
CLAIM_FILE = "recording"
"""In the folder of a run while it is being recorded: what is known of it so far."""
RECORDER_FILES = "hocket-recorder-"
"""Begin of the names of recorders of processes that run."""
FOLLOWED_FILE = "followed"
"""In the folder of a run: touched by those who follow it."""
_FOLLOWED_S = 5.0
_LATEST_EVENTS = 256
"""Of each ring of a process that runs: enough for what is in flight."""
RECORDER_SUFFIX = ".recorder"
HOST_FOLDERS = "host-*"
"""In the folder of a run: those of other hosts."""
PART_PREFIX = "part-of-"
"""Begin of the name of a folder beside them: what comes at the end, until all is there."""
LIVE_FOLDER = "live"
"""In the folder of another host until all has come: the recorders of its processes, without their events."""
HEAD = Head("hocket recorded run, version ", 2, RecorderError, title="a recorded run", most_nbytes=16 << 20)


def saved_layout() -> np.dtype[np.void]:
    """Return the layout of a saved event: its place in its ring, and the event."""
    import numpy as np

    return np.dtype([("place", "<i8"), *((field, "<" + code) for field, code in EVENT_FIELDS)])


def saved_events(ring: Ring) -> NDArray[np.void]:
    """Return the events of a recorder's ring in the layout of saved ones."""
    import numpy as np

    rows = np.zeros(len(ring.events), saved_layout())
    rows["place"] = ring.places
    for name in ring.events.dtype.names or ():
        rows[name] = ring.events[name]
    return rows


def events_path(folder: Path, process: str, ring: str) -> Path:
    """Return the file of a process's events of one ring."""
    return folder / f"{process}.{ring}"


@dataclass(frozen=True)
class RunDescription:
    """What was run.

    Args:
        command: program and arguments.
        host: name of the host.
        began_s, ended_s: seconds since 1970; of a run that goes on, when this was said.
        exit_code: of the command; negative: minus the number of the signal that ended it; None: it goes on.
        lost: of each process and ring, how many events were overwritten before they could be saved.
        num_events: of each process and ring, how many events were saved.
        anchors: pairs of ticks and nanoseconds of the host's monotonic clock, oldest first.
        readings: comparisons with the clock of the first host, in nanoseconds: this clock before, the other one, this
            clock after; none if the clock is the same.
        io_looks: of each process without last counters of its I/O, because it was killed or still runs, six numbers:
            for reads and for writes the bytes recorded in files, seen elsewhere, and counted by the kernel.
        tasks: of each process in a job of Slurm or PBS, its place there.
        queued: the jobs of these tasks as the batch system sees them, by id; of some it may say nothing.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["false"], "run-that-fails")
        >>> observe.open_run("run-that-fails").description.exit_code
        1
    """

    command: tuple[str, ...]
    host: str
    began_s: float
    ended_s: float
    exit_code: int | None
    lost: dict[str, dict[str, int]]
    num_events: dict[str, dict[str, int]]
    anchors: tuple[Anchor, ...]
    readings: tuple[tuple[float, float, float], ...] = ()
    io_looks: dict[str, list[int]] = field(default_factory=dict)
    tasks: dict[str, BatchTask] = field(default_factory=dict)
    queued: dict[str, QueuedJob] = field(default_factory=dict)


@dataclass(frozen=True)
class SavedProcess:
    """A process of a recorded run.

    Args:
        name: of its files.
        snapshot: its recorder at its end, with exact totals.
        events: by ring, structured arrays with "place" and `hocket.trace.EVENT_FIELDS`, by place.
        lost: by ring, how many events are missing in `events`.
        io: how much of its I/O was seen.
        series: what the kernel said of the process while it ran: structured array by time with "time_ns", nanoseconds
            of the monotonic clock of its host (`clock.seconds_at_ns` converts them); "state", the place of a state in
            `SERIES_STATES`; and the numbers of `ProcessStatus` as float64, from "cpu_s" to "device_written_nbytes".
            NaN: it could not be read, for example because the process belongs to another user or was killed. The last
            row is that of the end.
        problems: what could not be read, each with the file and the offset.
        host: name of its host.
        clock: converts its ticks to seconds since the run began, equal for the processes of all hosts.
        is_partial: whether it may have done more than is known here: another host has not sent all of it.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-of-a-process")
        >>> (process,) = observe.open_run("run-of-a-process").processes
        >>> process.snapshot.owner.program, process.lost, process.problems
        ('cat /etc/hostname', {}, ())
    """

    name: str
    snapshot: RecorderSnapshot
    events: dict[str, NDArray[np.void]]
    lost: dict[str, int]
    io: IoCompleteness
    series: NDArray[np.void]
    problems: tuple[str, ...]
    host: str
    clock: RunClock
    is_partial: bool = False


@dataclass(frozen=True)
class ObservedRun:
    """A recorded run.

    Args:
        folder: where it is.
        description: what was run on the first host.
        processes: of all hosts, by rank; processes without a rank come last, by their start.
        other_hosts: what was run on other hosts.
        host_series: samples of all hosts, their devices and their shared file systems.
        connections: TCP connections of all hosts.
        problems: what could not be read of these, each with the file and the offset.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-to-open")
        >>> observe.open_run("run-to-open").description.command
        ('cat', '/etc/hostname')
    """

    folder: Path
    description: RunDescription
    processes: tuple[SavedProcess, ...]
    other_hosts: tuple[RunDescription, ...] = ()
    host_series: tuple[SavedSeries, ...] = ()
    connections: tuple[HostConnections, ...] = ()
    problems: tuple[str, ...] = ()


def empty_folder(folder: Path) -> Path:
    """Make a folder, or take an empty one.

    Raises:
        InvalidArgument: it is not empty, or cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        is_empty = not any(folder.iterdir())
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be used: {error.strerror}") from None
    if not is_empty:
        raise InvalidArgument(f"the folder {folder} is not empty: name a new one")
    return folder


def save_run(folder: Path, description: RunDescription) -> None:
    """Write the description of a run beside the files of its processes."""
    text = json.dumps({HEAD.key: HEAD.text, **asdict(description)}, indent=1)
    write_text(folder / RUN_FILE, text)


def save_progress(folder: Path, description: RunDescription, memory: Path) -> None:
    """Write what is known of a run that goes on.

    Args:
        folder: of the run.
        description: as of now.
        memory: folder with the recorders of processes that run.
    """
    write_text(folder / CLAIM_FILE, json.dumps({HEAD.key: HEAD.text, "memory": str(memory), **asdict(description)}))


def follow(folder: Path) -> None:
    """Ask the agent of a run that goes on to save events sooner, for the next seconds."""
    (folder / FOLLOWED_FILE).touch()


def is_followed(folder: Path) -> bool:
    """Return whether somebody has asked for that."""
    try:
        return time() - (folder / FOLLOWED_FILE).stat().st_mtime < _FOLLOWED_S
    except OSError:
        return False


def open_run(folder: str | Path) -> ObservedRun:
    """Read a run that `hocket observe run` or `record_run` has saved, or saves now.

    Of a run that goes on, `description.exit_code` is None, and what has happened in the last second may be missing.

    Args:
        folder: of the run.

    Raises:
        RecorderError: the folder has no run, or one of a newer version; names the file.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["cat", "/etc/hostname"], "run-of-one")
        >>> len(observe.open_run("run-of-one").processes)
        1
    """
    path = Path(folder)
    problems: list[str] = []
    loaded = load_hosts(path, problems)
    descriptions = {each: description for each, (description, _) in loaded.items()}
    origin_ns = descriptions[path].anchors[0][1]
    processes = [
        _process(each, name, snapshot, description, clock, is_partial=each != path and memory is not None)
        for each, (description, memory) in loaded.items()
        for clock in (_clock(description, origin_ns),)
        for name, snapshot in recorders_of(each, memory, None if each == path else problems)
    ]
    known = {process.name for process in processes}
    problems += [
        f"{path}: it is missing"
        for each, description in descriptions.items()
        for name in sorted(set(description.num_events) - known)
        if not (path := each / (name + RECORDER_SUFFIX)).exists()
    ]
    processes.sort(key=process_order)
    series = [
        found
        for each, description in descriptions.items()
        for file in sorted(each.glob(DEVICE_FILES))
        if (found := read_series(file, description.host, _clock(description, origin_ns), problems)) is not None
    ]
    series.sort(key=lambda each: (each.host, each.source, each.name))
    connections = [
        of_host
        for each, description in descriptions.items()
        if (of_host := read_connections(each, description.host, _clock(description, origin_ns), problems)) is not None
    ]
    first, *others = descriptions.values()
    return ObservedRun(path, first, tuple(processes), tuple(others), tuple(series), tuple(connections), tuple(problems))


def recorders_of(
    folder: Path, memory: Path | None, problems: list[str] | None, latest: int | None = None
) -> Iterator[tuple[str, RecorderSnapshot]]:
    """Yield the names and the recorders of a run's processes.

    Args:
        folder: of the run on one host, with those of processes that have ended.
        memory: folder with those of processes that run; None: none does.
        problems: what is wrong with files that another host has sent is appended; None: they are of this host.
        latest: so many events of each ring; None: all that recorders of processes that have ended have.

    Raises:
        RecorderError: a file of this host is no recorder; names it.
    """
    ended = set()
    for file in sorted(folder.glob("*" + RECORDER_SUFFIX)):
        name = file.name.removesuffix(RECORDER_SUFFIX)
        ended.add(name)
        try:
            snapshot = read_recorder(file, latest)
        except RecorderError as error:
            if problems is None:
                raise
            problems.append(str(error))
            continue
        yield name, snapshot
    for file in sorted(memory.glob(RECORDER_FILES + "*")) if memory else ():
        try:
            snapshot = read_recorder(file, _LATEST_EVENTS if latest is None else latest)
        except RecorderError:
            continue  # it is being made, or has just ended
        if (name := name_of(file, snapshot.owner)) not in ended:
            yield name, snapshot


def name_of(path: Path, owner: Owner) -> str:
    """Return the name of a process's files in a saved run.

    It has the number of the process's program, because `os.exec` gives a process a new recorder with the old name.
    """
    name, end = path.name.removeprefix(RECORDER_FILES), f"-{owner.image}"
    return name if name.endswith(end) else name + end


def load_hosts(folder: Path, problems: list[str]) -> dict[Path, tuple[RunDescription, Path | None]]:
    """Return what `load_description` does for each host of a run, by its folder, the first host first.

    Args:
        folder: of the run.
        problems: of which other hosts nothing can be read, or not all has come, is appended.

    Raises:
        RecorderError: the folder has no run; names the file.
    """
    found = {folder: load_description(folder)}
    unfinished: dict[Path, str] = {}
    for each in sorted(folder.glob(HOST_FOLDERS)):
        try:
            description, memory = load_description(each)
        except RecorderError as error:
            problems.append(str(error))
            continue
        if memory is not None:
            unfinished[each] = description.host
        # Where its recorders lie on that host means nothing here.
        found[each] = description, None if memory is None else each / LIVE_FOLDER
    for part in sorted(folder.glob(PART_PREFIX + HOST_FOLDERS)):
        if not (each := part.with_name(part.name.removeprefix(PART_PREFIX))).exists():
            unfinished[each] = each.name.split("-", 2)[-1]
    agent = agent_memory(folder) if unfinished else None
    if agent is None or not is_alive(agent):  # nothing more comes
        problems += [f"{each}: not all that host {host} recorded has come" for each, host in unfinished.items()]
    return found


def agent_memory(folder: Path) -> Path | None:
    """Return the folder in memory of the agent that records a run, or waits for its other hosts.

    None: the run was recorded. The agent may have been killed (`hocket.observe.one_agent.is_alive`).
    """
    try:
        _, content = HEAD.load(folder / CLAIM_FILE)
    except RecorderError:
        return None
    return Path(str(content.get("memory")))


def parse_description(text: str, place: str) -> RunDescription:
    """Return what a description says that another host has sent.

    Args:
        text: JSON.
        place: origin of the text, for messages.

    Raises:
        RecorderError: it is no description.
    """
    return _description(HEAD.parse(text, place)[1], place)


def description_text(description: RunDescription) -> str:
    """Return a description as JSON, for `parse_description`."""
    return json.dumps({HEAD.key: HEAD.text, **asdict(description)})


def load_description(folder: Path) -> tuple[RunDescription, Path | None]:
    """Return what was run, and the folder with the recorders of processes that run; None: the run is over.

    Raises:
        RecorderError: the folder has no run; names the file.
    """
    is_over = (folder / RUN_FILE).exists()
    path = folder / (RUN_FILE if is_over else CLAIM_FILE)
    if not is_over and not (path.is_file() and path.stat().st_size):
        raise RecorderError(f"{folder / RUN_FILE}: {_why_no_run(folder)}")
    _, content = HEAD.load(path)
    return _description(content, str(path)), None if is_over else Path(str(content.get("memory")))


def _why_no_run(folder: Path) -> str:
    if not folder.is_dir():
        return f"{folder} is no folder; a recorded run is one"
    if (folder / CLAIM_FILE).exists():
        return "the run begins just now, or its agent was killed: try again in a second"
    if any(folder.glob("*" + RECORDER_SUFFIX)):
        return "this is no recorded run; read copies of recorders with hocket.trace.read_recorder"
    return "this is no recorded run; name the folder that `hocket observe run` has printed"


def _clock(description: RunDescription, origin_ns: int) -> RunClock:
    return RunClock(description.anchors, [ClockReading(*each) for each in description.readings], origin_ns)


def process_order(process: SavedProcess) -> tuple[bool, int, float]:
    """The order of the processes of a run: by rank, those without one last, by their start."""
    owner = process.snapshot.owner
    return owner.rank is None, owner.rank or 0, float(process.clock.seconds(process.snapshot.anchor[0]))


def _process(
    folder: Path, name: str, snapshot: RecorderSnapshot, description: RunDescription, clock: RunClock, is_partial: bool
) -> SavedProcess:
    problems = list(snapshot.problems)
    goes_on = description.exit_code is None and name not in description.num_events
    counts = description.num_events.get(name, {})
    events = {
        ring: _events(events_path(folder, name, ring), ring, None if goes_on else counts.get(ring, 0), problems)
        for ring in snapshot.rings
    }
    look = description.io_looks.get(name)
    io = completeness_of(snapshot, last=last_look(look) if look is not None else None)
    lost = dict(description.lost.get(name, {}))
    series = read_process_rows(folder / (name + SERIES_SUFFIX), problems)
    host = description.host
    return SavedProcess(name, snapshot, events, lost, io, series, tuple(problems), host, clock, is_partial)


def _events(path: Path, ring: str, num_saved: int | None, problems: list[str]) -> NDArray[np.void]:
    import numpy as np

    layout = saved_layout()
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        content = b""
    except OSError as error:
        problems.append(f"{path}: {error.strerror}")
        return np.zeros(0, layout)
    whole = len(content) // layout.itemsize * layout.itemsize
    if whole < len(content) and num_saved is not None:
        problems.append(f"{path}, offset {whole}: it ends in the middle of an event")
    events = np.frombuffer(content[:whole], layout)
    if num_saved is not None and len(events) != num_saved:
        problems.append(f"{path}: it has {len(events)} events, but {num_saved} were saved")
    is_valid = are_events(ring, events)
    if not is_valid.all():
        first = int(np.argmin(is_valid)) * layout.itemsize
        problems.append(f"{path}, offset {first}: {np.count_nonzero(~is_valid)} entries are no events of {ring}")
        events = events[is_valid]
    return events[np.argsort(events["place"], kind="stable")]


def _description(content: dict[str, Any], place: str) -> RunDescription:
    try:
        return RunDescription(
            command=command_from(content["command"]),
            host=host_from(content["host"]),
            began_s=unix_seconds_from(content["began_s"], "began_s"),
            ended_s=unix_seconds_from(content["ended_s"], "ended_s"),
            exit_code=exit_code_from(content["exit_code"]),
            lost=counts_from(content["lost"], "lost"),
            num_events=counts_from(content["num_events"], "num_events"),
            anchors=anchors_from(content["anchors"]),
            readings=readings_from(content["readings"]),
            io_looks=looks_from(content.get("io_looks", {}), "io_looks"),
            tasks=records_from(BatchTask, content.get("tasks", {}), "tasks"),
            queued=records_from(QueuedJob, content.get("queued", {}), "queued"),
        )
    except KeyError as error:
        raise RecorderError(f"{place}: the key {error} is missing") from None
    except (TypeError, ValueError, OverflowError, AttributeError, InvalidArgument) as error:
        raise RecorderError(f"{place}: {error}") from None
