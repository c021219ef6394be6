"""Records a command and all programs that it starts, on this host or as one of several."""

from __future__ import annotations

import os
import socket
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from shutil import rmtree
from tempfile import mkdtemp
from time import time

from hocket.errors import InvalidArgument
from hocket.observe.agent import FOLDER_PREFIX, Agent, agent_of
from hocket.observe.command import check_command, running
from hocket.observe.completeness import RunCompleteness, account_numbers, total_of
from hocket.observe.hook_watch import HookWatch
from hocket.observe.host_collector import HostCollector, parse_address
from hocket.observe.host_growth import GrowthSender
from hocket.observe.host_joiner import HostJoiner
from hocket.observe.host_views import view_message
from hocket.observe.job_watcher import JobWatcher
from hocket.observe.nccl import plugin_problem
from hocket.observe.one_agent import AgentLease, lease_or_folder
from hocket.observe.run import LAYERS, recording_environment
from hocket.observe.sampler import check_interval
from hocket.observe.saved import CLAIM_FILE, RunDescription, empty_folder, save_run

JOIN_VARIABLE = "HOCKET_OBSERVE_JOIN"
"""Environment variable of a recorded command: where agents of other hosts join the run."""


@dataclass(frozen=True)
class RunRecording:
    """What is left of a recorded run.

    Args:
        folder: the run, for `open_run`; None: it is on another host, or another process records it.
        exit_code: of the command; negative: minus the number of the signal that ended it.
        num_processes: how many processes have left a recorder.
        num_events: how many events were saved.
        num_lost: how many events were overwritten before they could be saved; totals have them.
        io: how much of the I/O of all processes of this host was seen.
        problems: what could not be read, and which libraries the hooks do not match.
        num_hosts: how many hosts recorded; 0: another process records.

    Examples:
        >>> from hocket import observe
        >>> observe.record_run(["true"], "run").exit_code
        0
    """

    folder: Path | None
    exit_code: int
    num_processes: int
    num_events: int
    num_lost: int
    io: RunCompleteness
    problems: tuple[str, ...]
    num_hosts: int


def record_run(
    command: Sequence[str], folder: str | Path, *, layers: Collection[str] = LAYERS, interval_s: float = 1.0,
    environment: Mapping[str, str] | None = None, listen: str | None = None,
) -> RunRecording:  # fmt: skip
    """Run a command and record it and all programs that it starts on this host; they need not import hocket.

    Args:
        command: program and arguments, such as ``["torchrun", "--nproc-per-node", "2", "train.py"]``.
        folder: where to save the run; a new or an empty folder.
        layers: what to record of programs that do not import hocket: "comm", "io" or both.
        interval_s: seconds between two samples of the processes and of this host, such as their CPU and memory; at
            least 0.01. With many processes they are rarer, so that sampling takes at most 3 % of a CPU.
        environment: of the command; None: that of this process.
        listen: address by which other hosts reach this one, such as ``"10.0.0.1:29777"``: their agents (see `join_run`)
            send what they record into this run. Without a port any free one is used; `HOCKET_OBSERVE_JOIN` tells it to
            the command. None: this host only.

    Raises:
        InvalidArgument: `folder` is not empty, a layer is unknown, the interval is too short, the command cannot be
            started, or this host does not have the address.
        RecorderError: nothing can be recorded here.

    Examples:
        >>> from hocket import observe
        >>> observe.record_run(["cat", "/etc/hostname"], "run-of-cat").exit_code
        0
    """
    check_command(command)
    check_interval(interval_s)
    target = empty_folder(Path(folder))
    variables = dict(os.environ if environment is None else environment)
    with _claimed(target), agent_of(target, interval_s) as agent:
        if listen is None:
            return _record(agent, command, variables, layers)
        with HostCollector(*parse_address(listen, needs_port=False), target, agent.memory) as collector:
            variables[JOIN_VARIABLE] = collector.name
            recording = _record(agent, command, variables, layers)
            collector.wait_for_hosts()
            problems = (*recording.problems, *collector.problems)
            return replace(recording, problems=problems, num_hosts=1 + collector.num_kept)


def join_run(
    command: Sequence[str], address: str, *, layers: Collection[str] = LAYERS, interval_s: float = 1.0,
    environment: Mapping[str, str] | None = None, timeout: float = 60.0,
) -> RunRecording:  # fmt: skip
    """Run a command, record it on this host, and send that to the first host of the run.

    Of all tasks on a host that join the same run, the first one records for all, until all of them have ended.

    Args:
        command: program and arguments.
        address: of the first host: the one that `record_run` listens at, with the port.
        layers: what to record of programs that do not import hocket: "comm", "io" or both.
        interval_s: seconds between two samples, as of `record_run`.
        environment: of the command; None: that of this process.
        timeout: seconds to wait until the first host listens.

    Returns:
        What was recorded. `folder` is None: the run is on the first host.

    Raises:
        InvalidArgument: a layer is unknown, the interval is too short, or the command cannot be started.
        RecorderError: the first host is not there, has another secret, or has left; then the message names the folder
            in which the recording lies on this host.

    Examples:
        >>> from hocket import observe
        >>> observe.join_run(["true"], "127.0.0.1:9", timeout=0.2)
        Traceback (most recent call last):
        hocket.errors.RecorderError: no `hocket observe run --listen` answers at 127.0.0.1:9 within 0.2 s: ...
    """
    check_command(command)
    check_interval(interval_s)
    place = parse_address(address, needs_port=True)
    variables = dict(os.environ if environment is None else environment)
    with lease_or_folder(address) as lease:
        if isinstance(lease, Path):
            return _recorded_by_another(command, recording_environment(variables, lease, layers))
        joiner = HostJoiner(place, timeout)
        target = Path(mkdtemp(prefix="hocket-joined-run-"))
        try:
            with agent_of(target, interval_s) as agent:
                lease.publish(agent.memory)
                watcher = JobWatcher(agent.places)
                joiner.look = lambda: view_message(watcher.look())
                joiner.growth = GrowthSender(target, lambda: agent.drains)
                recording = _record(agent, command, variables, layers, lease, joiner)
            joiner.send_run(target)
        finally:
            joiner.close()
        rmtree(target, ignore_errors=True)
        return replace(recording, folder=None)


def follow_run(command: Sequence[str]) -> RunRecording | None:
    """Run a command as a part of the run that records this process already; None: none does.

    Raises:
        InvalidArgument: the command cannot be started.

    Examples:
        >>> from hocket import observe
        >>> observe.follow_run(["true"]) is None
        True
    """
    memory = Path(os.environ.get("HOCKET_RECORDER_FOLDER", "/nowhere"))
    if not memory.name.startswith(FOLDER_PREFIX) or not memory.is_dir():
        return None
    return _recorded_by_another(command, os.environ)


def _recorded_by_another(command: Sequence[str], variables: Mapping[str, str]) -> RunRecording:
    io = total_of([], "another process records")
    with running(command, variables) as process:
        return RunRecording(None, process.wait(), 0, 0, 0, io, (), 0)


@contextmanager
def _claimed(folder: Path) -> Iterator[None]:
    """Keep other processes from recording into a folder: tasks of `srun` start at the same time."""
    claim = folder / CLAIM_FILE
    try:
        claim.touch(exist_ok=False)
    except FileExistsError:
        raise InvalidArgument(f"another process records into {folder}: name a folder for each") from None
    except OSError as error:
        raise InvalidArgument(f"{folder} cannot be used: {error.strerror}") from None
    try:
        yield
    except InvalidArgument:
        claim.unlink(missing_ok=True)
        with suppress(OSError):  # nothing was started: leave no empty folder
            folder.rmdir()
        raise
    finally:
        claim.unlink(missing_ok=True)


def _record(
    agent: Agent, command: Sequence[str], environment: Mapping[str, str], layers: Collection[str],
    lease: AgentLease | None = None, joiner: HostJoiner | None = None,
) -> RunRecording:  # fmt: skip
    variables = recording_environment(environment, agent.memory, layers)
    plugin = plugin_problem(variables) if "comm" in layers else None
    began_s = time()
    with running(command, variables) as process:
        if "comm" in layers:
            agent.watch = HookWatch(process.pid)
        agent.describe = lambda: _description(agent, command, began_s, None, joiner)
        agent.start()
        try:
            exit_code = process.wait()
            if lease is not None:
                lease.wait_for_others()
        finally:
            agent.stop()
    if joiner is not None:
        joiner.stop_comparing()
    drains = agent.drains
    description = _description(agent, command, began_s, exit_code, joiner)
    problems = [*([plugin] if plugin else []), *agent.problems]
    try:
        save_run(agent.target, description)
    except OSError as error:
        problems.append(f"{agent.target} cannot be read: its description could not be saved: {error.strerror}")
    return RunRecording(
        folder=agent.target,
        exit_code=exit_code,
        num_processes=len(drains),
        num_events=sum(sum(drain.num_saved.values()) for drain in drains),
        num_lost=sum(sum(drain.lost.values()) for drain in drains),
        io=total_of((drain.label or drain.name, drain.io) for drain in drains),
        problems=tuple(problems),
        num_hosts=1,
    )


def _description(
    agent: Agent, command: Sequence[str], began_s: float, exit_code: int | None, joiner: HostJoiner | None
) -> RunDescription:
    """What is known of the run now; `exit_code` is None while it goes on."""
    drains = agent.drains
    return RunDescription(
        command=tuple(command),
        host=socket.gethostname(),
        began_s=began_s,
        ended_s=time(),
        exit_code=exit_code,
        lost={drain.name: dict(drain.lost) for drain in drains if drain.lost},
        num_events={drain.name: dict(drain.num_saved) for drain in drains if drain.has_copy},
        anchors=tuple(agent.anchors.anchors),
        tasks=dict(agent.sampler.tasks),
        queued={} if exit_code is None else agent.sampler.queued_jobs(),
        readings=tuple((each.asked, each.theirs, each.answered) for each in joiner.readings) if joiner else (),
        io_looks={drain.name: account_numbers(drain.io) for drain in drains if drain.io.as_of == "now"},
    )
