"""Rules: what a table says besides times, and what a policy makes of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hocket.comm.policy import LARGEST_NBYTES, Group, Range
from hocket.errors import TableError
from hocket.tune import TablePolicy, load_table, save_table

from ..naming import raises
from .tables import row, table

GROUP = Group(2, ["shm", "mpi", "gloo"])
KEY = ("broadcast", "moved", 2)
RANGES = [Range(4095, ("shm", "mpi")), Range(LARGEST_NBYTES, ("mpi/chain(num_blocks=8)", "shm"), "learned")]
ROWS = [
    row("broadcast", backend, nbytes, seconds)
    for nbytes in (1024, 65536)
    for backend, seconds in (("shm", 1e-6), ("mpi", 2e-6))
]
RULED = table(*ROWS).with_ranges(KEY, RANGES)


def test_rules_count_more_than_times() -> None:
    derived, ruled = (TablePolicy(each).choices(GROUP)["broadcast", "moved"] for each in (table(*ROWS), RULED))
    assert [each.ranking for each in derived] == [("shm", "mpi", "gloo")]
    assert [(each.most_nbytes, each.ranking) for each in ruled] == [
        (4095, ("shm", "mpi", "gloo")),
        (LARGEST_NBYTES, ("mpi/chain(num_blocks=8)", "shm", "mpi", "gloo")),
    ]
    reason, candidates = TablePolicy(RULED).explain(GROUP, "broadcast", "moved", 65536)
    assert reason == "learned"
    assert [each.carrier for each in candidates][:2] == ["mpi/chain(num_blocks=8)", "shm"]
    assert (candidates[0].seconds, candidates[1].seconds) == (None, 1e-6)


def test_rules_hold_for_their_ranks_and_backends() -> None:
    policy = TablePolicy(RULED)
    assert [each.ranking for each in policy.choices(replace(GROUP, size=4))["broadcast", "moved"]] == [
        ("shm", "mpi", "gloo")
    ]
    assert len(policy.choices(replace(GROUP, num_hosts=2))["broadcast", "moved"]) == 1
    only_shm = policy.choices(Group(2, ["shm"]))["broadcast", "moved"]
    assert [each.ranking for each in only_shm] == [("shm",), ("shm",)]


def test_made_of_times_they_say_the_same() -> None:
    rows = [*ROWS, row("all_gather", "mpi", 64, 1e-6), row("all_gather", "shm", 4096, 1e-6), row("send", "mpi", 64, 1)]
    derived = table(*rows, row("all_gather", "mpi", 4096, 2e-6), row("all_gather", "shm", 64, 2e-6))
    ruled = TablePolicy(derived).with_rules()
    assert {rule.key for rule in ruled.rules} == {KEY, ("all_gather", "moved", 2), ("send", "moved", 2)}
    assert TablePolicy(ruled).choices(GROUP) == TablePolicy(derived).choices(GROUP)
    assert TablePolicy(ruled).with_rules() == ruled
    assert ruled.hash != derived.hash


def test_rules_without_times() -> None:
    """As of asynchronous operations, whose times are none that a table has."""
    alone = table(row("all_gather", "mpi", 64, 1e-6)).with_ranges(KEY, RANGES)
    assert TablePolicy(alone).with_rules().ranges[KEY] == alone.ranges[KEY]
    reason, candidates = TablePolicy(alone).explain(GROUP, "broadcast", "moved", 65536)
    assert (reason, candidates[0].carrier) == ("learned", "mpi/chain(num_blocks=8)")


def test_what_was_only_as_good_stays_where_it_was() -> None:
    """The second size alone would go to MPI, within the noise; MPI at the third is clearly faster."""
    times = {1024: (1.0, 2.0), 4096: (1.01, 1.0), 16384: (2.0, 1.0)}
    rows = [
        row("broadcast", backend, nbytes, seconds, noise=0.05)
        for nbytes, pair in times.items()
        for backend, seconds in zip(("gloo", "mpi"), pair, strict=True)
    ]
    first, second = TablePolicy(table(*rows)).choices(Group(2, ["mpi", "gloo"]))["broadcast", "moved"]
    assert (first.ranking, second.ranking) == (("gloo", "mpi"), ("mpi", "gloo"))
    assert 4096 <= first.most_nbytes < 16384


def test_kept_in_the_file(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    save_table(RULED, path)
    assert load_table(path) == replace(RULED, path=str(path))
    lines = [json.loads(line.rstrip(",")) for line in path.read_text().splitlines() if '"ranking"' in line]
    assert [each["most_nbytes"] for each in lines] == [4095, None]


def test_merging_drops_rules_of_what_is_measured_again() -> None:
    assert RULED.merged(table(row("scan", "mpi", 64, 1.0))).rules == RULED.rules
    assert RULED.merged(table(row("broadcast", "mpi", 64, 1.0))).rules == ()


@pytest.mark.parametrize(
    ("change", "names"),
    [
        ({"op": "all_reduction"}, ("rule 1", "op", "'all_reduction'", "barrier")),
        ({"num_ranks": 0}, ("rule 1", "num_ranks", "1", "0")),
        ({"most_nbytes": -1}, ("rule 1", "most_nbytes", "0", "null", "-1")),
        ({"most_nbytes": "much"}, ("rule 1", "most_nbytes", "0", "null", "'much'")),
        ({"most_nbytes": None}, ("rule 2", "most_nbytes")),
        ({"ranking": []}, ("rule 1", "ranking", "[]")),
        ({"ranking": ["ucx"]}, ("rule 1", "'ucx'")),
        ({"ranking": ["shm/zigzag"]}, ("rule 1", "broadcast", "'zigzag'", "binomial")),
        ({"reason": 3}, ("rule 1", "reason", "3")),
        ({"colour": "red"}, ("rule 1", "dtypes", "most_nbytes", "num_ranks", "op", "ranking", "reason", "'colour'")),
    ],
    ids=lambda each: str(next(iter(each.items()))) if isinstance(each, dict) else "",
)
def test_bad_rule(tmp_path: Path, change: dict[str, Any], names: tuple[str, ...]) -> None:
    path = tmp_path / "table.json"
    save_table(RULED, path)
    content = json.loads(path.read_text())
    content["rules"][0] |= change
    path.write_text(json.dumps(content))
    with raises(TableError, names=names):
        load_table(path)


def test_the_last_rule_is_open(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    save_table(RULED, path)
    content = json.loads(path.read_text())
    del content["rules"][1]
    path.write_text(json.dumps(content))
    with raises(TableError, names=("broadcast", "moved", "2", "null", "most_nbytes")):
        load_table(path)
