"""`hocket collectives`: its output, and its messages about wrong arguments."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest

from .. import program
from ..naming import NO_SUCH_FILE, assert_names

hocket = partial(program.hocket, "collectives", timeout_s=50)
pytestmark = pytest.mark.timeout(60)


def test_list() -> None:
    content = json.loads(hocket("list", "broadcast", "--json").stdout)
    names = [each["name"] for each in content["algorithms"]]
    assert {"chain", "circulant", "double_tree", "k_nomial"} <= set(names)
    assert all(each["formula"] and each["description"] for each in content["algorithms"])
    assert "(n - 1 + q)(α + mβ/n)" in hocket("list").stdout


def test_verify(tmp_path: Path) -> None:
    done = hocket("verify", "broadcast", "circulant", "--ranks", "1..20,33", "--param", "num_blocks=5", "--json")
    assert json.loads(done.stdout) == {"verified": {"broadcast by circulant": 21}}
    path = tmp_path / "bruck.json"
    exported = hocket("export", "all_gather", "bruck", "-n", "5").stdout
    path.write_text(exported)
    assert "proven: <Schedule all_gather bruck: 5 ranks" in hocket("verify", "--file", str(path)).stdout
    content = json.loads(exported)
    content["transfers"].pop()
    path.write_text(json.dumps(content))
    done = hocket("verify", "--file", str(path))
    assert done.returncode == 2
    assert_names(done.stderr, "rank 0", "slot 4", "block 4")
    assert done.stderr.count("\n") == 1


def test_simulate() -> None:
    arguments = ("simulate", "broadcast", "-n", "64", "--size", "1MiB", "--latency", "2", "--bandwidth", "12.5")
    rows = json.loads(hocket(*arguments, "--json").stdout)["simulated"]
    assert rows[0]["algorithm"] == "circulant"
    assert all(row["simulated_s"] == pytest.approx(row["formula_s"], rel=1e-3) for row in rows)
    assert "circulant" in hocket(*arguments).stdout
    shared = json.loads(
        hocket("simulate", "all_reduce", "-n", "16", "--ranks-per-host", "4", "--size", "4MiB", "--json").stdout
    )["simulated"]
    assert (shared[0]["algorithm"], shared[0]["parameters"]["ranks_per_host"]) == ("hierarchical", 4)


def test_draw(tmp_path: Path) -> None:
    path = tmp_path / "chain.png"
    done = hocket("draw", "broadcast", "chain", "-n", "6", "--time", "-o", str(path))
    assert (done.returncode, done.stdout.strip()) == (0, str(path))
    assert path.stat().st_size > 5000


@pytest.mark.parametrize(
    ("arguments", "names"),
    [
        (("verify", "sort"), ("'sort'", "broadcast")),
        (("verify", "broadcast", "rung"), ("broadcast", "'rung'", "binomial")),
        (("verify", "--ranks", "5..2"), ("'5..2'", "1..64")),
        (("verify", "--file", "/nonexistent/schedule"), ("/nonexistent/schedule", NO_SUCH_FILE)),
        (("simulate", "broadcast", "--param", "a"), ("'a'", "num_blocks=8")),
        (("simulate", "broadcast", "chain", "--param", "chunks=3"), ("broadcast", "chain", "'chunks'", "num_blocks")),
        (("simulate", "all_gather", "recursive_doubling", "-n", "6"), ("all_gather", "recursive_doubling", "6")),
        (("simulate", "all_reduce", "--bandwidth", "0"), ("0.0", "GB/s")),
        (("draw", "broadcast", "-o", "x.png"), ("broadcast", "chain")),
        (("draw", "broadcast", "chain", "-o", "x.gif"), ("x.gif", ".png", ".svg", ".pdf")),
        (("draw", "broadcast", "chain", "-o", "/nonexistent/x.png"), ("/nonexistent",)),
        (("export",), ("broadcast", "chain")),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], names: tuple[str, ...]) -> None:
    done = hocket(*arguments)
    assert done.returncode == 2
    assert_names(done.stderr, "hocket collectives", *names)
    assert done.stderr.count("\n") == 1
