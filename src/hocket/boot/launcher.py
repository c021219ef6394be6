"""Runs a command as the ranks of one job on this machine."""

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
from hocket.boot.rank_process import Descriptors, RankProcess, job_environment, rank_environment
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
    """Run a job, print its failures to stderr, and return its exit code. Arguments and errors as in `run_job`."""
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
    """Run `command` as `num_ranks` processes and wait for all of them, however they end.

    Each rank has a session of its own, stdin from /dev/null, and dies with this process. When this returns or
    raises, no process of any of their groups is left, and neither is the folder for the ranks' reports. Called from the
    main thread, SIGINT goes to the ranks (a second one kills them), SIGTERM and SIGHUP end them.

    Args:
        command: program and arguments; `rank_process.runner_command` makes one that leaves reports.
        num_ranks: processes to start here, at least 1.
        env: variables instead of this process's own.
        tag_output: put "[rank] " before each line of output. Output of several ranks goes through this process, so that
            their lines stay whole.
        patience: when to end the other ranks after a failure, and the job as a whole.
        record_dir: where ranks write the records of their last operations when they fail; by default
            $HOCKET_RECORD_DIR, else `record_folder`, from where they are taken away again if the cause of the failure
            was an exception of the program itself.
        nodes: all hosts of the job, each with a launcher like this one; this one alone by default.
        folder_too: is removed if this process is killed.

    Raises:
        InvalidArgument: `num_ranks` is less than 1.
        LaunchError: a rank could not be started; those that were have been ended.
    """
    if num_ranks < 1:
        raise InvalidArgument(f"num_ranks must be 1 or more, not {num_ranks}")
    keep_standard_streams()
    started_s = time.monotonic()
    with contextlib.ExitStack() as cleanup:
        inbox = cleanup.enter_context(SignalInbox())  # first, so that no signal can end us between start and cleanup
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
            shared.setdefault("PYTHONUNBUFFERED", "1")  # a line should come when it is printed, as on a terminal
        ready, says_ready = os.pipe()
        cleanup.callback(os.close, ready)
        cleanup.callback(os.close, says_ready)
        os.set_blocking(ready, False)
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
                    process = RankProcess(
                        rank, command, own, Descriptors(channels.stdout, channels.stderr, says_ready, fd)
                    )
            except BaseException:
                channels.close()
                raise
            channels.close_rank_ends()
            started.append(StartedRank(process, channels.outputs))
            guardian.watch(process.pid)
            return started[-1]

        starts = [partial(start, rank, local) for local, rank in enumerate(nodes.ranks(num_ranks))]
        supervisor = Supervisor(starts, ready, inbox, patience, outputs.targets, mpi)
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
