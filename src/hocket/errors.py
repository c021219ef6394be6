"""Every exception a user of hocket can see.

Each class derives from `HocketError` and from the fitting builtin, so ``except TimeoutError`` and
``except HocketError`` both work.
"""

from __future__ import annotations


class HocketError(Exception):
    """Base of all errors that hocket raises.

    Examples:
        >>> try:
        ...     hk.init("gpu")
        ... except hk.HocketError as error:
        ...     print(type(error).__name__)
        BackendUnavailable
        >>> issubclass(hk.CommTimeout, TimeoutError)
        True
    """


class InvalidArgument(HocketError, ValueError):
    """An argument has a value that cannot work: a rank out of range, overlapping arrays, a wrong size.

    Examples:
        >>> with hk.init() as comm:
        ...     comm.all_reduce(np.ones(3), op="summ")
        Traceback (most recent call last):
        hocket.errors.InvalidArgument: ...'summ'; did you mean 'sum'?
    """


class InvalidSchedule(HocketError, ValueError):
    """A schedule is malformed, or does not do what its collective promises; the message names the transfer.

    Examples:
        >>> try:
        ...     hk.pipeline.load_text("micro-batches: many")
        ... except hk.InvalidSchedule as error:
        ...     print("line 1" in str(error))
        True
    """


class MissingAction(InvalidSchedule):
    """A pipeline schedule lacks an action: a pass of a micro-batch through a stage, or the other end of a message.

    Examples:
        >>> head = "hocket pipeline schedule, version 1\\nmicro-batches: 1\\npipe 0: 0 1\\n"
        >>> schedule = hk.pipeline.load_text(head + "rank 0: 0F0 0B0\\nrank 1: 1F0")
        >>> hk.pipeline.validate(schedule)
        Traceback (most recent call last):
        hocket.errors.MissingAction: micro-batch 0 ... stage 1
    """


class DuplicateAction(InvalidSchedule):
    """A pipeline schedule has an action twice.

    Examples:
        >>> head = "hocket pipeline schedule, version 1\\nmicro-batches: 1\\npipe 0: 0 1\\n"
        >>> schedule = hk.pipeline.load_text(head + "rank 0: 0F0 0B0\\nrank 1: 1F0 1B0 1F0")
        >>> hk.pipeline.validate(schedule)
        Traceback (most recent call last):
        hocket.errors.DuplicateAction: rank 1, action 2: 1F0 1B0 [1F0]: ...twice...
    """


class MisplacedAction(InvalidSchedule):
    """An action of a pipeline schedule stands on a rank that does not hold its stage, or in another pipe.

    Examples:
        >>> head = "hocket pipeline schedule, version 1\\nmicro-batches: 1\\npipe 0: 0 1\\n"
        >>> schedule = hk.pipeline.load_text(head + "rank 0: 0F0 1F0 0B0\\nrank 1: 1B0")
        >>> hk.pipeline.validate(schedule)
        Traceback (most recent call last):
        hocket.errors.MisplacedAction: rank 0, action 1: 0F0 [1F0] 0B0: stage 1 ... rank 1
    """


class IllegalOrder(InvalidSchedule):
    """An action of a pipeline schedule stands before an action of the same rank that it needs.

    Examples:
        >>> head = "hocket pipeline schedule, version 1\\nmicro-batches: 1\\npipe 0: 0 1\\n"
        >>> schedule = hk.pipeline.load_text(head + "rank 0: 0F0 0B0\\nrank 1: 1B0 1F0")
        >>> hk.pipeline.validate(schedule)
        Traceback (most recent call last):
        hocket.errors.IllegalOrder: rank 1, action 0: [1B0] 1F0: it needs 1F0...
    """


class PipelineDeadlock(InvalidSchedule):
    """Actions of several ranks wait for each other; the message shows the cycle, and what would help.

    Examples:
        >>> schedule = hk.pipeline.lower_messages(hk.pipeline.build("1f1b", 2, 2))
        >>> try:
        ...     hk.pipeline.validate(schedule, buffering="rendezvous")
        ... except hk.InvalidSchedule as error:
        ...     print(type(error).__name__, "tagged:1" in str(error))
        PipelineDeadlock True
        >>> hk.pipeline.validate(schedule, buffering="tagged:1")
    """


class MemoryLimitExceeded(InvalidSchedule):
    """A rank of a pipeline schedule would hold more memory than its limit; names the action and the least limit.

    Examples:
        >>> schedule = hk.pipeline.build("1f1b", 4, 8)
        >>> costs = hk.pipeline.CostModel(weight_nbytes=10.0, stash_nbytes={"activation": 2.0})
        >>> hk.pipeline.validate(schedule, costs=costs, limit_nbytes=17)
        Traceback (most recent call last):
        hocket.errors.MemoryLimitExceeded: rank 0, action 3: ...[0F3]... 18 bytes...
    """


class StashLeak(InvalidSchedule):
    """A pipeline schedule keeps a value for a micro-batch and never releases it.

    Examples:
        >>> from hocket.pipeline.checks.memory import check_stashes
        >>> head = "hocket pipeline schedule, version 1\\nmicro-batches: 1\\npipe 0: 0\\n"
        >>> check_stashes(hk.pipeline.load_text(head + "rank 0: 0F0"))
        Traceback (most recent call last):
        hocket.errors.StashLeak: rank 0, action 0: [0F0]: ...activation of micro-batch 0...
    """


class InvalidModel(HocketError, ValueError):
    """A model cannot be split over ranks as requested; the message names the part, and what would work.

    Examples:
        >>> import torch
        >>> hk.train.graph_of(torch.nn.Identity())
        Traceback (most recent call last):
        hocket.errors.InvalidModel: Identity ...
    """


class SimulationDeadlock(HocketError, RuntimeError):
    """Tasks of a simulation wait for each other.

    Args:
        message: names the first of them.
        tasks: numbers of all of them.

    Examples:
        >>> graph = hk.sim.TaskGraph()
        >>> first, second = graph.add_tasks([1.0, 2.0])
        >>> graph.add_order([first, second], [second, first])
        >>> try:
        ...     graph.simulate()
        ... except RuntimeError as error:
        ...     print(type(error).__name__, error.tasks)
        SimulationDeadlock (0, 1)
    """

    def __init__(self, message: str, tasks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.tasks = tasks


class InvalidType(HocketError, TypeError):
    """An argument is of a kind that cannot work: not an array, on another device, read-only.

    Examples:
        >>> with hk.init() as comm:
        ...     comm.all_reduce([1.0, 2.0])
        Traceback (most recent call last):
        hocket.errors.InvalidType: argument x: ... not list; ...
    """


class UnsupportedDtype(HocketError, TypeError):
    """The data type, or its combination with a reduction, is not supported; the message lists what is.

    Examples:
        >>> with hk.init() as comm:
        ...     comm.all_reduce(np.zeros(3, bool), op="sum")
        Traceback (most recent call last):
        hocket.errors.UnsupportedDtype: sum of bool ... land, lor, lxor
    """


class InvalidState(HocketError, RuntimeError):
    """The call is not possible now: after finalize, after fork, or from two threads at once.

    Examples:
        >>> with hk.init() as comm:
        ...     pass  # finalized at the end
        >>> comm.barrier()
        Traceback (most recent call last):
        hocket.errors.InvalidState: world is finalized...
    """


class CollectiveMismatch(HocketError, RuntimeError):
    """The members of a communicator issued different operations at the same place of the issue order.

    Raised on every rank; the operation is skipped and the communicator stays usable.

    Examples:
        >>> def program(comm):
        ...     x = np.ones(4)
        ...     try:
        ...         comm.all_reduce(x) if comm.rank == 0 else comm.broadcast(x, root=0)
        ...     except hk.CollectiveMismatch as error:
        ...         print("rank 1: broadcast" in str(error))
        >>> _ = hk.simulate(program, 2, fabric=hk.sim.Link(1e-6, 1e-9))
        True
        True
    """


class NotFinite(HocketError, ValueError):
    """An array that must have finite elements holds NaN or infinity; the message names rank, array and element.

    Examples:
        >>> def program(comm):
        ...     x = np.full(4, np.nan if comm.rank == 1 else 1.0, np.float32)
        ...     try:
        ...         comm.sparse_all_reduce(x, k=2, dense="never")
        ...     except hk.NotFinite as error:
        ...         print("rank 1 has nan at element 0" in str(error))
        >>> _ = hk.simulate(program, 2, fabric=hk.sim.Link(1e-6, 1e-9))
        True
        True
    """


class WrongResult(HocketError, RuntimeError):
    """An operation gave a wrong result; the message names the place, the value found and the value expected.

    Examples:
        >>> from hocket.bench.apps.matmul import PROBLEM
        >>> problem = PROBLEM(scale=16)
        >>> product = problem.solve_alone()
        >>> problem.check(product)
        >>> problem.check(product + 1)
        Traceback (most recent call last):
        hocket.errors.WrongResult: ...
    """


class CommTimeout(HocketError, TimeoutError, RuntimeError):
    """An operation did not complete within its timeout.

    Also a RuntimeError: torch.distributed raises that over gloo, and programs catch it.

    Args:
        message: names the operation, its call site and the missing ranks.
        ranks: the missing ranks.

    Examples:
        >>> def program(comm):
        ...     if comm.rank == 1:
        ...         return comm.compute(5.0)  # seconds of the virtual clock
        ...     try:
        ...         comm.recv(np.empty(4), src=1, timeout=1.0)
        ...     except TimeoutError as error:
        ...         return type(error).__name__, error.ranks
        >>> hk.simulate(program, 2, fabric=hk.sim.Link(1e-6, 1e-9)).results[0]
        ('CommTimeout', (1,))
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class PeerFailure(HocketError, RuntimeError):
    """A member of the communicator died or left.

    Args:
        message: names it.
        ranks: the lost ranks.

    Examples:
        >>> def program(comm):
        ...     if comm.rank == 1:
        ...         return "left"
        ...     try:
        ...         comm.barrier()
        ...     except hk.PeerFailure as error:
        ...         return error.ranks
        >>> hk.simulate(program, 2, fabric=hk.sim.Link(1e-6, 1e-9)).results
        [(1,), 'left']
    """

    def __init__(self, message: str, ranks: tuple[int, ...] = ()) -> None:
        super().__init__(message)
        self.ranks = ranks


class UnsupportedCall(HocketError, RuntimeError):
    """hocket does not support this call of another library's interface; the message names an alternative.

    Examples:
        >>> import torch
        >>> import torch.distributed as dist
        >>> import hocket.torch
        >>> dist.init_process_group("hocket", store=dist.HashStore(), rank=0, world_size=1)
        >>> group = dist.group.WORLD._get_backend(torch.device("cpu"))
        >>> try:
        ...     group.shrink([])
        ... except hk.UnsupportedCall as error:
        ...     print("shrink() of its communicator" in str(error))
        True
        >>> dist.destroy_process_group()
    """


class AuthenticationError(HocketError, RuntimeError):
    """Received bytes were not sent by the rank of this job that they claim to be from; they were not unpickled.

    Examples:
        >>> from hocket.comm.object_seals import Sealer
        >>> of_this_job, of_another = (Sealer(key, communicator=1, number=0) for key in (b"secret", b"guess"))
        >>> of_this_job.open(memoryview(of_another.seal(b"data", sender=1)), sender=1)
        Traceback (most recent call last):
        hocket.errors.AuthenticationError: 36 bytes ... rank 1 ...
    """


class Aborted(HocketError, RuntimeError):
    """Another member aborted the communicator, or an earlier operation failed on this one.

    Examples:
        >>> def program(comm):
        ...     if comm.rank == 1:
        ...         return comm.abort("no data")
        ...     try:
        ...         comm.barrier()
        ...     except hk.Aborted as error:
        ...         return str(error)
        >>> hk.simulate(program, 2, fabric=hk.sim.Link(1e-6, 1e-9)).results[0]
        'rank 1 ...no data'
    """


class ResourceExhausted(HocketError, MemoryError):
    """Shared memory or another resource of the machine ran out.

    Examples:
        >>> with hk.init() as comm:
        ...     comm.empty(1 << 60, np.float64)  # 8 EiB
        Traceback (most recent call last):
        hocket.errors.ResourceExhausted: ...9223372036854775808 bytes...
    """


class MissingPackage(HocketError, ImportError):
    """A package is not installed; the message names it and the command that installs it.

    Examples:
        >>> from hocket.lazy_names import explain_missing
        >>> raise explain_missing(ModuleNotFoundError(name="keras"), "hocket.keras.fit")
        Traceback (most recent call last):
        hocket.errors.MissingPackage: hocket.keras.fit needs keras: pip install 'hocket[keras]'
    """


class BackendUnavailable(HocketError, RuntimeError):
    """A backend that was requested by name cannot be used here; the message says why.

    Examples:
        >>> hk.init(backends="mpii")
        Traceback (most recent call last):
        hocket.errors.BackendUnavailable: backend 'mpii' ...did you mean 'mpi'?
    """


class BootstrapMismatch(HocketError, RuntimeError):
    """The processes that met at start-up disagree about the job: its size, a rank, the version of hocket.

    Examples:
        >>> import os
        >>> from unittest import mock
        >>> with mock.patch.dict(os.environ, RANK="2", WORLD_SIZE="2"):
        ...     hk.init()
        Traceback (most recent call last):
        hocket.errors.BootstrapMismatch: ...RANK...
    """


class TableError(HocketError, ValueError):
    """A file cannot be read as a tuning table; the message names the file and the line.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("table.json").write_text('{"format": "something else"}')
        >>> hk.tune.load_table("table.json")
        Traceback (most recent call last):
        hocket.errors.TableError: table.json, line 1: ...'something else'
    """


class RecorderError(HocketError, ValueError):
    """The memory or the file of a recorder cannot be read; the message names it and the offset.

    Examples:
        >>> from pathlib import Path
        >>> _ = Path("black-box").write_bytes(b"something else")
        >>> hk.trace.read_recorder("black-box")
        Traceback (most recent call last):
        hocket.errors.RecorderError: black-box, offset 14: it ends after 14 bytes; a recorder has a head of 400
    """


class QueryTimeout(HocketError, TimeoutError):
    """A query of a recorded run took longer than allowed.

    Examples:
        >>> from hocket import observe
        >>> _ = observe.record_run(["true"], "run-of-a-long-query")
        >>> run = observe.open_run("run-of-a-long-query")
        >>> observe.query_run(run, "SELECT sum(a.range % 7) FROM range(1000000000) a, range(1000) b", timeout=0.1)
        Traceback (most recent call last):
        hocket.errors.QueryTimeout: the query took longer than 0.1 s: narrow it, or allow more
    """


class TableMismatch(HocketError, RuntimeError):
    """The ranks of a job have different tuning tables, and would choose different backends.

    Examples:
        >>> def program(comm, machine):
        ...     import os
        ...     comm.finalize()
        ...     if comm.rank == 1:
        ...         os.environ["HOCKET_TABLE"] = "table.json"
        ...         hk.tune.save_table(hk.tune.Table(machine, []), "table.json")
        ...     try:
        ...         hk.init()
        ...     except hk.TableMismatch as error:
        ...         return type(error).__name__
        >>> hk.spawn(program, 2, hk.tune.this_machine({}))
        ['TableMismatch', 'TableMismatch']
    """


class RemoteError(HocketError, RuntimeError):
    """A function run by `hocket.spawn` failed on a rank, and its exception cannot be raised in this process.

    Examples:
        >>> import os
        >>> try:
        ...     hk.spawn(lambda comm: os._exit(3), 1)
        ... except hk.RemoteError as error:
        ...     print("rank 0" in str(error), "code 3" in str(error))
        True True
    """


class LaunchError(HocketError, RuntimeError):
    """A job could not be started, or one of its ranks failed.

    Examples:
        >>> from hocket.boot.launcher import run_job
        >>> run_job(["./no-such-program"], 1)
        Traceback (most recent call last):
        hocket.errors.LaunchError: rank 0 ...: ./no-such-program: ...
    """


class BadEntry(HocketError, ImportError):
    """A file that should add an entry to a registry does not: its import fails, or it lacks a required name.

    Attributes:
        name: name of the module.
        path: its file.

    Examples:
        >>> from pathlib import Path
        >>> import hocket.pipeline.schedules as package
        >>> from hocket.discovery import load
        >>> _ = Path("toy.py").write_text("answer = 1 / 0")
        >>> package.__path__.append(".")
        >>> try:
        ...     load(package, "toy")
        ... except ImportError as error:
        ...     print(type(error).__name__, error.name, "ZeroDivisionError" in str(error))
        ... finally:
        ...     package.__path__.remove(".")
        BadEntry hocket.pipeline.schedules.toy True
    """


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error message, or its type if the message is empty."""
    return str(error).strip().partition("\n")[0] or type(error).__name__
