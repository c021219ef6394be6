"""Exchanges among all workers: the results are those of NumPy and pandas; what cannot be exchanged is left to Dask."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, cast

import dask.array as da
import dask.dataframe as dd
import distributed
import numpy as np
import pandas as pd
import pytest
from dask import delayed

import hocket as hk
from hocket.dask import costs as costs_module
from hocket.dask.costs import Estimates, ExchangeCosts, MeasuredOnce, costs_of, estimated, measured
from hocket.dask.exchange import _seats
from hocket.dask.gang import Gang, find_gang
from hocket.dask.packing import pack, unpack
from hocket.dask.rechunking import Rechunking
from hocket.dask.tables import _measured

from ..load import scaled
from ..naming import assert_names, raises

pytestmark = pytest.mark.timeout(120)
SECONDS = scaled(60)


@pytest.fixture(scope="module")
def client() -> Iterator[distributed.Client]:
    """Three workers, which all tests of this file use, but for one that kills a worker."""
    before = dict(os.environ)
    with (
        hk.dask.LocalCluster(n_workers=3, threads_per_worker=1, dashboard_address=None) as cluster,
        cluster.get_client() as found,
    ):
        yield found
    os.environ.clear()  # Dask leaves variables for its workers
    os.environ.update(before)


@pytest.mark.parametrize(
    ("shape", "chunks", "axes"),
    [
        ((60, 60), (20, 20), None),
        ((50, 70), (20, 30), None),
        ((6, 8, 10), (4, 3, 10), (2, 0, 1)),
        ((6, 8, 10), (4, 3, 10), (-1, 1, 0)),
        ((12,), (5,), None),
        ((4, 0), (2, 1), None),
    ],
)
def test_transpose(client: distributed.Client, shape: Any, chunks: Any, axes: Any) -> None:
    values = np.random.default_rng(1).random(shape)
    x = da.from_array(values, chunks=chunks)
    found = hk.dask.transpose(x, axes, way="all_to_all", timeout=SECONDS)
    assert found.chunks == da.transpose(x, axes).chunks
    np.testing.assert_array_equal(found.compute(), np.transpose(values, axes))


def test_a_sum_with_the_transpose_moves_nothing_more(client: distributed.Client) -> None:
    x = client.persist(da.random.default_rng(1).standard_normal((80, 80), chunks=(20, 20)))
    y = hk.dask.transpose(x, way="all_to_all", timeout=SECONDS)
    having = {key[1:]: set(workers) for key, workers in client.who_has(distributed.client.futures_of(x)).items()}
    has = {each.key: set(client.who_has([each])[each.key]) for each in distributed.client.futures_of(y)}
    for index in np.ndindex(4, 4):
        assert has[y.__dask_graph__()[(y.name, *index)].key] == having[index]
    np.testing.assert_array_equal((x + y).compute(), x.compute() + x.compute().T)


@pytest.mark.parametrize("dtype", [np.float64, np.int8, "datetime64[s]", object, "U3"])
@pytest.mark.parametrize("chunks", [(7, 60), (60, 7), 30, -1, ((1, 59), (0, 60))])
def test_rechunk(client: distributed.Client, chunks: Any, dtype: Any) -> None:
    values = np.random.default_rng(1).integers(0, 100, (60, 60)).astype(np.int64).astype(dtype)
    x = da.from_array(values, chunks=(25, 11))
    found = hk.dask.rechunk(x, chunks, way="all_to_all", timeout=SECONDS)
    assert found.chunks == x.rechunk(chunks).chunks and found.dtype == values.dtype
    np.testing.assert_array_equal(found.compute(), values)


def test_every_element_of_a_chunk_has_one_place() -> None:
    """Of random chunks, the parts of all chunks fill the new chunks exactly once."""
    random = np.random.default_rng(5)
    for _ in range(40):
        shape = random.integers(1, 12, random.integers(1, 4))

        def cut(size: int) -> tuple[int, ...]:
            at = np.unique([0, size, *random.integers(0, size + 1, random.integers(0, 4))])
            return tuple(np.diff(at).tolist())

        old, new = (tuple(cut(int(size)) for size in shape) for _ in range(2))
        plan = Rechunking(tuple(range(len(shape))), old, new)
        filled = {index: np.zeros(plan.new_shape(index), int) for index in plan.new_indices()}
        for index in np.ndindex(*map(len, old)):
            for part in plan.overlaps(index):
                filled[part.new][part.target] += 1
                assert part.size == np.prod([each.stop - each.start for each in part.source])
        assert all((each == 1).all() for each in filled.values())
        placed = plan.placed(dict.fromkeys(np.ndindex(*map(len, old)), 0), 2)
        assert placed.keys() == filled.keys() and set(placed.values()) <= {0, 1}


def tables(num_rows: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    random = np.random.default_rng(3)
    left = pd.DataFrame({
        "key": random.integers(0, num_rows // 2, num_rows), "name": random.choice(["a", "b", "c"], num_rows),
        "value": random.random(num_rows),
    })  # fmt: skip
    right = pd.DataFrame({
        "key": random.integers(0, num_rows // 2, num_rows // 3), "name": random.choice(["a", "b"], num_rows // 3),
        "value": random.random(num_rows // 3), "when": pd.Timestamp("2020-01-01"),
    })  # fmt: skip
    return left, right


def as_in_dask(*tables: pd.DataFrame) -> list[pd.DataFrame]:
    """Return tables with the types that Dask gives them: it stores texts by Arrow."""
    return [dd.from_pandas(each, npartitions=1).compute() for each in tables]


def in_order(table: pd.DataFrame) -> pd.DataFrame:
    return table.sort_values(list(table.columns)).reset_index(drop=True)


@pytest.mark.parametrize("how", ["inner", "left", "right", "outer"])
@pytest.mark.parametrize("on", ["key", ["key", "name"]])
def test_merge(client: distributed.Client, how: Any, on: Any) -> None:
    left, right = as_in_dask(*tables(300))
    given = dd.from_pandas(left, npartitions=5), dd.from_pandas(right, npartitions=2)
    found = hk.dask.merge(*given, how, on, way="all_to_all", timeout=SECONDS)
    assert found.npartitions == 5
    pd.testing.assert_frame_equal(in_order(found.compute()), in_order(left.merge(right, how, on)))


def test_merge_by_columns_of_different_names_and_missing_keys(client: distributed.Client) -> None:
    left, right = tables(200)
    left.loc[::7, "name"] = None
    right = right.rename(columns={"name": "label"})
    right.loc[::5, "label"] = None
    left, right = as_in_dask(left, right)
    given = dd.from_pandas(left, npartitions=3), dd.from_pandas(right, npartitions=3)
    options: dict[str, Any] = {"left_on": "name", "right_on": "label", "suffixes": ("_of_left", "_of_right")}
    found = hk.dask.merge(*given, npartitions=2, way="all_to_all", timeout=SECONDS, **options).compute()
    pd.testing.assert_frame_equal(in_order(found), in_order(left.merge(right, **options)))


def test_an_empty_table(client: distributed.Client) -> None:
    left, right = tables(60)
    given = dd.from_pandas(left[left.key < 0], npartitions=1), dd.from_pandas(right, npartitions=2)
    assert len(hk.dask.merge(*given, on="key", way="all_to_all", timeout=SECONDS)) == 0
    found = hk.dask.merge(*given, how="right", on="key", way="all_to_all", timeout=SECONDS)
    assert len(found) == len(right)


def test_left_to_dask(client: distributed.Client, caplog: pytest.LogCaptureFixture) -> None:
    """What cannot be exchanged is done by Dask, with the same result; the reason can be read."""
    left, right = as_in_dask(*tables(60))
    other = right.astype({"key": float})
    given = dd.from_pandas(left, npartitions=2), dd.from_pandas(other, npartitions=2)
    found = hk.dask.merge(*given, on="key").compute()
    pd.testing.assert_frame_equal(in_order(found), in_order(left.merge(other, on="key")))
    assert "float64" in caplog.text
    x = da.from_array(np.arange(20), chunks=4)
    unknown = x[x % 2 == 0]
    assert hk.dask.explain("transpose", unknown).way == "dask"
    np.testing.assert_array_equal(hk.dask.transpose(unknown).compute(), np.arange(0, 20, 2))


def test_an_error_of_the_program(client: distributed.Client) -> None:
    """A chunk that cannot be computed raises what it raised; the next exchange works."""

    def fail() -> np.ndarray:
        raise ZeroDivisionError("mine")

    bad = da.from_delayed(delayed(fail)(), (4, 4), float)
    with raises(ZeroDivisionError, names="mine"):
        hk.dask.transpose(bad, way="all_to_all", timeout=SECONDS)
    test_transpose(client, (9, 9), (3, 3), None)


def test_a_worker_that_fails_in_the_exchange(client: distributed.Client) -> None:
    """The others do not wait for it for long, and the next exchange works."""

    def make() -> np.ndarray:
        class Bad:
            def __reduce__(self) -> Any:
                raise KeyError("mine")

        return np.array([Bad() for _ in range(12)], dtype=object)

    x = da.from_delayed(delayed(make)(), (12,), object)
    with pytest.raises((KeyError, hk.HocketError)):
        hk.dask.rechunk(x, 3, way="all_to_all", timeout=scaled(3))
    test_transpose(client, (9, 9), (3, 3), None)


def test_bad_input(client: distributed.Client) -> None:
    x, table = da.zeros((4, 4), chunks=2), dd.from_pandas(tables(30)[0], npartitions=1)
    with raises(hk.InvalidType, names="ndarray"):
        hk.dask.transpose(np.zeros(3))
    with raises(hk.InvalidArgument, names=("axes", "2")):
        hk.dask.transpose(x, (0, 0))
    with raises(hk.InvalidArgument, names="axes"):
        hk.dask.transpose(x, "ab")
    with raises(hk.InvalidType, names="ndarray"):
        hk.dask.rechunk(np.zeros(3), 2)
    with pytest.raises(ValueError):  # noqa: PT011 -- of Dask
        hk.dask.rechunk(x, ((3, 3), (2, 2)))
    with raises(hk.InvalidType, names="dict"):
        hk.dask.merge(table, {})
    for wrong in (
        {"how": "cross"},
        {"on": "no"},
        {"left_on": "key"},
        {"on": "key", "left_on": "key"},
        {"npartitions": 0},
    ):
        with pytest.raises(hk.InvalidArgument):
            hk.dask.merge(table, table, **wrong)  # type: ignore[arg-type]
    with raises(hk.InvalidArgument, names=("merge", "shuffle")):
        hk.dask.explain("shuffle", x)  # type: ignore[arg-type]
    with raises(hk.InvalidArgument, names=("merge", "right")):
        hk.dask.explain("merge", table)
    with raises(hk.InvalidArgument, names=("rechunk", "axes")):
        hk.dask.explain("rechunk", x, axes=(1, 0))
    for call in (hk.dask.transpose, hk.dask.rechunk, partial(hk.dask.merge, table)):
        with raises(hk.InvalidArgument, names=("way", "auto", "all_to_all", "dask", "tcp")):
            call(table if isinstance(call, partial) else x, way="tcp")
    numbers = dd.from_pandas(pd.DataFrame({"key": [1.0], "left": [1]}), npartitions=1)
    with raises(hk.UnsupportedCall, names=("merge", "float64")):
        hk.dask.merge(table, numbers, on="key", way="all_to_all")


def test_the_way_that_takes_less_time(client: distributed.Client) -> None:
    """Costs of a cluster decide; here those of one, and others than it has."""
    x = client.persist(da.from_array(np.arange(400.0).reshape(20, 20), chunks=(2, 20)))
    gang = cast(Gang, find_gang(client))
    costs = costs_of(gang)
    assert 0 < costs.task_s < 1 and 0 < costs.exchange_s < 10
    assert costs_of(gang) is costs  # measured once
    for task_s, way in ((1.0, "all_to_all"), (1e-9, "dask")):
        measured.set(gang, replace(costs, task_s=task_s, moved_byte_s=0.0))
        found = hk.dask.explain("rechunk", x, (20, 2), client=client)
        assert found.way == way and found.exchange_s is not None and found.dask_s is not None
        assert (found.exchange_s < found.dask_s) == (way == "all_to_all")
        assert_names(str(found), f"{found.exchange_s:.2g}", f"{found.dask_s:.2g}")
        y = hk.dask.rechunk(x, (20, 2))
        assert y.name.startswith("hocket-exchange") == (way == "all_to_all")
        np.testing.assert_array_equal(y.compute(), np.arange(400.0).reshape(20, 20))
        assert not hk.dask.rechunk(x, (20, 2), way="dask").name.startswith("hocket-exchange")
    left = dd.from_pandas(pd.DataFrame({"key": [1, 2], "left": [3, 4]}), npartitions=2)
    found = hk.dask.explain("merge", left, left, on="key", suffixes=("_1", "_2"), client=client)
    assert found.exchange_s is not None and found.dask_s is not None and found.exchange_s > 0 < found.dask_s
    for seconds, way in ((0.1, "all_to_all"), (1e9, "dask")):
        _measured.set(gang, Estimates(seconds, 1.0, "it took"))
        assert hk.dask.explain("merge", left, left, on="key", client=client).way == way


def test_costs_that_cannot_be_measured(client: distributed.Client, monkeypatch: pytest.MonkeyPatch) -> None:
    """Then Dask does it, and the next call measures again."""
    x = da.from_array(np.arange(40.0).reshape(4, 10), chunks=(2, 5))
    monkeypatch.setattr(costs_module, "MEASURING_S", 1e-9)
    monkeypatch.setattr(costs_module, "measured", MeasuredOnce[ExchangeCosts]())
    found = hk.dask.explain("rechunk", x, (4, 1))
    assert (found.way, found.exchange_s, found.dask_s) == ("dask", None, None)
    np.testing.assert_array_equal(hk.dask.rechunk(x, (4, 1)).compute(), np.arange(40.0).reshape(4, 10))
    monkeypatch.setattr(costs_module, "MEASURING_S", SECONDS)
    assert hk.dask.explain("rechunk", x, (4, 1)).exchange_s is not None


def test_estimates() -> None:
    costs = ExchangeCosts(task_s=1e-3, exchange_s=0.05, part_s=1e-4, byte_s=1e-9, moved_byte_s=2e-9)
    found = estimated(costs, 2, 100, 20, 20_000_000)
    assert found.exchange_s == pytest.approx(0.05 + 0.002 + 0.01)
    assert found.dask_s == pytest.approx(0.1 + 0.02)


def test_without_a_cluster() -> None:
    if distributed.client._get_global_client() is None:
        with pytest.raises(hk.InvalidState):
            hk.dask.transpose(da.zeros((4, 4)))


def test_a_lost_part_is_an_error_and_no_hang() -> None:
    before = dict(os.environ)
    with (
        hk.dask.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        cluster.get_client() as own,
    ):
        x = da.from_array(np.arange(64.0).reshape(8, 8), chunks=2)
        y = hk.dask.transpose(x, client=own, way="all_to_all", timeout=SECONDS)
        os.kill(next(iter(own.run(os.getpid).values())), signal.SIGKILL)
        with pytest.raises((distributed.client.FuturesCancelledError, distributed.client.FutureCancelledError)):
            own.compute(y.sum()).result(SECONDS)
    os.environ.clear()
    os.environ.update(before)


def test_a_client_that_is_not_the_default(client: distributed.Client) -> None:
    with distributed.Client(client.scheduler.address, set_as_default=False) as other:
        x = da.from_array(np.arange(36.0).reshape(6, 6), chunks=2)
        found = hk.dask.transpose(x, client=other, way="all_to_all", timeout=SECONDS)
        np.testing.assert_array_equal(other.compute(found).result(SECONDS), np.arange(36.0).reshape(6, 6).T)


def test_two_clients_take_turns(client: distributed.Client) -> None:
    """They use one communicator: none of them could know that the workers have left that of the other one."""
    x = da.from_array(np.arange(36).reshape(6, 6), chunks=3)
    with distributed.Client(client.scheduler.address, set_as_default=False) as other:
        for each in (client, other, client, other):
            found = hk.dask.transpose(x, way="all_to_all", client=each, timeout=SECONDS)
            np.testing.assert_array_equal(each.compute(found).result(SECONDS), np.arange(36).reshape(6, 6).T)
            assert len(set(client.run(communicator_names).values())) == 1


def communicator_names() -> str:
    return _seats._name


def test_workers_that_start_again(client: distributed.Client) -> None:
    """They have no communicator, also if their addresses are as before."""
    test_transpose(client, (9, 9), (3, 3), None)
    before = client.run(communicator_names)
    test_transpose(client, (9, 9), (3, 3), None)
    assert client.run(communicator_names) == before
    gang = cast(Gang, find_gang(client))
    others = replace(gang, pids=tuple(pid + 1 for pid in gang.pids))
    assert others._take_name() not in before.values()
    assert gang._take_name() not in before.values()  # while an exchange runs, nobody has its name
    client.restart(timeout=SECONDS)
    test_transpose(client, (9, 9), (3, 3), None)


def test_a_worker_that_ends_after_the_exchange() -> None:
    """The others have left the exchange and notice nothing; the scheduler would wait for a worker of that address."""

    def end_after(seat: Any, values: list[Any]) -> list[Any]:
        from hocket.dask.exchange import exchange

        exchange(seat, [seat.rank] * seat.size)
        if seat.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
        return [seat.rank]

    with (
        hk.dask.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None) as cluster,
        cluster.get_client() as own,
    ):
        gang = find_gang(own)
        assert isinstance(gang, Gang)
        with pytest.raises(hk.PeerFailure):
            gang.run(end_after, {each: [] for each in gang.workers}, timeout_s=SECONDS)


def test_packed_objects_are_views() -> None:
    objects: list[Any] = [None, np.arange(5), {"a": np.ones((3, 4)), "b": "text"}, [], np.zeros(0), b"x" * 1000]
    packed, counts = pack(objects)
    found = unpack(packed, counts)
    assert found[0] is None and found[3] == [] and found[5] == objects[5] and found[2]["b"] == "text"
    np.testing.assert_array_equal(found[1], objects[1])
    np.testing.assert_array_equal(found[2]["a"], objects[2]["a"])
    assert np.shares_memory(found[1], packed) and found[1].flags.writeable and found[1].ctypes.data % 8 == 0
