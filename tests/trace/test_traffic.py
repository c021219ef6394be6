"""Traffic: its file, its construction from records, and hand-computed bytes of published models."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hocket.errors import InvalidArgument
from hocket.session.published_steps import dlrm_criteo, gpt_345m, moe_350m
from hocket.trace.record import Record
from hocket.trace.traffic import Traffic, TrafficStep

from ..naming import NO_SUCH_FILE, assert_names, raises

STEPS = (
    TrafficStep("reduce_scatter", 400, reduction="avg", is_async=True, compute_s=0.25),
    TrafficStep("broadcast", 6, "bfloat16", root=2),
    TrafficStep("all_reduce", 8, "int64", "max", is_async=True),
    TrafficStep("all_gather", 400, is_async=True, waits=(2, 0)),
    TrafficStep("reduce", 4, reduction="sum", root=0),
    TrafficStep("all_to_all", 64, "uint8", compute_s=1e-7),
    TrafficStep("barrier", 0, "uint8"),
)
TRAFFIC = Traffic("mine", 3, "made up, ü", STEPS)


def test_round_trip(tmp_path: Path) -> None:
    TRAFFIC.save(tmp_path / "traffic.json")
    assert Traffic.load(tmp_path / "traffic.json") == TRAFFIC
    assert Traffic.from_json(TRAFFIC.to_json()) == TRAFFIC
    empty = replace(TRAFFIC, steps=())
    assert Traffic.from_json(empty.to_json()) == empty


@st.composite
def step_lists(draw: st.DrawFn) -> list[TrafficStep]:
    steps: list[TrafficStep] = []
    in_flight: set[int] = set()
    for index in range(draw(st.integers(0, 8))):
        kind = draw(st.sampled_from(["all_reduce", "broadcast", "all_to_all"]))
        waits = draw(st.lists(st.sampled_from(sorted(in_flight)), unique=True)) if in_flight else []
        is_async = draw(st.booleans())
        steps.append(
            TrafficStep(
                kind,
                8 * draw(st.integers(0, 2**40)),
                draw(st.sampled_from(["float16", "float64", "bool"])),
                "min" if kind == "all_reduce" else None,
                draw(st.integers(0, 3)) if kind == "broadcast" else None,
                is_async,
                draw(st.floats(0, 1e6)),
                tuple(waits),
            )
        )
        in_flight = (in_flight - set(waits)) | ({index} if is_async else set())
    return steps


@given(steps=step_lists(), name=st.text(), num_ranks=st.integers(4, 9))
@settings(max_examples=60, derandomize=True, deadline=None)
def test_any_traffic_comes_back(steps: list[TrafficStep], name: str, num_ranks: int) -> None:
    traffic = Traffic(name, num_ranks, "drawn", tuple(steps))
    assert Traffic.from_json(traffic.to_json()) == traffic


def change_step(**changes: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["steps"][3].update(changes)


# How a file is damaged, and what the message names besides the file.
SPOILT: dict[str, tuple[Callable[[dict[str, Any]], object], str | tuple[str, ...]]] = {
    "format": (lambda content: content.update(format="hocket-failure-1"), ("'hocket-traffic-1'", "'hocket-failure-1'")),
    "no format": (lambda content: content.pop("format"), ("'hocket-traffic-1'", '"format"')),
    "no name": (lambda content: content.pop("name"), "'name'"),
    "name": (lambda content: content.update(name=3), ("name", "3")),
    "extra": (lambda content: content.update(ranks=3), ("'ranks'", "num_ranks")),
    "num_ranks": (lambda content: content.update(num_ranks=0), ("num_ranks", "1", "0")),
    "steps": (lambda content: content.update(steps={}), "steps"),
    "step": (lambda content: content["steps"].insert(3, 7), ("step 3", "7")),
    "step's extra": (change_step(bytes=4), ("step 3", "'bytes'", "nbytes")),
    "no nbytes": (lambda content: content["steps"][3].pop("nbytes"), ("step 3", "'nbytes'")),
    "kind": (change_step(kind="send"), ("step 3", "kind", "'send'", "all_gather")),
    "kind's type": (change_step(kind=["all_reduce"]), ("step 3", "kind", "['all_reduce']")),
    "dtype": (change_step(dtype="float8"), ("step 3", "dtype", "'float8'", "float16")),
    "negative": (change_step(nbytes=-4), ("step 3", "nbytes", "-4")),
    "part of an element": (change_step(nbytes=402), ("step 3", "float32", "402")),
    "fraction": (change_step(nbytes=400.0), ("step 3", "nbytes", "400.0")),
    "reduction": (change_step(reduction="sum"), ("step 3", "reduction", "all_gather")),
    "no reduction": (lambda content: content["steps"][0].pop("reduction"), ("step 0", "reduction", "reduce_scatter")),
    "root": (change_step(root=0), ("step 3", "root", "all_gather", "None")),
    "no root": (lambda content: content["steps"][1].pop("root"), ("step 1", "root", "broadcast")),
    "root's rank": (lambda content: content["steps"][1].update(root=3), ("step 1", "root 3", "3")),
    "is_async": (change_step(is_async=1), ("step 3", "is_async")),
    "compute_s": (change_step(compute_s=math.nan), ("step 3", "compute_s", "nan")),
    "waits' type": (change_step(waits=2), ("step 3", "waits", "2")),
    "wait for itself": (change_step(waits=[3]), ("step 3", "operation 3")),
    "wait for what is done": (change_step(waits=[1]), ("step 3", "operation 1")),
    "two waits": (change_step(waits=[0, 0]), ("step 3", "operation 0")),
    "barrier": (lambda content: content["steps"][6].update(nbytes=4), ("step 6", "nbytes", "barrier", "0")),
}


@pytest.mark.parametrize("case", SPOILT)
def test_malformed_file_is_named(case: str, tmp_path: Path) -> None:
    spoil, names = SPOILT[case]
    content = json.loads(TRAFFIC.to_json())
    spoil(content)
    path = tmp_path / "spoilt.json"
    path.write_text(json.dumps(content))
    with raises(InvalidArgument, names=names) as caught:
        Traffic.load(path)
    assert_names(str(caught.value), str(path))


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff\xfe\x00", b"7"])
def test_no_traffic_at_all(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "other.json"
    path.write_bytes(content)
    with raises(InvalidArgument, names="other.json"):
        Traffic.load(path)


def test_missing_file_is_named(tmp_path: Path) -> None:
    with raises(InvalidArgument, names=("absent.json", NO_SUCH_FILE)):
        Traffic.load(tmp_path / "absent.json")


def make_record(op: str, seq: int, begin_ns: int, nanoseconds: int | None, **fields: Any) -> Record:
    usual = Record(op, seq, 8, "float32", None, None, 0, "shm", "completed", False, begin_ns, None)
    seconds = None if nanoseconds is None else nanoseconds * 1e-9
    return replace(usual, seconds=seconds, **fields)


def test_from_records() -> None:
    records = [
        make_record("barrier", 6, 500, 400, nbytes=0, dtype="uint8"),  # before the step
        make_record("all_reduce", 7, 1300, 600, reduction="avg", is_async=True),  # done at 1900
        make_record("broadcast", 8, 1600, 100, peer=1),  # holds this rank up to 1700
        make_record("all_gather", 9, 2500, 50),
    ]
    names: dict[str, Any] = {"name": "t", "num_ranks": 2, "source": "s"}
    traffic = Traffic.from_records(records, **names, since_ns=1000, waited=[(1800, 7)])
    # the gather comes 800 ns after the broadcast, 100 of them waiting from 1800 to 1900
    assert [step.compute_s for step in traffic.steps] == pytest.approx([300e-9, 300e-9, 700e-9])
    assert [replace(step, compute_s=0.0) for step in traffic.steps] == [
        TrafficStep("all_reduce", 8, reduction="avg", is_async=True),
        TrafficStep("broadcast", 8, root=1),
        TrafficStep("all_gather", 8, waits=(0,)),
    ]

    unwaited = Traffic.from_records(records, **names)
    assert len(unwaited.steps) == 4 and unwaited.steps[0].compute_s == 0
    assert all(not step.waits for step in unwaited.steps)
    with raises(InvalidArgument, names="operation 9"):
        Traffic.from_records(records, **names, waited=[(2600, 9)])


@pytest.mark.parametrize(
    "record",
    [
        make_record("send", 1, 0, 10, peer=1),
        make_record("split", 1, 0, 10),
        make_record("all_gather", 1, 0, None, state="started"),
        make_record("all_gather", 1, 0, 10, state="failed"),
    ],
)
def test_records_that_make_no_traffic(record: Record) -> None:
    with raises(InvalidArgument, names=("operation 1", record.op)):
        Traffic.from_records([record], name="t", num_ranks=2, source="s")


def test_between_other_ranks() -> None:
    steps = (
        TrafficStep("all_gather", 400),
        TrafficStep("all_reduce", 400, reduction="sum", compute_s=0.1),
        TrafficStep("all_to_all", 4),
        TrafficStep("barrier", 0),
    )
    more = Traffic("some", 4, "here", steps).between(16)
    assert [step.nbytes for step in more.steps] == [100, 400, 4, 0]  # at least one element
    assert (more.num_ranks, more.source) == (16, "here; carried over from 4 ranks")
    assert more.steps[1].compute_s == 0.1
    with raises(InvalidArgument, names=("num_ranks", "1", "0")):
        more.between(0)
    with raises(InvalidArgument, names=("root 3", "2")):
        Traffic("some", 4, "here", (TrafficStep("broadcast", 4, root=3),)).between(2)


def test_scaled() -> None:
    half = TRAFFIC.scaled(nbytes=0.5, compute=2)
    assert [step.nbytes for step in half.steps] == [200, 4, 8, 200, 4, 32, 0]  # whole elements, at least one
    assert half.steps[0].compute_s == 0.5 and half.steps[3].waits == (2, 0)
    assert "bytes x 0.5, computation x 2" in half.source
    for factor in (-1, math.nan, math.inf, True):
        with raises(InvalidArgument, names=("factor", "0", str(factor))):
            TRAFFIC.scaled(nbytes=factor)


def test_bytes_of_gpt() -> None:
    """354,823,168 parameters, as known of GPT-2 medium, in two bytes: 24 layers of 12,596,224 and the embeddings."""
    traffic = gpt_345m(2)
    assert traffic.totals() == {"reduce_scatter": (25, 354_823_168), "all_gather": (25, 354_823_168)}  # a half each
    assert [step.nbytes for step in traffic.steps[23:25]] == [12_596_224, 52_513_792]
    assert all(step.waits == (index,) for index, step in enumerate(traffic.steps[25:]))
    assert gpt_345m(5).steps[0].nbytes == 2 * 2_519_245  # 12,596,224 / 5 is not an integer
    small = gpt_345m(2, scale=8)
    assert len(small.steps) == 8 and "3 of 24 layers, 6283 of 50257 rows" in small.source


def test_bytes_of_mixture_of_experts() -> None:
    """8,192 tokens of 1,024 elements in two bytes are 16 MiB, half of it a block; four times in each of 12 layers."""
    traffic = moe_350m(2)
    assert traffic.totals()["all_to_all"] == (48, 48 * 8 * 2**20)
    attention, feed_forward, gate = 4 * 1024**2 + 8 * 1024, 8 * 1024**2 + 5 * 1024, 1024 * 128
    assert traffic.steps[26].nbytes == 2 * (2 * attention + feed_forward + gate)
    assert traffic.steps[-1].nbytes == 2 * ((50257 + 2048) * 1024 + 2048)
    assert moe_350m(3).steps[0].nbytes == 43 * 64 * 1024 * 2  # one rank has 42 experts, padded to 43


def test_bytes_of_recommendation() -> None:
    """13 tables of each rank, 1,024 samples of each other, 128 elements of four bytes."""
    traffic = dlrm_criteo(2)
    top = (479 * 1024 + 1024) + (1024 * 1024 + 1024) + (1024 * 512 + 512) + (512 * 256 + 256) + 257
    bottom = (13 * 512 + 512) + (512 * 256 + 256) + (256 * 128 + 128)
    expected = [
        ("all_to_all", 6_815_744),
        ("all_reduce", 4 * top),
        ("all_to_all", 6_815_744),
        ("all_reduce", 4 * bottom),
    ]
    assert [(step.kind, step.nbytes) for step in traffic.steps] == expected
    assert top + bottom == 2_368_897
    assert dlrm_criteo(2, scale=16).steps[0].nbytes == 6_815_744 // 16


@pytest.mark.parametrize("build", [gpt_345m, moe_350m, dlrm_criteo])
@pytest.mark.parametrize(("num_ranks", "scale"), [(1, 1), (2, 8), (3, 5), (128, 100)])
def test_published_traffic_is_sound_and_says_what_was_reduced(
    build: Callable[..., Traffic], num_ranks: int, scale: int
) -> None:
    traffic = build(num_ranks, scale=scale, flops_per_s=1e12)
    assert Traffic.from_json(traffic.to_json()) == traffic
    assert "arXiv" in traffic.source and "1e+12 FLOP/s" in traffic.source
    assert (f"reduced by {scale}" if scale > 1 else "full size") in traffic.source
    assert sum(step.compute_s for step in traffic.steps) > 0
    assert all(step.compute_s == 0 for step in build(num_ranks).steps)


@pytest.mark.parametrize("build", [gpt_345m, moe_350m, dlrm_criteo])
@pytest.mark.parametrize(
    ("arguments", "name"), [((0,), "num_ranks"), ((2.0,), "num_ranks"), ((2, 0), "scale"), ((2, 1, 0.0), "flops_per_s")]
)
def test_published_arguments(build: Callable[..., Traffic], arguments: tuple[Any, ...], name: str) -> None:
    options = dict(zip(("scale", "flops_per_s"), arguments[1:], strict=False))
    with raises(InvalidArgument, names=name):
        build(arguments[0], **options)
