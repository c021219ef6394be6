"""A rank of a job on several hosts: runs random programs over all possible communicators.

hosts_rank.py FIRST_SEED NUM_SEEDS
"""

from __future__ import annotations

import importlib
import random
import sys

import numpy as np
from programs import Runner, make_communicators, random_program

import hocket as hk
from hocket.backends import declarations


def main() -> None:
    first, count = int(sys.argv[1]), int(sys.argv[2])
    importlib.import_module("torch").set_num_threads(1)
    between_hosts = [name for name, each in declarations().items() if each.tested and each.link_between_hosts]
    comm = hk.init(backends=["shm", *between_hosts], timeout=60)
    assert comm.num_hosts == 2 and list(comm.backends) == between_hosts, comm.backends
    assert comm.backends.left_out == {"shm": "the ranks are on 2 hosts"}
    local = comm.split(comm.rank // comm.local_size)
    assert local is not None and local.size == comm.local_size == local.local_size
    assert local.num_hosts == 1 and list(local.backends) == ["shm", *between_hosts]
    assert local.explain("all_reduce", 1 << 20).chosen == "shm"
    x = np.full(1000, comm.rank + 1, np.float64)
    local.all_reduce(x)
    comm.all_reduce(x)
    assert (x == local.size * comm.size * (comm.size + 1) / 2).all()
    comm.broadcast(x, 0, algorithm="hierarchical")
    assert f"ranks_per_host={comm.local_size}," in comm.records()[-1].algorithm
    communicators, members = make_communicators(comm)
    runner = Runner(communicators, members, comm.rank)
    for seed in range(first, first + count):
        runner.run(random_program(seed, between_hosts, members, random.Random(seed).randint(3, 25)), seed)
    comm.barrier()
    used = {each.backend for made in communicators if made for each in made.records()}
    assert used >= {*between_hosts}, used
    comm.finalize()
    print("all programs went through", flush=True)


if __name__ == "__main__":
    main()
