"""Ways to start a cluster over the protocol: `hocket run --dask` and `hocket.dask.LocalCluster`; and its options."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import dask
import distributed
import pytest
import yaml
from distributed.comm import listen

import hocket as hk
from hocket.dask.defaults import OPTIONS

from ..load import scaled
from ..naming import assert_names, raises
from .connections import run

pytestmark = pytest.mark.timeout(120)
PACKAGE = Path(hk.__file__).parent / "dask"
_SCRIPT = """
import os, signal, sys
from dask.distributed import Client
with Client() as client:
    client.wait_for_workers(2, timeout=60)
    print("scheme", client.scheduler.address.partition(":")[0], sys.argv[1:])
    squares = client.map(lambda each: each**2, range(20), pure=False)
    if "kill" in sys.argv:
        victim = next(iter(client.run(os.getpid).values()))
        os.kill(victim, signal.SIGKILL)
    print("sum", client.submit(sum, squares).result(60))
    sys.exit(7 if "fail" in sys.argv else 0)
"""


def hocket_run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "hocket", "run", *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=scaled(100), check=False)


@pytest.mark.parametrize(("case", "exit_code"), [("work", 0), ("kill", 0), ("fail", 7)])
def test_ranks_are_a_cluster(case: str, exit_code: int, tmp_path: Path) -> None:
    """The exit code is that of the script, also if a worker dies: its tasks run again on another one."""
    (tmp_path / "script.py").write_text(_SCRIPT)
    found = hocket_run("-n", "3", "--dask", tmp_path / "script.py", case)
    assert found.returncode == exit_code, found.stdout + found.stderr
    assert_names(found.stdout, "hocket", case, str(sum(each**2 for each in range(20))))
    assert "INFO" not in found.stderr


def test_one_rank_is_no_cluster(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(_SCRIPT)
    found = hocket_run("-n", "1", "--dask", tmp_path / "script.py")
    assert found.returncode == 2
    assert_names(found.stderr, "--dask", "-n")


@pytest.mark.parametrize(
    ("options", "scheme"),
    [({}, "hocket"), ({"protocol": "tcp://"}, "tcp"), ({"processes": False}, "inproc"), ({"host": "tcp://"}, "tcp")],
)
def test_the_protocol_of_a_local_cluster(options: dict[str, Any], scheme: str) -> None:
    options = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, **options}
    with hk.dask.LocalCluster(**options) as cluster, cluster.get_client() as client:
        assert cluster.scheduler_address.partition(":")[0] == scheme
        assert client.submit(sum, [1, 2]).result(scaled(60)) == 3


def test_all_options_have_a_default_and_a_schema() -> None:
    defaults = yaml.safe_load((PACKAGE / "hocket.yaml").read_text())["distributed"]["comm"]["hocket"]
    schema = yaml.safe_load((PACKAGE / "hocket-schema.yaml").read_text())
    for name in ("distributed", "comm", "hocket"):
        schema = schema["properties"][name]
    assert defaults.keys() == schema["properties"].keys()
    kinds = {str: "string", int: "integer", list: "array"}
    for name, value in defaults.items():
        assert kinds[type(value)] in schema["properties"][name]["type"]
        assert dask.config.get(f"{OPTIONS}.{name}") == value


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("large", "big"), ("large", -1), ("high-water", [1]), ("spin", "2 s"), ("spin", "soon"), ("spin", -1)],
)
def test_options_that_are_wrong(name: str, wrong: Any) -> None:
    """A connection is refused, and the error names the option."""

    async def program() -> None:
        async def nothing(_: object) -> None:
            pass

        listener = await listen("hocket://127.0.0.1:0", nothing)
        with dask.config.set({f"{OPTIONS}.{name}": wrong}), raises(ValueError, names=(f"{OPTIONS}.{name}",)):
            await distributed.comm.connect(listener.contact_address)
        listener.stop()

    run(program)


def test_options_that_were_set_before_the_protocol_was_loaded() -> None:
    """Dask removes at the end of `with` what was added to it within; the defaults hold still."""
    program = """
import asyncio, dask
from distributed.comm import connect, listen

async def main():
    async def nothing(_):
        pass

    with dask.config.set({"distributed.comm.hocket.high-water": "1 MiB"}):
        (await listen("hocket://127.0.0.1:0", nothing)).stop()
    listener = await listen("hocket://127.0.0.1:0", nothing)
    (await connect(listener.contact_address)).abort()
    listener.stop()

asyncio.run(main())
"""
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=scaled(60))
    assert found.returncode == 0, found.stderr
