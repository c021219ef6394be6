"""A ring of messages. Run it with ``hocket run -n 3 examples/messages.py``."""

import numpy as np

import hocket as hk

with hk.init() as comm:
    right, left = (comm.rank + 1) % comm.size, (comm.rank - 1) % comm.size
    token = np.array([comm.rank], np.int64)
    received = np.empty_like(token)
    for _ in range(comm.size):
        sending = comm.isend(token, right, tag=1)
        comm.recv(received, left, tag=1)
        sending.wait()
        token = received.copy()
    assert token[0] == comm.rank, "after comm.size steps the token is back at its first rank"
    print(f"rank {comm.rank}: my token is back")
