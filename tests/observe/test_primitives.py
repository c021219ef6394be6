"""Which operations were used most, against loops over the operations."""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path

import numpy as np
import pytest

from hocket.errors import InvalidArgument
from hocket.observe import open_run, primitives, record_run

from ..naming import raises
from ..program import hocket
from .fabricated_run import MS, FakeRank, Op, fabricate

PROGRAM = """
import numpy as np
import hocket as hk
comm = hk.init(backends="shm")
for _ in range(3):
    comm.all_reduce(np.ones(100))
"""
pytestmark = pytest.mark.timeout(120)


@pytest.mark.parametrize("by", ["job", "host", "process"])
@pytest.mark.parametrize("seed", range(3))
def test_sums_are_those_of_a_loop(by: str, seed: int) -> None:
    draw = np.random.default_rng(seed)
    ops = {
        rank: [
            Op(str(draw.choice(["all_reduce", "broadcast", "send"])), step, step * MS,
               step * MS + int(draw.integers(1, MS)), nbytes=int(draw.choice([0, 1, 7, 8, 1000, 1024])), peer=0,
               is_async=bool(draw.random() < 0.5))
            for step in range(60)
        ]
        for rank in range(3)
    }  # fmt: skip
    run = fabricate(FakeRank(rank, own, host=f"node-{rank % 2}") for rank, own in ops.items())
    expected: dict[tuple[str, str, int, bool], list[float]] = {}
    for rank, own in ops.items():
        group = {"job": "job 0", "host": f"node-{rank % 2}", "process": f"rank {rank}"}[by]
        for each in own:
            bits = each.nbytes.bit_length()
            cell = expected.setdefault((group, each.kind, 1 << bits >> 1, each.is_async), [0, 0, 0.0])
            assert each.end is not None
            cell[0] += 1
            cell[1] += each.nbytes
            cell[2] += (each.end - each.begin) * 1e-9
    found = primitives(run, by)
    assert {(each.group, each.op, each.least_nbytes, each.is_async) for each in found} == set(expected)
    for each in found:
        count, nbytes, seconds = expected[each.group, each.op, each.least_nbytes, each.is_async]
        assert (each.count, each.nbytes) == (count, nbytes)
        assert each.seconds == pytest.approx(seconds, rel=1e-6)
        assert each.most_nbytes == max(2 * each.least_nbytes - 1, 0)
        if not each.is_async:
            assert each.blocked_s == pytest.approx(seconds, rel=1e-6)
    assert [each.seconds for each in found] == sorted((each.seconds for each in found), reverse=True)


def test_a_run_without_operations_and_a_wrong_group(tmp_path: Path) -> None:
    assert primitives(fabricate([FakeRank(0)])) == ()
    with raises(InvalidArgument, names=("node", "host")):
        primitives(fabricate([FakeRank(0)]), "node")


def test_the_command(tmp_path: Path) -> None:
    program = (
        "import numpy as np, hocket as hk\nc = hk.init(backends='shm')\nfor _ in range(3): c.all_reduce(np.ones(100))"
    )
    record_run([sys.executable, "-c", program], tmp_path / "run")
    done = hocket("observe", "primitives", str(tmp_path / "run"), "--json")
    (row,) = json.loads(done.stdout)["primitives"]
    assert (row["op"], row["count"], row["nbytes"], row["is_async"]) == ("all_reduce", 3, 2400, False)
    assert not math.isnan(row["seconds"])
    assert "all_reduce" in hocket("observe", "primitives", str(tmp_path / "run"), "--by", "process").stdout
    assert hocket("observe", "primitives", str(tmp_path / "run"), "--by", "x").returncode == 2
    assert primitives(open_run(tmp_path / "run"))[0].op == "all_reduce"
