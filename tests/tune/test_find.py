"""Which table is found, and what policy "auto" makes of it."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest

from hocket.comm.policy import Group
from hocket.errors import TableError
from hocket.tune import ModelPolicy, TablePolicy, automatic_policy, find_table, save_table
from hocket.tune.find import PolicyByHosts, default_path, warn_of_foreign_table

from ..naming import assert_names, raises
from .tables import MACHINE, row, table

pytestmark = pytest.mark.timeout(60)

TABLE = table(row("all_reduce", "shm", 16, 1e-6))


def test_default_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_path() == tmp_path / "cache" / "hocket" / "table.json"
    assert default_path(3) == tmp_path / "cache" / "hocket" / "table-3-hosts.json"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    assert default_path() == tmp_path / "home" / ".cache" / "hocket" / "table.json"
    monkeypatch.setenv("HOCKET_TABLE", "mine.json")
    assert default_path() == default_path(3) == Path("mine.json")
    monkeypatch.setenv("HOCKET_TABLE", "")
    assert default_path() == tmp_path / "home" / ".cache" / "hocket" / "table.json"


def test_find_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find_table() is None
    save_table(TABLE, default_path())
    assert find_table() == default_path()
    assert find_table(2) is None
    monkeypatch.setenv("HOCKET_TABLE", str(tmp_path / "absent.json"))
    assert find_table() == tmp_path / "absent.json"  # asked for by name: not there is an error, not "none"


def test_between_hosts_the_nearest_table_stands_in() -> None:
    machine = replace(MACHINE, num_hosts=3)
    save_table(TABLE, default_path())
    assert find_table(3) is None
    for num_hosts in (2, 16):
        save_table(replace(TABLE, machine=replace(MACHINE, num_hosts=num_hosts)), default_path(num_hosts))
    assert [find_table(each) for each in (1, 2, 3, 8, 64)] == [default_path(each) for each in (1, 2, 2, 16, 16)]
    policy, _ = automatic_policy(machine)
    assert isinstance(policy, PolicyByHosts) and isinstance(policy.several_hosts, TablePolicy)
    group = Group(TABLE.rows[0].num_ranks, list(MACHINE.backends), 3)
    reason, _ = policy.explain(group, TABLE.rows[0].op, TABLE.rows[0].dtypes, TABLE.rows[0].nbytes)
    assert reason.endswith("; measured on 2 hosts, there are no times for 3")


def test_no_table() -> None:
    policy, word = automatic_policy(MACHINE)
    assert isinstance(policy, ModelPolicy)
    assert word == "no table"
    assert policy.reason == "no table was measured here"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_foreign_table(policy)


@pytest.mark.parametrize("named", [True, False])
def test_good_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, named: bool) -> None:
    if named:
        monkeypatch.setenv("HOCKET_TABLE", str(tmp_path / "mine.json"))
    save_table(TABLE, default_path())
    policy, word = automatic_policy(MACHINE)
    assert isinstance(policy, TablePolicy)
    assert policy.table.rows == TABLE.rows
    assert policy.table.path == str(default_path())
    assert word == TABLE.hash
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warn_of_foreign_table(policy)


def test_foreign_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "foreign.json"
    monkeypatch.setenv("HOCKET_TABLE", str(path))
    save_table(replace(TABLE, machine=replace(MACHINE, processor="another one")), path)
    policy, word = automatic_policy(MACHINE)
    assert isinstance(policy, ModelPolicy)
    assert "its processor is 'another one', here it is 'a processor'" in word and word != "no table"
    assert policy.explain(Group(2, ["shm"]), "barrier", "moved", 0)[0] == f"a model decides, as {policy.reason}"
    with pytest.warns(UserWarning, match="hocket tune run") as warned:
        warn_of_foreign_table(policy)
    (warning,) = warned
    assert_names(str(warning.message), str(path), "processor", "'another one'", "'a processor'")


def test_tables_of_different_foreign_machines_have_different_words(tmp_path: Path) -> None:
    words = []
    for processor in ("one", "another"):
        save_table(replace(TABLE, machine=replace(MACHINE, processor=processor)), default_path())
        words.append(automatic_policy(MACHINE)[1])
    assert words[0] != words[1]


@pytest.mark.parametrize("text", [None, "", "{}", '{"format": "hocket tuning table, version 1"}'])
def test_malformed_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None) -> None:
    path = tmp_path / "mine.json"
    monkeypatch.setenv("HOCKET_TABLE", str(path))
    if text is not None:
        path.write_text(text)
    with raises(TableError, names=str(path)):
        automatic_policy(MACHINE)
