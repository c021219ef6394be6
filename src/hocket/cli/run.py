"""`hocket run`: start a script as several ranks on this machine, or on each of several machines."""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from hocket.boot.admission import check_room
from hocket.boot.job_result import JobResult
from hocket.boot.launcher import run_job
from hocket.boot.nodes import Nodes
from hocket.boot.rank_process import runner_command
from hocket.boot.summary import summarise
from hocket.boot.supervisor import Patience
from hocket.cli._nodes import MasterAddr, MasterPort, NodeRank, NumNodes
from hocket.cli._verbs import add_verb, argument
from hocket.discovery import blaming
from hocket.errors import BackendUnavailable, InvalidArgument


def register(application: typer.Typer) -> None:
    """Add the verb to the command."""
    settings = {"allow_interspersed_args": False}  # what follows the script's name belongs to the script
    add_verb(application, run, options_metavar="-n N [OPTIONS]", context_settings=settings)


def run(
    script: Annotated[list[str], argument(metavar="SCRIPT", help="The script and its arguments.")],
    num_ranks: Annotated[
        int,
        typer.Option(
            "-n",
            "-np",
            "--np",
            "--num-ranks",
            "--nproc-per-node",
            "--nproc_per_node",
            metavar="N",
            show_default=False,
            help="Number of ranks to start.",
        ),
    ],
    module: Annotated[
        bool, typer.Option("-m", "--module", help="SCRIPT is the name of a module, as in python -m.")
    ] = False,
    tag_output: Annotated[bool, typer.Option("--tag-output", help='Put "[rank] " before each line of output.')] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one line of JSON at the end: exit code and time of each rank.")
    ] = False,
    keep_going: Annotated[
        bool, typer.Option("--keep-going", help="When a rank fails, let the other ranks continue.")
    ] = False,
    oversubscribe: Annotated[
        bool,
        typer.Option(
            "--oversubscribe", help="Allow more than 16 ranks per CPU, or more ranks than free memory seems to allow."
        ),
    ] = False,
    learn: Annotated[
        bool, typer.Option("--learn", help="Correct the tuning table while the program runs (HOCKET_LEARN=1).")
    ] = False,
    dask: Annotated[
        bool,
        typer.Option(
            "--dask",
            help="Make the ranks one Dask cluster: rank 0 has the scheduler and runs SCRIPT, the others are workers.",
        ),
    ] = False,
    observe: Annotated[
        bool, typer.Option("--observe", help="Record the run, and show it in the browser; the address is printed.")
    ] = False,
    num_nodes: NumNodes = 1,
    node_rank: NodeRank = 0,
    master_addr: MasterAddr = "127.0.0.1",
    master_port: MasterPort = None,
) -> int:
    """Start a Python script as N processes (ranks) on this machine and wait for all of them.

    Each rank gets RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE and GROUP_RANK (the host) in its environment, as under
    torchrun; hocket.init() and torch.distributed read them. Arguments after the script are passed to the script.

    When a rank fails, the other ranks have 3 s to exit. Then they get SIGTERM, and SIGKILL at 6 s. The traceback of the
    first failure is printed in full, then one line for every other failure. The exit code is that of the first failure,
    or 128 + the signal's number for a killed rank. With --keep-going the other ranks continue, for programs that call
    comm.shrink(); then the exit code is 0 if one of them exits with 0.

    Examples:
      hocket run -n 4 train.py --epochs 3
      hocket run -n 2 --tag-output -m my_package.train
      hocket run -n 2 -- train.py --help
      hocket run -n 2 --learn train.py
      hocket run -n 2 --observe train.py
      hocket run -n 4 --dask analysis.py   (three workers; Client() in the script finds them)
      hocket run -n 4 --nnodes 2 --node-rank 0 --master-addr node0 --master-port 29500 train.py   (on node0)
      hocket run -n 4 --nnodes 2 --node-rank 1 --master-addr node0 --master-port 29500 train.py   (on node1)
    """
    if num_ranks < 1:
        raise InvalidArgument(f"-n must be 1 or more, not {num_ranks}; for example: hocket run -n 2 train.py")
    if "HOCKET_ISA" in os.environ:
        _check_isa()
    nodes = Nodes(num_nodes, node_rank, master_addr, master_port)
    if module:
        _check_module(script[0])
    else:
        _check_script(script[0])
    if not oversubscribe:
        check_room(num_ranks)
    if dask:
        _check_dask(num_ranks * num_nodes)
    if observe:
        return _observed()
    program = [*(["-m"] if module else []), *script]
    command = runner_command([*(["-m", "hocket.dask.ranks"] if dask else []), *program])
    if learn:
        os.environ["HOCKET_LEARN"] = "1"  # for the ranks
    result = run_job(
        command,
        num_ranks,
        tag_output=tag_output,
        patience=Patience(keep_going=keep_going or dask),  # tasks of a worker that has died run again on others
        nodes=nodes,
    )
    sys.stderr.write(summarise(result))
    sys.stderr.flush()
    if as_json:
        print(json.dumps(_as_json(script, result)))
    if dask and result.outcomes and node_rank == 0:
        return result.exit_code or result.outcomes[0].exit_code  # the script's
    return result.exit_code


def _check_dask(num_ranks: int) -> None:
    if num_ranks < 2:
        raise InvalidArgument("--dask needs a rank for the scheduler and one for a worker: -n must be 2 or more")
    if importlib.util.find_spec("distributed") is None:
        raise BackendUnavailable("Dask is not installed: pip install 'hocket[dask]'")


def _observed() -> int:
    """Run the same command below `hocket observe run --page`."""
    from hocket.cli._observed_job import run_recorded

    own = sys.argv[1:]
    own.remove("--observe")
    hocket = [sys.executable, "-m", "hocket.cli"]
    return run_recorded([*hocket, "observe", "run", "--page", "--", *hocket, *own])


def _check_isa() -> None:
    """Check HOCKET_ISA by loading the native module, which this process does not need otherwise."""
    with blaming("hocket._native"):
        importlib.import_module("hocket._native")


def _check_script(name: str) -> None:
    path = Path(name)
    if not path.exists():
        hint = "" if name.endswith(".py") else "; for a module, put -m before its name"
        if Path(f"{name}.py").exists():
            hint = f"; did you mean {name}.py?"
        where = "" if path.is_absolute() else f" in {os.getcwd()}"
        raise InvalidArgument(f"script {name!r} does not exist{where}{hint}")
    if path.is_dir() and not (path / "__main__.py").exists():
        raise InvalidArgument(f"{name!r} is a folder without __main__.py; name a script")
    if not os.access(path, os.R_OK):
        raise InvalidArgument(f"script {name!r} is not readable for this user")


def _check_module(name: str) -> None:
    """Check that a module's outermost package exists; a search inside it would run the package's code here."""
    if name.endswith(".py"):
        raise InvalidArgument(
            f"-m needs the name of a module, not the file {name}: leave out -m, or write -m {Path(name).stem}"
        )
    sys.path.insert(0, os.getcwd())
    try:
        found = importlib.util.find_spec(name.partition(".")[0]) is not None
    except (ValueError, ImportError):
        found = False
    finally:
        del sys.path[0]
    if not found:
        raise InvalidArgument(f"module {name!r} does not exist in {os.getcwd()} or among the installed packages")


def _as_json(script: list[str], result: JobResult) -> dict[str, object]:
    cause = result.first_cause
    return {
        "script": script,
        "num_ranks": len(result.outcomes),
        "exit_code": result.exit_code,
        "duration_s": round(result.duration_s, 3),
        "first_failed_rank": None if cause is None else cause.rank,
        "ranks": [
            {
                "rank": outcome.rank,
                "exit_code": outcome.exit_code,
                "signal": outcome.signal_name,
                "terminated_by_launcher": outcome.terminated_s is not None,
                "duration_s": round(outcome.duration_s, 3),
            }
            for outcome in result.outcomes
        ],
    }
