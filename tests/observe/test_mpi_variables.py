"""The performance variables of MPI libraries (MPI_T) that the hooks read, beside what the library must have counted."""

from __future__ import annotations

import struct
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest

from hocket.trace import RecorderSnapshot

from .mpi_jobs import LAUNCHERS, run_mpi

pytestmark = pytest.mark.timeout(240)
EACH_LIBRARY = pytest.mark.parametrize("library", LAUNCHERS)
MONITORING = {"OMPI_MCA_pml_monitoring_enable": "2"}


def variables_of(snapshot: RecorderSnapshot) -> dict[str, dict[int, list[float]]]:
    """Return the recorded values of each element of each variable, oldest first."""
    names = {each.id: each.text for each in snapshot.definitions if each.kind == "counter"}
    found: dict[str, dict[int, list[float]]] = {name.removeprefix("mpi_t:"): {} for name in names.values()}
    ring = snapshot.rings["process"]
    assert ring.issued == ring.recorded == len(ring.events)
    for event in ring.events:
        (value,) = struct.unpack("<d", struct.pack("<Q", int(event["aux"])))
        elements = found[names[int(event["comm"])].removeprefix("mpi_t:")]
        elements.setdefault(int(event["seq"]), []).append(value)
    return found


# Sizes and numbers of messages differ by sender and receiver; no collective is used.
_MESSAGES = """
import time
import numpy as np
sizes = [[0] * world.size for _ in range(world.size)]
sent = {}
for source in range(world.size):
    for target in range(world.size):
        if source == target:
            continue
        for number in range(3 + source + 2 * target):
            nbytes = 10 * source + 100 * target + number
            if world.rank == source:
                world.Send(np.zeros(nbytes, np.uint8), target)
                count, total = sent.get(target, (0, 0))
                sent[target] = (count + 1, total + nbytes)
            elif world.rank == target:
                world.Recv(np.zeros(nbytes, np.uint8), source)
        if world.rank == source:
            time.sleep(0.15)
leave(sent)
"""


def test_open_mpis_counts_of_messages(tmp_path: Path) -> None:
    job = run_mpi("openmpi", _MESSAGES, tmp_path, num_ranks=3, variables=MONITORING)
    for snapshot, sent in zip(job.recordings, job.results, strict=True):
        found = variables_of(snapshot)
        print(found)
        assert found["num_variables"][0][-1] == len(found) - 1 >= 10
        for name, index in (("count", 0), ("size", 1)):
            elements = found[f"pml_monitoring_messages_{name}"]
            assert {str(peer): values[-1] for peer, values in elements.items()} == {
                peer: each[index] for peer, each in sent.items()
            }
            assert all(values == sorted(values) for values in elements.values())
