"""A program with every collective operation of MPI in every form, and what the events of each have to be."""

PROGRAM = '''
import numpy as np

rank, size = world.rank, world.size
comm = world.Dup()
comm.Set_name("collectives")
right = world.Create_cart([size], periods=[True])
right.Set_name("ring")
expected = []
results = []


def expect(kind, nbytes, dtype="float64", *, root=-1, reduction=None, comm="collectives", in_place=False):
    return dict(kind=kind, nbytes=nbytes, dtype=dtype, peer=root, reduction=reduction, comm=comm, in_place=in_place)


def all_forms(where, name, what, *arguments, out=None, **keywords):
    """Calls an operation in its blocking, its nonblocking and its persistent form."""
    forms = [("", getattr(where, name)), ("I", getattr(where, "I" + name[0].lower() + name[1:]))]
    for form, function in forms:
        done = function(*arguments, **keywords)
        if form:
            done.Wait()
        expected.append({**what, "is_async": bool(form)})
    try:
        request = getattr(where, name + "_init")(*arguments, **keywords)
    except (NotImplementedError, MPI.Exception):
        return
    for _ in range(2):
        request.Start()
        request.Wait()
        expected.append({**what, "is_async": True})
    request.Free()
    if out is not None:
        results.append(float(np.asarray(out).sum()))


def vectors(each, dtype=np.float64):
    """Blocks of 1, 2, ... elements, one for each rank."""
    counts = np.arange(1, size + 1)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    return [each, (counts, starts), MPI.DOUBLE], int(counts.sum())


x = np.arange(120, dtype=np.float64) + rank
for dtype in (np.float64, np.float32, np.int32, np.int64, np.uint8, np.int16, np.complex128, np.bool_):
    a, b = np.ones(7, dtype), np.ones(7, dtype)
    operation, reduction = (MPI.LOR, "lor") if dtype is np.bool_ else (MPI.SUM, "sum")
    all_forms(comm, "Allreduce", expect("all_reduce", a.nbytes, str(a.dtype), reduction=reduction), a, b, operation)
for operation, reduction in (
    (MPI.MAX, "max"), (MPI.MIN, "min"), (MPI.PROD, "prod"), (MPI.BAND, "band"), (MPI.BOR, "bor"), (MPI.BXOR, "bxor"),
    (MPI.LAND, "land"), (MPI.LOR, "lor"), (MPI.LXOR, "lxor"),
):
    a, b = np.full(3, rank + 1), np.zeros(3, np.int64)
    all_forms(comm, "Reduce", expect("reduce", 24, "int64", root=1, reduction=reduction), a, b, operation, 1)
    all_forms(comm, "Scan", expect("scan", 24, "int64", reduction=reduction), a, b, operation, out=b)
    all_forms(comm, "Exscan", expect("exscan", 24, "int64", reduction=reduction), a, b, operation)
b = np.ones(5)
all_forms(comm, "Allreduce", expect("all_reduce", 40, reduction="max", in_place=True), MPI.IN_PLACE, b, MPI.MAX, out=b)
all_forms(comm, "Barrier", expect("barrier", 0, "uint8"))
b = x[:9].copy()
all_forms(comm, "Bcast", expect("broadcast", 72, root=size - 1), b, size - 1, out=b)
out = np.zeros(4 * size)
all_forms(comm, "Gather", expect("gather", 32, root=0), x[:4].copy(), out, 0, out=out)
all_forms(comm, "Scatter", expect("scatter", 32, root=0), out, np.zeros(4), 0)
if rank == 0:
    all_forms(comm, "Gather", expect("gather", 32, root=0, in_place=True), MPI.IN_PLACE, out, 0)
    all_forms(comm, "Scatter", expect("scatter", 32, root=0, in_place=True), out, MPI.IN_PLACE, 0)
else:
    all_forms(comm, "Gather", expect("gather", 32, root=0), x[:4].copy(), None, 0)
    all_forms(comm, "Scatter", expect("scatter", 32, root=0), None, np.zeros(4), 0)
all_forms(comm, "Allgather", expect("all_gather", 32), x[:4].copy(), out, out=out)
all_forms(comm, "Allgather", expect("all_gather", 32, in_place=True), MPI.IN_PLACE, out)
all_forms(comm, "Alltoall", expect("all_to_all", 32 * size), out, np.zeros(4 * size))
all_forms(comm, "Alltoall", expect("all_to_all", 32 * size, in_place=True), MPI.IN_PLACE, out)
all_forms(comm, "Reduce_scatter_block", expect("reduce_scatter", 32 * size, reduction="sum"), out, np.zeros(4))
big, number = vectors(np.zeros(size * size))
own = 8 * (rank + 1)
all_forms(comm, "Gatherv", expect("gatherv", own, root=1), x[: rank + 1].copy(), big, 1, out=big[0])
all_forms(comm, "Scatterv", expect("scatterv", own, root=1), big, np.zeros(rank + 1), 1)
all_forms(comm, "Allgatherv", expect("all_gatherv", own), x[: rank + 1].copy(), big, out=big[0])
all_forms(comm, "Allgatherv", expect("all_gatherv", own, in_place=True), MPI.IN_PLACE, big)
all_forms(
    comm, "Reduce_scatter", expect("reduce_scatterv", 8 * number, reduction="sum"),
    np.ones(number), np.zeros(rank + 1), [each + 1 for each in range(size)],
)
same = [np.zeros(size * size), (np.full(size, rank + 1), np.arange(size) * (rank + 1)), MPI.DOUBLE]
all_forms(comm, "Alltoallv", expect("all_to_allv", 8 * size * (rank + 1)), same, big, out=big[0])
types = [MPI.DOUBLE] * size
many = [np.zeros(size * size), (np.full(size, rank + 1), np.arange(size) * (rank + 1) * 8), types]
received = [np.zeros(size * size), (big[1][0], big[1][1] * 8), types]
all_forms(comm, "Alltoallw", expect("all_to_allv", 8 * size * (rank + 1), "uint8"), many, received)
two = np.zeros(10)
ring = dict(comm="ring")
all_forms(right, "Neighbor_allgather", expect("neighbor_all_gather", 40, **ring), x[:5].copy(), two, out=two)
all_forms(right, "Neighbor_alltoall", expect("neighbor_all_to_all", 80, **ring), x[:10].copy(), two, out=two)
pair = [two, ([2, 3], [0, 2]), MPI.DOUBLE]
same = [np.ones(10), ([2, 3], [0, 2]), MPI.DOUBLE]
back = [two, ([3, 2], [0, 3]), MPI.DOUBLE]
all_forms(right, "Neighbor_alltoallv", expect("neighbor_all_to_all", 40, **ring), same, back, out=two)
all_forms(
    right, "Neighbor_allgatherv", expect("neighbor_all_gather", 40, **ring), x[:5].copy(), [two, ([5, 5], [0, 5])]
)
mixed = [np.ones(10), ([2, 3], [0, 16]), [MPI.DOUBLE] * 2]
mixed_back = [two, ([3, 2], [0, 24]), [MPI.DOUBLE] * 2]
all_forms(right, "Neighbor_alltoallw", expect("neighbor_all_to_all", 40, "uint8", **ring), mixed, mixed_back)
derived = MPI.DOUBLE.Create_vector(3, 1, 2).Commit()
all_forms(comm, "Bcast", expect("broadcast", 24, "uint8", root=0), [np.zeros(6), 1, derived], 0)
comm.Free()
right.Free()
leave({"expected": expected, "results": results})
'''
