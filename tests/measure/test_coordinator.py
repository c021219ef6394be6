import gc
import os
import re
import sys
import time
import uuid
from pathlib import Path

import pytest

from hocket.errors import CommTimeout, InvalidArgument, InvalidState, LaunchError
from hocket.measure import (
    Comparison,
    Coordinator,
    Job,
    Key,
    Process,
    Settings,
    direct_job,
    judge,
    measure,
    ratios,
    serve,
)
from hocket.measure.jobs import RunningJob
from hocket.measure.rounds import AGAIN

from ..naming import NO_SUCH_FILE, Given, raises
from ..prefork.forked_rank import MARK

pytestmark = pytest.mark.timeout(120)
_EITHER_RANK = re.compile(r"\brank [01]\b")  # which of two is seen first changes
SCRIPT = str(Path(__file__).with_name("job.py"))
SETTINGS = Settings(min_rounds=9, min_sample_s=0.05, core_rounds=0)


def job(name, behaviour="ok", num_ranks=2, contender=None):
    return direct_job(name, [sys.executable, SCRIPT, contender or name, behaviour], num_ranks)


def processes_left(mark):
    """Processes that were started under a mark and still live, by their command line."""
    found = []
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                environment = Path(entry.path, "environ").read_bytes()
            except OSError:
                continue
            if f"{MARK}={mark}\0".encode() in environment and int(entry.name) != os.getpid():
                found.append(Path(entry.path, "cmdline").read_bytes())
    return found


@pytest.fixture(autouse=True)
def _nothing_is_left(monkeypatch):
    mark = uuid.uuid4().hex
    monkeypatch.setenv(MARK, mark)
    gc.collect()  # else descriptors of an earlier test are closed in the midst of this one
    before = len(os.listdir("/proc/self/fd"))
    yield
    assert processes_left(mark) == []
    gc.collect()
    assert len(os.listdir("/proc/self/fd")) == before


def test_two_jobs_of_two_ranks_take_part_in_the_same_rounds():
    with Coordinator([job("ours"), job("theirs")]) as coordinator:
        assert coordinator.contenders == (Key("case", "ours"), Key("case", "theirs"))
        assert len(processes_left(os.environ[MARK])) >= 4  # they are seen
        measured = measure(coordinator, SETTINGS)
    assert len(measured.rounds) == 9
    for round_ in measured.rounds:  # rank 1's clock takes 2 ms an iteration: the maximum over ranks
        assert list(round_.seconds.values()) == pytest.approx([2e-3] * 3)
        assert round_.core_factor > 0
    assert ratios(measured, Key("case", "ours"), Key("case", "ours" + AGAIN)).median == pytest.approx(1.0)
    assert judge(measured, Comparison("case", "ours", ("theirs",), needs_cores=False)).ratio == pytest.approx(1.0)


def test_only_the_job_whose_turn_it_is_runs():
    with Coordinator([job("ours"), job("hung", "hang")], run_timeout_s=20) as coordinator:
        assert coordinator.run(Key("case", "ours"), 10) == pytest.approx([0.01, 0.02])


def test_a_job_that_dies_is_named_with_its_last_words():
    with (
        raises(LaunchError, names=("dead", Given("last words of rank"))) as caught,
        Coordinator([job("ours"), job("dead", "die")]) as coordinator,
    ):
        measure(coordinator, SETTINGS)
    assert _EITHER_RANK.search(str(caught.value).splitlines()[0])


def test_a_contender_that_raises_is_named_with_its_traceback():
    with (
        raises(LaunchError, names=("bad", "ValueError", Given("a contender that raises"))) as caught,
        Coordinator([job("ours"), job("bad", "raise")]) as coordinator,
    ):
        measure(coordinator, SETTINGS)
    assert _EITHER_RANK.search(str(caught.value).splitlines()[0])


def test_a_job_that_hangs_is_named_with_its_ranks():
    started = time.monotonic()
    with (
        raises(CommTimeout, names=("hung", "1 s"), ranks=(0, 1)),
        Coordinator([job("ours"), job("hung", "hang")], run_timeout_s=1.0) as coordinator,
    ):
        measure(coordinator, SETTINGS)
    assert time.monotonic() - started < 60


def test_a_job_that_refuses_to_start():
    with raises(LaunchError, names=("shy", "1", Given("refuses to start"))):
        Coordinator([job("ours"), job("shy", "never")])


@pytest.mark.parametrize(
    ("behaviour", "words"),
    [
        ("mutter", "[process 0]\nwords of rank 0\n[process 1]\nwords of rank 1"),
        ("never", "refuses to start"),
    ],
)
def test_words_of_ranks_are_neither_mixed_nor_repeated(behaviour, words, tmp_path):
    running = RunningJob(job("loud", behaviour), str(tmp_path))
    running.settle(60)
    try:
        assert running.output() == words
    finally:
        running.close()


def test_a_job_that_is_never_ready():
    with raises(CommTimeout, names="slow", ranks=(0, 1)):
        Coordinator([job("slow", "late")], start_timeout_s=1.0)


def test_a_grandchild_in_another_session_does_not_outlive_its_job():
    with (
        raises(CommTimeout, names="parent"),
        Coordinator([job("parent", "orphan")], run_timeout_s=1.0) as coordinator,
    ):
        measure(coordinator, SETTINGS)


def test_an_exception_of_the_script_ends_the_jobs():
    with pytest.raises(ZeroDivisionError), Coordinator([job("ours")]):
        raise ZeroDivisionError


def test_a_command_that_does_not_exist():
    with raises(LaunchError, names=("nothing", "/no/such/program", NO_SUCH_FILE)):
        Coordinator([Job("nothing", 1, (Process(("/no/such/program",)),))])


def test_jobs_must_differ_and_have_one_size():
    with raises(InvalidArgument):
        Coordinator([job("ours"), job("ours")])
    with raises(InvalidArgument):
        Coordinator([job("ours"), job("theirs", num_ranks=3)])
    with raises(InvalidArgument, names=("ours", "theirs")):
        Coordinator([job("ours"), job("theirs", contender="ours")])


def test_serving_without_a_coordinator_is_an_error():
    with raises(InvalidState, names="'HOCKET_MEASURE_ADDRESS'"):
        serve([], 0, lambda: None)
