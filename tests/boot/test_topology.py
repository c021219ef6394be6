"""Which processors are near each other, from the kernel's description."""

from __future__ import annotations

from pathlib import Path

import pytest

from hocket.boot.topology import find_domain
from hocket.comm.fabric import JobLayout, row_length


def make_system(folder: Path, caches: dict[int, str], nodes: dict[int, int]) -> Path:
    for cpu, shared in caches.items():
        for index, (level, cpus) in enumerate((("1", str(cpu)), ("2", str(cpu)), ("3", shared))):
            cache = folder / f"cpu/cpu{cpu}/cache/index{index}"
            cache.mkdir(parents=True)
            (cache / "level").write_text(level + "\n")
            (cache / "shared_cpu_list").write_text(cpus + "\n")
        (folder / f"cpu/cpu{cpu}/node{nodes[cpu]}").mkdir()
    return folder


@pytest.fixture
def system(tmp_path: Path) -> Path:
    """Two memory nodes; the first has two caches."""
    shared = {0: "0-1", 1: "0-1", 2: "2-3", 3: "2-3", 4: "4-7", 5: "4-7", 6: "4-7", 7: "4-7"}
    return make_system(tmp_path, shared, {cpu: cpu // 4 for cpu in shared})


def test_processors_of_one_cache_are_a_domain(system: Path) -> None:
    assert find_domain([0], system) == find_domain([0, 1], system) == "node0 cpus 0-1"
    assert find_domain([3], system) == "node0 cpus 2-3"
    assert find_domain([4, 7], system) == "node1 cpus 4-7"


def test_who_may_run_anywhere_has_no_domain(system: Path) -> None:
    assert find_domain([0, 2], system) == ""
    assert find_domain([3, 4], system) == ""


def test_what_the_kernel_does_not_say(tmp_path: Path) -> None:
    assert find_domain([0], tmp_path) == ""
    (tmp_path / "cpu/cpu0/cache/index0").mkdir(parents=True)
    assert find_domain([0], tmp_path) == ""
    (tmp_path / "cpu/cpu0/cache/index0/level").write_text("three")
    assert find_domain([0], tmp_path) == ""


def test_this_machine() -> None:
    assert isinstance(find_domain(), str)


def test_rows() -> None:
    assert row_length("aabb") == 2
    assert row_length("aaaa") == 4
    assert row_length("abab") == row_length("aab") == row_length("abba") == 1


def test_levels_of_a_layout() -> None:
    layout = JobLayout([0, 0, 0, 0, 1, 1, 1, 1], [0, 1, 2, 3] * 2, list("aabbaabb"))
    everyone = range(8)
    assert (layout.ranks_per_host(everyone), layout.ranks_per_domain(everyone)) == (4, 2)
    assert (layout.ranks_per_host([0, 1, 4, 5]), layout.ranks_per_domain([0, 1, 4, 5])) == (2, 2)
    assert layout.ranks_per_host([0, 4]) == 1
    assert layout.ranks_per_host([0, 1, 4]) == layout.ranks_per_host([0, 4, 1, 5]) == 1
    unknown = JobLayout(layout.hosts, layout.local_ranks, ["a"] * 7 + [""])
    assert unknown.ranks_per_domain(everyone) == 1 and unknown.ranks_per_domain([0, 1]) == 2
