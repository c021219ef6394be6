"""Solve the heat equation on a grid of ranks; each rank has a part of the plate and exchanges its edges.

A program for mpi4py with Cartcomm.Shift, Sendrecv and PROC_NULL, ported as docs/migrate.md describes.
"""

import numpy as np

import hocket as hk

N, STEPS = 32, 50


def whole_plate() -> np.ndarray:
    return np.random.default_rng(3).random((N, N))


def step(u: np.ndarray) -> None:
    u[1:-1, 1:-1] += 0.1 * (u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:] - 4 * u[1:-1, 1:-1])


comm = hk.init()
columns = 2
rows = comm.size // columns
row, column = divmod(comm.rank, columns)


def neighbour(dy: int, dx: int) -> int:
    y, x = row + dy, column + dx
    return y * columns + x if 0 <= y < rows and 0 <= x < columns else hk.PROC_NULL


height, width = N // rows, N // columns
u = np.zeros((height + 2, width + 2))
u[1:-1, 1:-1] = whole_plate()[row * height : (row + 1) * height, column * width : (column + 1) * width]
start = hk.wtime()
for _ in range(STEPS):
    comm.sendrecv(u[1], neighbour(-1, 0), u[-1], neighbour(1, 0))  # rows
    comm.sendrecv(u[-2], neighbour(1, 0), u[0], neighbour(-1, 0))
    comm.sendrecv(u[:, 1], neighbour(0, -1), u[:, -1], neighbour(0, 1))  # columns, which are not contiguous
    comm.sendrecv(u[:, -2], neighbour(0, 1), u[:, 0], neighbour(0, -1))
    step(u)
parts = comm.gather_object(u[1:-1, 1:-1], 0)
if comm.rank == 0:
    alone = np.zeros((N + 2, N + 2))
    alone[1:-1, 1:-1] = whole_plate()
    for _ in range(STEPS):
        step(alone)
    plate = np.block([parts[y * columns : (y + 1) * columns] for y in range(rows)])
    np.testing.assert_array_equal(plate, alone[1:-1, 1:-1])
    print(f"equal to one rank, in {hk.wtime() - start:.2f} s")
comm.finalize()
