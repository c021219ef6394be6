"""Tables in the formats of other tools; Open MPI itself reads its own."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path

import pytest

from hocket.bench.launchers import openmpi_job
from hocket.errors import InvalidArgument
from hocket.tune import Table
from hocket.tune.export import export_table, exporters
from hocket.tune.fit import Fit

from ..naming import raises
from .tables import MACHINE, row

NUM_RANKS = 4
NBYTES = 1 << 16
FITS = (Fit("mpi", 1e-6, 1e-9, 1e-10, 0.0),)


def table(algorithm: str) -> Table:
    """One in which this schedule of broadcast is the fastest over MPI."""
    best = row("broadcast", "mpi", NBYTES, 1e-9, num_ranks=NUM_RANKS, algorithm=algorithm)
    return Table(MACHINE, (best, row("broadcast", "mpi", NBYTES, 1e-3, num_ranks=NUM_RANKS)), fits=FITS)


def test_formats() -> None:
    assert {"csv", "mpich-json", "ompi-classic", "ompi-json", "nccl"} <= set(exporters())
    with raises(InvalidArgument, names=("'toml'", "csv")):
        export_table(table("binomial"), "toml")
    lines = export_table(table("binomial"), "csv").splitlines()
    assert len(lines) == 3
    assert lines[0].endswith(",algorithm,source")


def rules_of(text: str, collective: str) -> list[list[str]]:
    """The rules of one collective, read as Open MPI does: comments away, numbers in order."""
    numbers = re.sub(r"#.*", "", text).split()
    place = 1
    for name in re.findall(r"^\d+ # (\w+)$", text, re.MULTILINE):
        if name in ("ranks", "sizes"):
            continue
        place += 1
        num_sizes = int(numbers[place])
        place += 1
        found = []
        for _ in range(num_sizes):
            num_ranks, num_rules = numbers[place], int(numbers[place + 1])
            place += 2
            for _ in range(num_rules):
                found.append([num_ranks, *numbers[place : place + 4]])
                place += 4
        if name == collective:
            return found
    return []


def test_rules_say_what_is_fastest() -> None:
    text = export_table(table("chain(num_blocks=8)"), "ompi-classic")
    assert rules_of(text, "broadcast") == [["4", "0", "3", "0", "8192"]]
    assert "chain, 0.001 us measured at 65536 B" in text
    text = export_table(table("binomial"), "ompi-classic", [2, 4, 1024])
    assert [each[:3] for each in rules_of(text, "broadcast") if each[0] == "4"] == [["4", "0", "6"]]
    for collective in ("all_reduce", "all_gather", "all_to_all", "reduce", "broadcast", "reduce_scatter"):
        rules = rules_of(text, collective)
        assert {each[0] for each in rules} == {"2", "4", "1024"}
        for num_ranks in ("2", "4", "1024"):  # Open MPI asks for a rule from size 0 on
            assert next(each for each in rules if each[0] == num_ranks)[1] == "0"
    assert "modelled" in text


def test_rules_of_version_3() -> None:
    """Those of docs.open-mpi.org: every size of every number of ranks from the least on has one rule."""
    content = json.loads(export_table(table("chain(num_blocks=8)"), "ompi-json", [4, 16]))
    assert (content["rule_file_version"], content["module"]) == (3, "tuned")
    (few, many) = content["collectives"]["bcast"]
    assert (few["comm_size_min"], few["comm_size_max"]) == (4, 15)
    assert (many["comm_size_min"], many["comm_size_max"]) == (16, "inf")
    assert few["rules"] == [{"msg_size_min": 0, "msg_size_max": "inf", "alg": "pipeline", "segsize": 8192}]
    for groups in content["collectives"].values():
        for group in groups:
            rules = group["rules"]
            assert rules[0]["msg_size_min"] == 0 and rules[-1]["msg_size_max"] == "inf"
            for rule, following in pairwise(rules):
                assert rule["msg_size_max"] + 1 == following["msg_size_min"]


def test_rules_for_nccl() -> None:
    text = export_table(table("binomial"), "nccl", [2, 512])
    assert text.startswith("# collective_type,min_bytes,max_bytes,algorithm,")
    assert all(len(line) < 255 for line in text.splitlines())  # MAX_LINE_LENGTH of the plugin
    # As its loadConfig() reads lines: comments and empty ones are left out, all others are rules, the first that fits
    # counts; a collective that it does not know is all_reduce.
    rows = [line.split(",") for line in text.splitlines() if line and not line.startswith("#")]
    assert all(len(row) == 10 and row[4] == "simple" and row[6] == "1" for row in rows)
    assert {row[0] for row in rows} == {"broadcast", "reduce", "allgather", "reducescatter", "allreduce"}
    of_512 = [row for row in rows if row[0] == "allreduce" and row[7] == "512"]
    assert [row[3] for row in of_512] == ["tree", "ring"]  # latency first, then bandwidth
    assert of_512[0][1] == "0" and int(of_512[0][2]) + 1 == int(of_512[1][1])
    assert int(of_512[-1][2]) == 2**64 - 1  # a size_t, by strtoull


_PROGRAM = f"""
import numpy
from mpi4py import MPI
MPI.COMM_WORLD.Bcast(numpy.ones({NBYTES}, numpy.uint8), 0)
"""


def _messages(rules: Path) -> Counter[tuple[int, int]]:
    """Run a broadcast under Open MPI, which says itself how many messages went where."""
    (launcher,) = openmpi_job([sys.executable, "-c", _PROGRAM], NUM_RANKS).processes
    environ = {
        **os.environ,
        **launcher.env,
        "OMPI_MCA_coll_tuned_use_dynamic_rules": "1",
        "OMPI_MCA_coll_tuned_dynamic_rules_filename": str(rules),
        "OMPI_MCA_pml_monitoring_enable": "2",
        "OMPI_MCA_pml_monitoring_enable_output": "2",
    }
    done = subprocess.run(launcher.argv, env=environ, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    messages: Counter[tuple[int, int]] = Counter()
    for source, destination, nbytes, count in re.findall(
        r"^[EI]\t(\d+)\t(\d+)\t(\d+) bytes\t(\d+) msgs sent", done.stdout + done.stderr, re.MULTILINE
    ):
        if int(nbytes) >= NBYTES:
            messages[int(source), int(destination)] += int(count)
    return messages


@pytest.mark.timeout(130)
def test_open_mpi_follows_the_rules(tmp_path: Path) -> None:
    """A pipeline sends 8 segments down the ranks, a binomial tree whole arrays to 1 and 2, and on to 3."""
    rules = tmp_path / "rules.conf"
    rules.write_text(export_table(table("chain(num_blocks=8)"), "ompi-classic"))
    assert _messages(rules) == {(0, 1): 8, (1, 2): 8, (2, 3): 8}
    rules.write_text(export_table(table("binomial"), "ompi-classic"))
    assert _messages(rules) == {(0, 1): 1, (0, 2): 1, (1, 3): 1}
