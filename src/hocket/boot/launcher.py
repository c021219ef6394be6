"""Runs a command as the ranks of one job on this machine."""

from __future__ import annotations

import contextlib
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path

from hocket.boot.guardian import Guardian
from hocket.boot.job_result import JobResult
from hocket.boot.nodes import Nodes
from hocket.boot.rank_process import RankProcess, job_environment, rank_environment
from hocket.boot.report import read_reports
from hocket.boot.signals import SignalInbox
from hocket.boot.summary import summarise
from hocket.boot.supervisor import Patience, Supervisor
from hocket.boot.tagged_output import TaggedOutput
from hocket.errors import InvalidArgument
from hocket.reserved_port import ReservedPort

_OUTPUT_FDS = (1, 2)


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
) -> JobResult:
    """Run `command` as `num_ranks` processes and wait for all of them, however they end.

    Each rank has a process group of its own, stdin from /dev/null, and dies with this process. When this returns or
    raises, no process of any of the groups is left, and neither is the folder for the ranks' reports. Called from the
    main thread, SIGINT goes to the ranks (a second one kills them), SIGTERM and SIGHUP end them.

    Args:
        command: program and arguments; `rank_process.runner_command` makes one that leaves reports.
        num_ranks: processes to start here, at least 1.
        env: variables instead of this process's own.
        tag_output: put "[rank] " before each line of output, by way of pipes.
        patience: when to end the other ranks after a failure, and the job as a whole.
        record_dir: where ranks write the records of their last operations when they fail; by default
            $HOCKET_RECORD_DIR, else hocket-records/<job> in the working directory.
        nodes: all hosts of the job, each with a launcher like this one; this one alone by default.

    Raises:
        InvalidArgument: `num_ranks` is less than 1.
        LaunchError: a rank could not be started; those that were have been ended.
    """
    if num_ranks < 1:
        raise InvalidArgument(f"num_ranks must be 1 or more, not {num_ranks}")
    started_s = time.monotonic()
    with contextlib.ExitStack() as cleanup:
        inbox = cleanup.enter_context(SignalInbox())  # first, so that no signal can end us between start and cleanup
        folder = Path(tempfile.mkdtemp(prefix="hocket-reports-"))
        cleanup.callback(shutil.rmtree, folder, ignore_errors=True)
        guardian = Guardian(folder)
        cleanup.callback(guardian.dismiss)
        nodes = nodes or Nodes()
        port = nodes.master_port or cleanup.enter_context(ReservedPort()).number
        shared = job_environment(num_ranks, folder, nodes, port, env)
        if record_dir is not None:
            shared["HOCKET_RECORD_DIR"] = str(record_dir.absolute())
        if tag_output:
            shared.setdefault("PYTHONUNBUFFERED", "1")  # a line should come when it is printed, as on a terminal
        ranks: list[RankProcess] = []
        cleanup.callback(_close_all, ranks)
        for local_rank, rank in enumerate(nodes.ranks(num_ranks)):
            ranks.append(RankProcess(rank, command, rank_environment(rank, local_rank, shared), piped=tag_output))
            guardian.watch(ranks[-1].pid)
        outputs = [
            (pipe.fileno(), TaggedOutput(rank.rank, pipe, target_fd))
            for rank in ranks
            for pipe, target_fd in zip(rank.pipes, _OUTPUT_FDS, strict=False)
        ]
        patience = patience or Patience()
        supervisor = Supervisor(ranks, inbox, patience, outputs)
        outcomes = supervisor.run()
        for _, output in outputs:
            output.finish()
        return JobResult(
            outcomes,
            read_reports(folder, nodes.ranks(num_ranks)),
            time.monotonic() - started_s,
            shared["HOCKET_RECORD_DIR"],
            supervisor.interrupted_by,
            supervisor.timed_out,
            patience.keep_going,
        )


def _close_all(ranks: list[RankProcess]) -> None:
    for rank in ranks:
        rank.close()
