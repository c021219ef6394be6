"""Samples the processes of a run and their host while the run is recorded."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from time import monotonic, monotonic_ns, thread_time

from hocket.errors import InvalidArgument, RecorderError
from hocket.observe.batch import BatchTask, QueuedJob, queued_job, task_in
from hocket.observe.connections import ConnectionSampler
from hocket.observe.drain import Drain
from hocket.observe.file_systems import sample_file_systems
from hocket.observe.host import HostSample, sample_host
from hocket.observe.neighbors import sample_neighbors
from hocket.observe.network_devices import sample_queues
from hocket.observe.processes import status_of
from hocket.observe.series import DEVICE_FILES, PROCESS_NUMBERS, SERIES_SUFFIX, SeriesWriter

_LEAST_INTERVAL_S = 0.01
_MOST_INTERVAL_S = 3600.0
_PROCESSES_SHARE, _HOST_SHARE = 0.01, 0.02
"""Of the time of a CPU that sampling takes at most; with many processes or devices it becomes rarer.

What processes used of the CPUs tells why a rank was late, and costs less than to ask the whole host: it has its own
share.
"""
_NEIGHBORS_S = 60.0
"""Between two questions about what devices are connected to: that changes when somebody pulls a cable."""
_MOST_DEVICES = 1024
_MOST_JOBS = 4


def check_interval(interval_s: float) -> None:
    """Check seconds between two rows or looks.

    Raises:
        InvalidArgument: they are too short, too long, or no number.
    """
    if not _LEAST_INTERVAL_S <= interval_s <= _MOST_INTERVAL_S:
        raise InvalidArgument(f"interval_s must be {_LEAST_INTERVAL_S} to {_MOST_INTERVAL_S:.0f}, not {interval_s}")


class _Pace:
    """When to do something again: after an interval, or later if it takes more than its share of a CPU."""

    def __init__(self, interval_s: float, most_share: float) -> None:
        self._interval_s, self._most_share = interval_s, most_share
        self._due_s = self._cost_s = 0.0

    def do(self, work: Callable[[], object]) -> None:
        """Do it, if it is time."""
        began_s, began_cpu_s = monotonic(), thread_time()
        if began_s < self._due_s:
            return
        work()
        cost_s = thread_time() - began_cpu_s
        # The cheaper of two counts: a sample now and then makes files and loads modules.
        self._due_s = began_s + max(self._interval_s, min(cost_s, self._cost_s) / self._most_share)
        self._cost_s = cost_s


class RunSampler:
    """Writes one row for each process, and for the host and its devices, in every interval.

    A process has a row from when it is first seen, however short it is, and a last one of its end.

    Args:
        target: folder of the run.
        interval_s: seconds between two rows.
    """

    def __init__(self, target: Path, interval_s: float) -> None:
        self._target = target
        self.interval_s = interval_s
        self.problems: set[str] = set()
        self.tasks: dict[str, BatchTask] = {}
        """Of processes in a job of Slurm or PBS."""
        self._neighbors_due_s = 0.0
        self._paces = _Pace(interval_s, _PROCESSES_SHARE), _Pace(interval_s, _HOST_SHARE)
        self._running: dict[str, tuple[Drain, SeriesWriter]] = {}
        self._ended: set[str] = set()
        self._devices: dict[tuple[str, str], SeriesWriter] = {}
        self._connections = ConnectionSampler(target)

    def see(self, drain: Drain) -> None:
        """Take note of a process: it is new, has ended, or both."""
        if drain.owner is None or drain.name in self._ended:
            return
        if drain.name not in self._running:
            path = self._target / (drain.name + SERIES_SUFFIX)
            self._running[drain.name] = (
                drain,
                SeriesWriter(path, "process", drain.name, PROCESS_NUMBERS, has_state=True),
            )
            if task := task_in(drain.variables):
                self.tasks[drain.name] = task
            if not drain.is_replaced:
                self._sample_process(drain)
        if drain.is_over or drain.is_replaced:
            self._close(drain)

    def sample_if_due(self) -> None:
        """Sample the processes that were seen and run, and the host, if it is time for each."""
        for pace, work in zip(self._paces, (self._sample_processes, self.sample_host), strict=True):
            pace.do(work)

    def _sample_processes(self) -> None:
        for drain, _ in self._running.values():
            self._sample_process(drain)

    def sample_host(self) -> None:
        """Sample the host, its devices, its connections and its shared file systems."""
        host = sample_host(socket.gethostname())
        for sample in (*host, *sample_queues(self.problems), *sample_file_systems(self.problems)):
            self._sample_device(sample)
        if monotonic() >= self._neighbors_due_s:
            self._neighbors_due_s = monotonic() + _NEIGHBORS_S
            for sample in sample_neighbors():
                self._sample_device(sample)
        self._connections.sample({drain.name: drain.pid for drain, _ in self._running.values() if drain.pid})

    def save(self) -> None:
        """Write what is known at the end only."""
        self._connections.save()
        self.problems |= self._connections.problems

    def close(self) -> None:
        """Free what sampling holds."""
        self._connections.close()

    def queued_jobs(self) -> dict[str, QueuedJob]:
        """Ask the batch system about the jobs of all tasks; what it does not say is a problem."""
        found = {}
        for job, task in list({task.job: task for task in self.tasks.values()}.items())[:_MOST_JOBS]:
            try:
                found[job] = queued_job(task)
            except RecorderError as error:
                self.problems.add(f"job {job} of {task.system}: {error}")
        return found

    def _sample_process(self, drain: Drain) -> bool:
        status = status_of(drain.owner) if drain.owner else None
        if status is None:
            return False
        _, writer = self._running[drain.name]
        writer.append(round(status.time_s * 1e9), asdict(status), status.state)
        return True

    def _close(self, drain: Drain) -> None:
        _, writer = self._running[drain.name]
        end = drain.end_status
        if end is not None:
            writer.append(end.time_ns, asdict(end), "ended")
        elif drain.is_replaced:
            writer.append(monotonic_ns(), {}, "replaced")
        elif not self._sample_process(drain):  # else it outlives the command
            writer.append(monotonic_ns(), {}, "ended")
        del self._running[drain.name]
        self._ended.add(drain.name)

    def _sample_device(self, sample: HostSample) -> None:
        writer = self._devices.get((sample.source, sample.name))
        if writer is None:
            if len(self._devices) == _MOST_DEVICES:
                return
            path = self._target / DEVICE_FILES.replace("*", str(len(self._devices)))
            writer = SeriesWriter(path, sample.source, sample.name, list(sample.numbers))
            self._devices[sample.source, sample.name] = writer
        writer.append(monotonic_ns(), sample.numbers)
