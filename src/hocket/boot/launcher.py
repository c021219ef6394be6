"""Run a command as the ranks of one job on this machine."""

from __future__ import annotations

import contextlib
import glob
import os
import secrets
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from hocket.boot.guardian import Guardian
from hocket.boot.job_result import JobResult
from hocket.boot.mpi_limits import Limits
from hocket.boot.mpi_sockets import MpiSockets
from hocket.boot.nodes import Nodes
from hocket.boot.rank_output import Outputs
from hocket.boot.rank_process import Descriptors, RankProcess, job_environment, rank_environment, recorder_memory
from hocket.boot.record_folder import forget_old_records, record_folder
from hocket.boot.report import read_reports
from hocket.boot.signals import SignalInbox
from hocket.boot.standard_streams import keep_standard_streams
from hocket.boot.summary import summarise
from hocket.boot.supervisor import Patience, StartedRank, Supervisor
from hocket.errors import InvalidArgument, LaunchError
from hocket.reserved_port import ReservedPort


def launch(
    command: list[str],
    num_ranks: int,
    *,
    env: Mapping[str, str] | None = None,
    tag_output: bool = False,
    patience: Patience | None = None,
    record_dir: Path | None = None,
) -> int:
    """Run a job, print its failures to stderr, and return its exit code; arguments and errors as for `run_job`."""
    result = run_job(command, num_ranks, env=env, tag_output=tag_output, patience=patience, record_dir=record_dir)
    sys.stderr.write(summarise(result))
    return result.exit_code


def run_job(
    command: list[str],
    num_ranks: int,
    *,
    env: Mapping[str, str] | None = None,
    tag_output: bool = False,
    patience: Patience | None = None,
    record_dir: Path | None = None,
    nodes: Nodes | None = None,
    folder_too: Path | None = None,
) -> JobResult:
    """Run `command` as `num_ranks` processes and wait until all of them have ended.

    Each rank has its own session, reads /dev/null as stdin, and dies with this process. When this function returns or
    raises, all processes of the ranks' groups have ended, and the folder of reports is removed. In the main thread,
    SIGINT is passed to the ranks (a second SIGINT kills them); SIGTERM and SIGHUP end them.

    Args:
        command: program and arguments; that of `rank_process.runner_command` writes failure reports.
        num_ranks: number of processes to start on this host, 1 or more.
        env: environment variables to use instead of this process's own.
        tag_output: put "[rank] " before each line of output. Output of several ranks always passes through this
            process, so that lines stay whole.
        patience: time limits after a failure, and of the whole job.
        record_dir: folder where failing ranks write the records of their last operations; by default
            HOCKET_RECORD_DIR, else `record_folder`. The latter is removed if an exception of the program itself caused
            the failure.
        nodes: all hosts of the job, each with its own launcher; by default only this host.
        folder_too: folder to remove if this process is killed.

    Raises:
        InvalidArgument: `num_ranks` is less than 1.
        LaunchError: a rank could not be started; the ranks that had started were ended.
    """
    if num_ranks < 1:
        raise InvalidArgument(f"num_ranks must be 1 or more, not {num_ranks}")
    keep_standard_streams()
    started_s = time.monotonic()
    with contextlib.ExitStack() as cleanup:
        inbox = cleanup.enter_context(SignalInbox())  # first, so that no signal can end this process before its cleanup
        folder = Path(tempfile.mkdtemp(prefix="hocket-reports-"))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        guardian = Guardian(folder)
        cleanup.callback(guardian.dismiss)
        if folder_too is not None:
            guardian.remove_too(glob.escape(str(folder_too.absolute())))
        nodes = nodes or Nodes()
        port = nodes.master_port or cleanup.enter_context(ReservedPort()).number
        shared = job_environment(num_ranks, folder, nodes, port, env)
        if record_dir is not None:
            shared["HOCKET_RECORD_DIR"] = str(record_dir.absolute())
        is_own_folder = not shared.get("HOCKET_RECORD_DIR")
        if is_own_folder:
            shared["HOCKET_RECORD_DIR"] = str(
                record_folder(secrets.token_hex(16) if nodes.num_nodes > 1 else shared["HOCKET_JOB"])
            )
        if tag_output:
            shared.setdefault("PYTHONUNBUFFERED", "1")  # so that each line appears when it is printed, as on a terminal
        ready_reader, ready_writer = os.pipe()
        cleanup.callback(os.close, ready_reader)
        cleanup.callback(os.close, ready_writer)
        os.set_blocking(ready_reader, False)
        outputs = Outputs(are_inherited=num_ranks == 1 and not tag_output)
        cleanup.callback(outputs.close)
        patience = patience or Patience()
        mpi = None
        if nodes.num_nodes * num_ranks > 1:
            limits = Limits(
                patience.term_after_s, patience.mpi_start_s, patience.mpi_named_after_s, patience.keep_going
            )
            mpi = MpiSockets(nodes, num_ranks, limits, guardian.remove_too)
            cleanup.callback(mpi.close)
        started: list[StartedRank] = []
        cleanup.callback(_close_all, started)

        def start(rank: int, local_rank: int) -> StartedRank:
            try:
                channels = outputs.open(b"[%d] " % rank if tag_output else b"")
            except OSError as error:
                raise LaunchError(f"rank {rank} could not be started: {error}") from error
            try:
                own = rank_environment(rank, local_rank, shared)
                with contextlib.ExitStack() as after_start:
                    rank_end = None
                    if mpi is not None:
                        rank_end, of_mpi = mpi.open(rank)
                        after_start.callback(rank_end.close)
                        own |= of_mpi
                    fd = None if rank_end is None else rank_end.fileno()
                    recorder = recorder_memory()
                    if recorder is not None:
                        cleanup.callback(os.close, recorder)
                    process = RankProcess(
                        rank, command, own, Descriptors(channels.stdout, channels.stderr, ready_writer, fd, recorder)
                    )
            except BaseException:
                channels.close()
                raise
            channels.close_rank_ends()
            started.append(StartedRank(process, channels.outputs))
            guardian.watch(process.pid)
            return started[-1]

        starts = [partial(start, rank, local) for local, rank in enumerate(nodes.ranks(num_ranks))]
        supervisor = Supervisor(starts, ready_reader, inbox, patience, outputs.targets, mpi)
        outcomes = supervisor.run()
        result = JobResult(
            outcomes,
            read_reports(folder, nodes.ranks(num_ranks)),
            time.monotonic() - started_s,
            shared["HOCKET_RECORD_DIR"],
            supervisor.interrupted_by,
            supervisor.timed_out,
            patience.keep_going,
            supervisor.num_not_started,
            supervisor.ended,
            any(target.error is not None for target in outputs.targets),
        )
        if mpi is not None:
            mpi.note_result(result.ranks_exit_code)
        if is_own_folder:
            if result.is_of_program:
                shutil.rmtree(result.record_dir, ignore_errors=True)
            elif result.failures:
                forget_old_records()
        return result


def _close_all(started: list[StartedRank]) -> None:
    for each in started:
        each.process.close()
        for output in each.outputs:
            output.close()
