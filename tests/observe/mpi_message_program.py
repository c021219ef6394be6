"""A program of random messages with mpi4py, and the bytes that it sends; the same for each seed."""

PROGRAM = """
import random
import numpy as np

rng = random.Random(int(sys.argv[1]))  # the same on all ranks: each knows every message of the job
rank, size = world.rank, world.size
matrix = [[0] * size for _ in range(size)]
of_persistent = [[0] * size for _ in range(size)]  # of these, by persistent requests
outcome = []  # what this rank received, independent of the order
turned = world.Split(0, -rank)  # rank r of the job is rank size - 1 - r here
half = MPI.DOUBLE.Create_vector(8, 1, 2).Commit()  # 8 of 16 elements


def pick_size():
    return rng.choice([0, 1, 7, rng.randrange(64), rng.randrange(5000), rng.randrange(200_000)])


def data(source, nbytes):
    return np.full(nbytes, source + 1, np.uint8)


def note(buffer, status):
    outcome.append([
        int(buffer[: status.Get_count(MPI.BYTE)].sum()), status.Get_source(), status.Get_tag(),
        status.Get_error(), status.Get_count(MPI.BYTE), status.Is_cancelled(),
    ])


def one_message(number):
    source, target = rng.sample(range(size), 2)
    nbytes, mode = pick_size(), rng.choice(["Send", "Ssend", "Isend", "Issend", "Bsend", "Ibsend"])
    receiving, is_any = rng.choice(["Recv", "Irecv", "Mrecv", "Imrecv", "ignored"]), rng.random() < 0.5
    matrix[source][target] += nbytes
    if rank == source:
        work = getattr(world, mode)(data(source, nbytes), target, number)
        if work is not None:
            work.Wait()
    elif rank == target:
        buffer, status = np.zeros(nbytes + rng.choice([0, 100]), np.uint8), MPI.Status()
        origin = MPI.ANY_SOURCE if is_any else source
        tag = MPI.ANY_TAG if is_any else number
        if receiving == "Recv":
            world.Recv(buffer, origin, tag, status)
        elif receiving == "Irecv":
            world.Irecv(buffer, origin, tag).Wait(status)
        elif receiving == "Mrecv":
            world.Mprobe(origin, tag).Recv(buffer, status)
        elif receiving == "Imrecv":
            while (message := world.Improbe(origin, tag)) is None:
                pass
            message.Irecv(buffer).Wait(status)
        else:
            world.Recv(buffer, origin, tag)
            return
        note(buffer, status)


def ring(number):
    sizes = [pick_size() for _ in range(size)]
    mode = rng.choice(["Sendrecv", "Sendrecv_replace", "Isendrecv", "Isendrecv_replace"])
    comm, own = rng.choice([(world, rank), (turned, turned.rank)])
    job_rank = (lambda r: r) if comm is world else (lambda r: size - 1 - r)
    for each in range(size):
        matrix[job_rank(each)][job_rank((each + 1) % size)] += max(sizes) if "replace" in mode else sizes[each]
    status, before, after = MPI.Status(), (own - 1) % size, (own + 1) % size
    # The exact size: MPICH leaves the status of MPI_Isendrecv undefined.
    out = np.zeros(max(sizes) if "replace" in mode else sizes[before], np.uint8)
    if "replace" in mode:
        out[:] = own + 1
        done = getattr(comm, mode)(out, after, number, before, number, **({} if mode[0] == "I" else {"status": status}))
    else:
        arguments = data(own, sizes[own]), after, number, out, before, number
        done = getattr(comm, mode)(*arguments, **({} if mode[0] == "I" else {"status": status}))
    if mode[0] == "I":
        done.Wait()
        outcome.append(int(out.sum()))
    else:
        note(out, status)


def fan_in(number):
    root, count = rng.randrange(size), rng.randrange(1, 6)
    sizes = {source: [pick_size() for _ in range(count)] for source in range(size) if source != root}
    way = rng.choice(["Waitall", "Waitany", "Waitsome", "Testall", "Testany", "Testsome", "Test"])
    for source in sizes:
        matrix[source][root] += sum(sizes[source])
    if rank != root:
        requests = [world.Isend(data(rank, nbytes), root, number) for nbytes in sizes[rank]]
        MPI.Request.Waitall(requests)
        return
    buffers = [np.zeros(200_000, np.uint8) for _ in range(count * (size - 1))]
    requests = [world.Irecv(buffer, MPI.ANY_SOURCE, number) for buffer in buffers]
    got = []
    if way in ("Waitall", "Testall"):
        statuses = [MPI.Status() for _ in requests]
        if way == "Waitall":
            MPI.Request.Waitall(requests, statuses if number % 2 else None)
        else:
            while not MPI.Request.Testall(requests, statuses if number % 2 else None):
                pass
        if number % 2:
            got = list(zip(buffers, statuses))
    left = len(requests) if way not in ("Waitall", "Testall") else 0
    while left:
        status = MPI.Status()
        if way in ("Waitsome", "Testsome"):
            statuses = [MPI.Status() for _ in requests]
            for place, index in enumerate(getattr(MPI.Request, way)(requests, statuses) or []):
                got.append((buffers[index], statuses[place]))
                left -= 1
        elif way == "Waitany":
            index = MPI.Request.Waitany(requests, status)
            got.append((buffers[index], status))
            left -= 1
        elif way == "Testany":
            index, flag = MPI.Request.Testany(requests, status)
            if flag:
                got.append((buffers[index], status))
                left -= 1
        else:
            for index, request in enumerate(requests):
                if request != MPI.REQUEST_NULL and request.Test(status):
                    got.append((buffers[index], status))
                    note(*got.pop())
                    left -= 1
    for each in got:
        note(*each)


def persistent(number):
    source, target = rng.sample(range(size), 2)
    nbytes, times, mode = pick_size(), rng.randrange(1, 4), rng.choice(["Send_init", "Ssend_init", "Bsend_init"])
    matrix[source][target] += nbytes * times
    of_persistent[source][target] += nbytes * times
    buffer = data(source, nbytes) if rank == source else np.zeros(nbytes, np.uint8)
    if rank not in (source, target):
        return
    if rank == source:
        request = getattr(turned, mode)(buffer, size - 1 - target, number)
    else:
        request = turned.Recv_init(buffer, MPI.ANY_SOURCE, number)
    for time in range(times):
        status = MPI.Status()
        if time % 2:
            request.Start()
        else:
            MPI.Prequest.Startall([request])
        request.Wait(status)
        if rank == target:
            note(buffer, status)
    request.Free()


def derived(number):
    source, target = rng.sample(range(size), 2)
    count = rng.randrange(20)
    matrix[source][target] += count * 64
    array = np.full(16 * 20, rank + 1.0)
    if rank == source:
        world.Send([array, count, half], target, number)
    elif rank == target:
        status = MPI.Status()
        world.Recv([array, 20, half], source, number, status)
        outcome.append([float(array.sum()), status.Get_count(half), status.Get_elements(MPI.DOUBLE)])


def nobody(number):
    world.Send(data(rank, 100), MPI.PROC_NULL, number)
    world.Isend(data(rank, 100), MPI.PROC_NULL, number).Wait()
    status = MPI.Status()
    buffer = np.zeros(10, np.uint8)
    MPI.Request.Waitall([world.Irecv(buffer, MPI.PROC_NULL, number), world.Isend(buffer, MPI.PROC_NULL, number)])
    world.Recv(buffer, MPI.PROC_NULL, number, status)
    note(buffer, status)


def cancelled(number):
    request = world.Irecv(np.zeros(10, np.uint8), rank, 30_000 + number)
    request.Cancel()
    status = MPI.Status()
    request.Wait(status)
    outcome.append(status.Is_cancelled())


MPI.Attach_buffer(bytearray(4_000_000))
steps = [one_message] * 6 + [ring, fan_in, fan_in, persistent, derived, nobody, cancelled]
for number in range(int(sys.argv[2])):
    rng.choice(steps)(number)
    rng.seed(f"{sys.argv[1]} {number}")  # whatever the ranks drew meanwhile
    world.Barrier()
MPI.Detach_buffer()
half.Free()
turned.Free()
leave({"matrix": matrix, "of_persistent": of_persistent, "outcome": sorted(map(str, outcome))})
"""
