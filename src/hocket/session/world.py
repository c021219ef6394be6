"""The world communicator of this process, from `init` to the end of the process."""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import NoneType
from typing import Literal

from hocket import _native
from hocket.backends import Backend, BackendJob, backends_among
from hocket.boot.control import ControlConnection
from hocket.boot.environment import World, meeting_name, read_world
from hocket.boot.joining import connect, connect_to
from hocket.boot.record_folder import record_folder
from hocket.boot.topology import find_domain
from hocket.comm import Communicator, JobFabric, JobLayout, Policy
from hocket.comm.identity import derive_key
from hocket.comm.policy import DefaultPolicy
from hocket.comm.unavailable import NOT_ASKED_FOR
from hocket.errors import (
    Aborted,
    BackendUnavailable,
    CommTimeout,
    InvalidArgument,
    InvalidState,
    PeerFailure,
)
from hocket.session.learning import is_learning_asked_for, learn_until_finalized
from hocket.session.libraries import Libraries, agree_on_policy, start_libraries
from hocket.session.schedules import LazySchedules, open_compressed_sums, open_sparse_sums
from hocket.session.variables import check_variables
from hocket.suggestions import names_wrong_keywords
from hocket.trace import logger, start_log, write_failure_record

_EXIT_DRAIN_S = 1.0  # so that other ranks are notified of our exit within two seconds
_WORLD_KEY = derive_key("world")


class _Session:
    """The state of this process: its world communicator, and the number of earlier ones."""

    def __init__(self) -> None:
        self.world: Communicator | None = None
        self.generation = 0
        self.open: list[Communicator] = []  # root communicators, including those of torch process groups


_session = _Session()


@names_wrong_keywords
def init(
    backends: str | Sequence[str] | None = None,
    policy: str | Policy = "auto",
    timeout: float = 600.0,
    progress: Literal["auto", "caller", "thread"] = "auto",
    deterministic: bool = False,
) -> Communicator:
    """Join the job of this process and return its world communicator.

    Works under ``hocket run``, torchrun, mpirun, mpiexec and srun, on one host and several. Without a launcher it
    returns a world of one rank. May be called again after ``comm.finalize()``. With HOCKET_LEARN=1 a
    `hocket.tune.Learner` corrects the tuning table while the program runs.

    Args:
        backends: names of libraries that must start, and that operations may use, such as "shm", "gloo" and "mpi"
            (``hocket bench list`` shows all); two names with a plus, as in "mpi+gloo", carry parts of one operation at
            the same time. None: the libraries that HOCKET_BACKENDS names (``shm,mpi``). If HOCKET_BACKENDS is not set:
            shm, mpi if it can start, and gloo if torch is already imported or the job spans hosts; other libraries
            are used only when requested by name. ``comm.backends.left_out`` has the reason for each missing one.
        policy: how a library is chosen for an operation that does not name one: "auto", or a `Policy`.
        timeout: default timeout of operations, and timeout of this call, in seconds.
        progress: what drives asynchronous operations: "caller" (every call into hocket), "thread" (also a native
            thread), or "auto": the value of HOCKET_PROGRESS; if that is not set, a thread only if there are more
            processors than local ranks.
        deterministic: keep library and algorithm fixed (no learning); the shm backend is always deterministic.

    Returns:
        The communicator of all ranks. Use it in a ``with`` statement, or call its `finalize()`.

    Raises:
        InvalidArgument: an argument or one of hocket's environment variables has an invalid value.
        InvalidState: the world communicator of this process already exists.
        BackendUnavailable: a requested backend is not available, or no library connects the hosts of the job.
        BootstrapMismatch: the launcher's variables, or those of the ranks, contradict each other.
        CommTimeout: some rank never arrived; the message names it.
        TableError: the tuning table of some rank is malformed.
        TableMismatch: the ranks have different tuning tables.

    Examples:
        >>> with hk.init() as comm:
        ...     x = np.full(3, comm.rank + 1.0)
        ...     comm.all_reduce(x, op="sum")
        ...     print(comm.size, x)
        1 [1. 1. 1.]
    """
    requested = _read_backends(backends)
    _check_arguments(policy, timeout, progress, deterministic)
    learns = is_learning_asked_for() and not deterministic
    if _session.world is not None:
        raise InvalidState("hocket.init() was called already; use that communicator, or finalize() it first")
    world = read_world()
    check_variables(warns=world.rank == 0)
    start_log(world.rank)
    job = _meet(world, requested, timeout)
    host = job.host
    communicator = _join(job, world, requested, policy, timeout, learns)
    driver = (os.environ.get("HOCKET_PROGRESS") or "auto") if progress == "auto" else progress
    if driver == "thread" or (driver == "auto" and world.local_size < host.num_cpus):
        _native.start_progress_thread()
    leave = communicator._on_finalize

    def forget() -> None:
        if leave is not None:
            leave()
        _session.world = None

    communicator._on_finalize = forget
    _session.world = communicator
    return communicator


def connect_ranks(
    name: str,
    rank: int,
    hosts: Sequence[str],
    *,
    timeout: float,
    server: tuple[str, int] | None = None,
    backends: str | Sequence[str] | None = "shm",
    policy: str | Policy = "auto",
) -> Communicator:
    """Connect to other ranks without a launcher, and return the communicator of all of them.

    Args:
        name: name of the meeting, equal on all ranks, used only once; also the name of the folder of failure records.
        rank: rank of this process.
        hosts: identity of each rank's host (`hocket.boot.joining.host_identity`), by rank.
        timeout: timeout of this call and default timeout of operations, in seconds.
        server: address and port of the server started by `hocket.boot.joining.start_server`; None on one host.
        backends, policy: as for `init`.
    """
    requested = _read_backends(backends)
    _check_arguments(policy, timeout, "auto", False)
    learns = is_learning_asked_for()
    start_log(rank)
    local = [each for each, host in enumerate(hosts) if host == hosts[rank]]
    world = World(rank, len(hosts), local.index(rank), len(local), name, name)
    if server is None:
        host = _connect(name, rank, len(hosts), timeout)
        meeting = _Meeting(host, JobLayout.on_one_host(len(hosts)))
    else:
        address, port = server
        control = connect_to(address, [port], name, world, timeout, _version())
        meeting = _meet_on_hosts(control, world, timeout)
    return _join(meeting, world, requested, policy, timeout, learns)


def _version() -> str:
    import importlib.metadata  # loaded here, so that ranks of one host do not wait for it

    return importlib.metadata.version("hocket")


def _join(
    meeting: _Meeting, world: World, requested: Sequence[str] | None, policy: str | Policy, timeout: float, learns: bool
) -> Communicator:
    """Start the requested libraries between ranks that have met, and return the communicator of all ranks."""
    libraries, domains, object_key = _connect_libraries(meeting, world, requested, policy, timeout)
    started = ["shm", *(library.name for library in libraries.started)]
    failures = _FailureRecorder(world, libraries.started)
    fabric = JobFabric(
        meeting.host,
        replace(meeting.layout, domains=domains),
        None if meeting.control is None else meeting.control.native,
        libraries.started,
        allowed=[name for name in started if requested is None or name in requested],
        left_out=libraries.left_out,
        policy=libraries.policy,
        schedules=LazySchedules(),
        open_sparse_sums=open_sparse_sums,
        open_compressed_sums=open_compressed_sums,
        on_failure=failures.on_failure,
        has_raised=lambda: failures.has_raised,
        object_key=object_key,
    )
    root = _make_root(fabric, world.rank, world.size, timeout, meeting.control)
    failures.root = weakref.ref(root)
    backends = root.backends
    logger.info("world of %d ranks, pid %d; policy: %r", world.size, os.getpid(), libraries.policy)
    for name, word in backends.items():
        logger.info("backend %s: %s", name, word)
    for name, reason in backends.left_out.items():
        logger.info("backend %s is left out: %s", name, reason)
    if learns:
        learn_until_finalized(root, saves=policy == "auto")
    return root


def _connect(name: str, rank: int, size: int, timeout: float) -> _native.Host:
    with _native.control_event("wait for the ranks of this host", 0):
        host = _native.Host(name, rank, size, timeout)
    if size > host.num_cpus:  # also counts for later, smaller groups of the same processes
        _native.set_num_sharing(size)
    return host


@dataclass(frozen=True)
class _Meeting:
    """The ranks of this host, and the control connection to the ranks of other hosts; None on one host."""

    host: _native.Host
    layout: JobLayout
    control: ControlConnection | None = None


def _meet(world: World, requested: Sequence[str] | None, timeout: float) -> _Meeting:
    generation = _session.generation
    name = meeting_name(world, generation)
    if world.local_size == world.size:
        host = _connect(name, world.rank, world.size, timeout)
        _session.generation += 1
        return _Meeting(host, JobLayout.on_one_host(world.size))
    if requested == ["shm"]:
        raise BackendUnavailable(_too_far(world.local_size, world.size))
    control = connect(world, generation, timeout, _version())
    _session.generation += 1  # all ranks have come this far, even if the rest fails
    return _meet_on_hosts(control, world, timeout)


def check_reach(backends: str | Sequence[str] | None, hosts: Sequence[str]) -> None:
    """Check that the backends given to `connect_ranks` can connect ranks on these hosts.

    Raises:
        BackendUnavailable: the only backend is shared memory and there are several hosts; or a name is unknown.
    """
    if len(set(hosts)) > 1 and _read_backends(backends) == ["shm"]:
        raise BackendUnavailable(_too_far(hosts.count(hosts[0]), len(hosts)))


def _too_far(num_local: int, num_ranks: int) -> str:
    return f"backend 'shm' connects ranks of one host, but only {num_local} of {num_ranks} ranks are on this host"


def _meet_on_hosts(control: ControlConnection, world: World, timeout: float) -> _Meeting:
    """Meet the ranks of this host, after the ranks of all hosts have met."""
    try:
        own_host = control.members[world.rank].host
        host = _connect(control.meeting_name(own_host), world.local_rank, world.local_size, timeout)
    except BaseException as error:
        control.close(error)
        raise
    numbers = {each: number for number, each in enumerate(dict.fromkeys(member.host for member in control.members))}
    layout = JobLayout(
        [numbers[member.host] for member in control.members], [member.local_rank for member in control.members]
    )
    return _Meeting(host, layout, control)


def _connect_libraries(
    meeting: _Meeting, world: World, requested: Sequence[str] | None, policy: str | Policy, timeout: float
) -> tuple[Libraries, Sequence[str], bytes]:
    """Start libraries, choose the policy and find the domain of each rank.

    The ranks agree over a communicator of shared memory, or over the control connection.

    Returns:
        The libraries; the domain of each rank (see `find_domain`), by rank; a key that only the ranks of the job have.
    """
    if meeting.control is not None:
        control = meeting.control
        own = control.members[world.rank].address
        exchange = partial(control.exchange, timeout=timeout)
        job = BackendJob(*_place(world), own, timeout, exchange, control.gather, connect_pmi=control.connect_pmi)
        try:
            libraries = _start_all(job, requested, policy, meeting.layout.num_hosts(range(world.size)))
            if not libraries.started:
                reasons = "; ".join(f"{name}: {reason}" for name, reason in libraries.left_out.items())
                raise BackendUnavailable(f"this job spans several hosts, but no library connects them: {reasons}")
            return libraries, job.exchange(find_domain()), control.object_key
        except BaseException as error:
            control.close(error)
            raise
    if requested == ["shm"]:
        left_out = dict.fromkeys(backends_among(requested), NOT_ASKED_FOR)
        return Libraries(left_out=left_out, policy=policy if isinstance(policy, Policy) else DefaultPolicy()), (), b""
    start_up = Communicator(
        JobFabric(meeting.host, meeting.layout),
        list(range(world.size)),
        world.rank,
        derive_key("control"),
        "start-up",
        timeout,
        timeout,
    )
    try:
        gather = partial(_gather_here, meeting, world.rank)
        job = BackendJob(*_place(world), "127.0.0.1", timeout, start_up.all_gather_object, gather)
        libraries = _start_all(job, requested, policy, 1)
        answers = [text.split(" ", 1) for text in job.exchange(f"{os.urandom(32).hex()} {find_domain()}")]
        return libraries, [domain for _, domain in answers], bytes.fromhex(answers[0][0])
    finally:
        start_up._leave(0.0)


def _gather_here(
    meeting: _Meeting, rank: int, members: Sequence[int], name: str, text: str, timeout: float
) -> list[str]:
    """Gather a text from some ranks of this host, over a temporary communicator."""
    members = list(members)
    fabric, place = JobFabric(meeting.host, meeting.layout), members.index(rank)
    comm = Communicator(fabric, members, place, derive_key(name), "start-up", timeout, timeout)
    try:
        return comm.all_gather_object(text)
    finally:
        comm._leave(0.0)


def _place(world: World) -> tuple[int, int, int, int]:
    return world.rank, world.size, world.local_rank, world.local_size


def _start_all(job: BackendJob, requested: Sequence[str] | None, policy: str | Policy, num_hosts: int) -> Libraries:
    libraries = start_libraries(job, requested)
    libraries.policy = policy if isinstance(policy, Policy) else agree_on_policy(job, libraries, num_hosts)
    return libraries


def _make_root(
    fabric: JobFabric, rank: int, size: int, timeout: float, control: ControlConnection | None = None
) -> Communicator:
    """Create a communicator of all ranks; it is left open until it is finalized or the process ends."""
    communicator = Communicator(fabric, list(range(size)), rank, _WORLD_KEY, "world", timeout, timeout)
    if not _session.open:
        atexit.register(_finalize_all)
    _session.open.append(communicator)

    def leave() -> None:
        for library in reversed(fabric.libraries):
            library.close(is_broken=False)
        fabric.host.set_finalized()
        if control is not None:
            control.close()
        _session.open.remove(communicator)
        if not _session.open:
            _native.set_num_sharing(0)
            _native.stop_progress_thread()
            atexit.unregister(_finalize_all)

    communicator._on_finalize = leave
    return communicator


class _FailureRecorder:
    """Writes this rank's records at the first failure of a communicator; later failures follow from the first."""

    # Weak: the communicator holds this object in native code, which the garbage collector does not traverse.
    root: Callable[[], Communicator | None] = staticmethod(lambda: None)

    def __init__(self, world: World, libraries: Sequence[Backend] = ()) -> None:
        self._world = world
        self._libraries = libraries
        self._written = False
        self.has_raised = False  # any failure, recorded or not

    def on_failure(self, communicator: Communicator, error: BaseException) -> None:
        self.has_raised = True
        if self._written or not isinstance(error, (PeerFailure, CommTimeout, Aborted)):
            return
        self._written = True
        logger.error("%s failed: %s: %s", communicator._label, type(error).__name__, error)
        for library in self._libraries:
            library.close(is_broken=True)
        try:
            folder = Path(os.environ.get("HOCKET_RECORD_DIR") or record_folder(self._world.job))
            write_failure_record(
                folder,
                rank=self._world.rank,
                size=self._world.size,
                communicator=communicator._label,
                error=error,
                records=communicator.records(),
            )
            (self.root() or communicator).dump_flight_record(folder / "flight")
        except OSError as why:  # must not hide the failure itself
            logger.error("the failure records could not be written: %s", why)
        else:
            logger.error("the failure records are in %s", folder)


def _read_backends(backends: str | Sequence[str] | None) -> list[str] | None:
    if not isinstance(backends, (str, Iterable, NoneType)):
        raise InvalidArgument(f"backends must be a name, a list of names or None, not {backends!r}")
    origin = ""
    if backends is None:
        setting = os.environ.get("HOCKET_BACKENDS")
        if not setting:
            return None
        backends, origin = setting.split(","), f"HOCKET_BACKENDS={setting!r}: "
    names = [backends] if isinstance(backends, str) else list(backends)
    if isinstance(backends, str) and "," in backends:
        raise InvalidArgument(f"backends must be a list, such as {backends.split(',')!r}, not {backends!r}")
    try:
        backends_among(names)
    except BackendUnavailable as error:
        raise BackendUnavailable(f"{origin}{error}") from None
    return names or None


def _check_arguments(policy: object, timeout: float, progress: str, deterministic: bool) -> None:
    if policy != "auto" and not isinstance(policy, Policy):
        raise InvalidArgument(f"policy must be 'auto' or a Policy, not {policy!r}")
    if not isinstance(timeout, (int, float)) or not timeout > 0:
        raise InvalidArgument(f"timeout must be a number of seconds above zero, not {timeout!r}")
    if progress not in ("auto", "caller", "thread"):
        raise InvalidArgument(f"progress must be 'auto', 'caller' or 'thread', not {progress!r}")
    if not isinstance(deterministic, bool):
        raise InvalidArgument(f"deterministic must be True or False, not {deterministic!r}")


def _finalize_all() -> None:
    """Leave all communicators at exit, so that other ranks are notified at once."""
    if _native.is_forked_child():
        return
    # After an uncaught exception, operations in flight may never complete.
    failed = getattr(sys, "last_value", None) is not None
    for communicator in list(_session.open):
        unseen = communicator._leave(0.0 if failed else _EXIT_DRAIN_S)
        if unseen is not None:
            rank, kind = communicator.rank, type(unseen).__name__
            print(f"hocket: rank {rank} exits after a failure: {kind}: {unseen}", file=sys.stderr, flush=True)
            _native.fail_at_exit()
    _native.stop_progress_thread()
