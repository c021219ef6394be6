"""The communicator. Its operations are native methods; this file has the methods that are called rarely."""

from __future__ import annotations

import weakref
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from hocket import _native
from hocket.comm import fusion, groups, messages, objects, sharing, waiting
from hocket.comm.chooser import Chooser
from hocket.comm.compressed_sums import CompressedSource, compressed_all_reduce, compressed_reduce_scatter
from hocket.comm.fabric import Backends, JobFabric
from hocket.comm.foreign_names import ForeignNames
from hocket.comm.identity import derive_key
from hocket.comm.issuing import coalesced, prepare
from hocket.comm.object_seals import ObjectSeals
from hocket.comm.objects import ObjectTransport
from hocket.comm.policy import Explanation, Group, Policy
from hocket.comm.rank_clock import compute, wtime
from hocket.comm.reductions import reduce_by_function
from hocket.comm.shrink import Lineage, Membership, Opening, check_excluded, open_survivors
from hocket.comm.sparse_sums import SparseSource, sparse_all_reduce
from hocket.comm.unseen import raise_or_note, warn_at_the_users_line
from hocket.errors import HocketError, InvalidState, InvalidType
from hocket.trace import GroupRecords, Record, decode_events, logger, write_flight_record


class Communicator(_native.Communicator, ForeignNames):
    """A group of ranks, and the operations between them.

    `hocket.init` makes the communicator of all ranks; `split`, `group` and `dup` make others from it. Each communicator
    has its own issue order: all members call the same collectives in the same order. If they disagree, for example
    about the size of an array, `CollectiveMismatch` is raised on every member.

    Operations on arrays work in place or write into `out`. Arrays are NumPy arrays, torch tensors and other objects
    with the buffer protocol or DLPack. A non-contiguous array is copied, and the result is written back.

    - Reduce: `all_reduce`, `reduce`, `scan`, `reduce_scatter`, `all_reduce_coalesced`.
    - Sum the largest elements only: `sparse_all_reduce`; with fewer bits, or by factors: `compressed_all_reduce`,
      `compressed_reduce_scatter`.
    - Move equal blocks: `broadcast`, `gather`, `scatter`, `all_gather`, `all_to_all`, `broadcast_coalesced`.
    - Move blocks of different sizes: `gatherv`, `scatterv`, `all_gatherv`, `reduce_scatterv`, `all_to_allv`.
    - Wait for all ranks: `barrier`, `quiesce`; for this rank's own operations: `synchronize`.
    - Send messages: `send`, `recv`, `isend`, `irecv`, `sendrecv`, `batch`, `probe`.
    - Carry Python objects: `all_gather_object`, `broadcast_object`, `send_object` and the others that end in `_object`.
    - Save time with small or repeated operations: `fused`, `bucket`, `coalesced`, `prepare`.
    - Make arrays that the ranks of a host share: `empty`, `zeros`, `symmetric_like`, `symmetric_storage`.
    - Inspect: `explain`, `records`, `dump_flight_record`.
    - End, also after failures: `finalize`, `abort`, `shrink`.

    Collectives with ``async_op=True`` return a `Work` at once. All operations take ``timeout`` in seconds.

    Reductions are made in rank order, so results are bitwise equal on all ranks and in all runs. ``op`` is one of:

    - "sum", "prod": float16 and bfloat16 accumulate in float32; integers wrap around.
    - "min", "max": NaN propagates.
    - "avg": the sum is divided once, at the end.
    - "band", "bor", "bxor": on the bits of integers.
    - "land", "lor", "lxor": on truth values; every value except zero is true.
    - a name that was given to `hocket.register_reduction`.

    ``backend=`` names the library that carries an operation; by default the policy chooses one. ``algorithm=`` names
    how it is executed: a schedule such as "circulant" or "chain(num_blocks=8)", a `hocket.collectives.Schedule`, or
    "native" for the library's own algorithm. Operations on different backends run concurrently, except that operations
    on the same bytes keep their order, and an operation follows those in its ``deps=``.

    Examples:
        >>> x = np.full(4, comm.rank + 1.0)  # [1, 1, 1, 1] on rank 0, [2, 2, 2, 2] on rank 1
        >>> comm.all_reduce(x)
        >>> x
        array([3., 3., 3., 3.])
    """

    _names: list[str]

    def __init__(
        self,
        fabric: JobFabric,
        members: list[int],
        rank: int,
        key: int,
        label: str,
        timeout: float,
        open_timeout: float,
    ) -> None:
        self._names: list[str]
        self._names, self._backends = fabric.backends_between(members)
        layout = fabric.layout
        here = layout.hosts[members[rank]]
        local = [layout.local_ranks[each] if layout.hosts[each] == here else -1 for each in members]
        if fabric.virtual is not None:
            super().__init__(fabric.virtual, members, rank, key, label, self._names, timeout, open_timeout)
        elif layout.num_hosts(members) == 1:
            super().__init__(fabric.host, local, rank, key, label, self._names, timeout, open_timeout)
        else:
            assert fabric.control is not None
            super().__init__(
                fabric.control, fabric.host, members, local, rank, key, label, self._names, timeout, open_timeout
            )
        self._record_members(members)
        self._fabric, self._host = fabric, fabric.host
        self._members = members
        self._key = key
        self._on_failure = fabric.on_failure
        for library in fabric.libraries:
            lanes = library.open_lanes(members, key, open_timeout)
            self._add_backend(lanes.collective, lanes.point_to_point, lanes.schedules)
        self._set_allowed(list(self._backends))
        self._set_left_out(self._backends.left_out)
        self._chooser = Chooser(
            Group(
                len(members),
                tuple(self._backends),
                self.num_hosts,
                layout.ranks_per_host(members),
                layout.ranks_per_domain(members),
            ),
            self._names,
            fabric.libraries,
            key,
            fabric.schedules,
        )
        self.policy = fabric.policy
        self._object_transport = ObjectTransport(
            ObjectSeals(fabric.object_key, key),
            shares_memory="shm" in self._backends,
            moves_data=self.moves_data,
            leaves_process=fabric.virtual is None,
        )
        self._num_splits = 0
        self._groups_made: Counter[tuple[int, ...]] = Counter()
        self._children: weakref.WeakSet[Communicator] = weakref.WeakSet()
        self._is_watch = False
        """Whether its operations only notice failures, and never complete: nobody waits for them."""
        self._on_finalize: Callable[[], object] | None = None
        self._lineage = Lineage(key)
        self._sparse: SparseSource | None = None
        self._compressed: CompressedSource | None = None

    @property
    def local_rank(self) -> int:
        """Number of this rank among the members on its host."""
        return self._ranks_of_host.index(self.rank)

    @property
    def local_size(self) -> int:
        """Number of members on this host."""
        return len(self._ranks_of_host)

    @property
    def num_hosts(self) -> int:
        """Number of hosts that the members are on."""
        return self._fabric.layout.num_hosts(self._members)

    @property
    def backends(self) -> Backends:
        """The libraries that can carry operations of this communicator, with a short description of each.

        Its attribute `left_out` gives the reason why each other library is not available.
        """
        return Backends(self._backends, self._backends.left_out)

    def records(self) -> list[Record]:
        """Return the latest operations (at most 4096), oldest first, including those in flight.

        Examples:
            >>> comm.all_reduce(np.ones(4))
            >>> comm.records()[-1].op, comm.records()[-1].nbytes
            ('all_reduce', 32)
        """
        return decode_events(self._records(), self._names, self._program_names(), in_ns=self.is_virtual)

    @property
    def policy(self) -> Policy:
        """How a backend is chosen for an operation that names none.

        Set it to the same policy on all members, between the same two operations. Communicators that are made from
        this one later start with the policy that was set; what it learns while running stays with this communicator.
        """
        return self._chooser.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._chooser.set_policy(self, policy)

    def explain(self, op: str, nbytes: int = 0, dtype: str = "float32", reduction: str = "sum") -> Explanation:
        """Explain what carries an operation that names no backend and no algorithm, why, and what came second.

        Args:
            op: name of the operation, e.g. "all_reduce".
            nbytes: size in bytes, as in `Record.nbytes`.
            dtype: name of the type of its elements.
            reduction: the ``op`` of an operation that reduces.

        Raises:
            InvalidArgument: the operation, the type or the size is not valid.
            UnsupportedDtype: no backend can carry the operation.

        Examples:
            >>> why = comm.explain("all_reduce", nbytes=1 << 20)
            >>> why.chosen in comm.backends
            True
            >>> print(why)
            all_reduce of 1 MiB float32 between 2 ranks: ...
              why: ...
        """
        return self._chooser.explain(self, op, nbytes, dtype, reduction)

    @property
    def is_virtual(self) -> bool:
        """Whether its ranks are virtual, made by `hocket.simulate`; then all its times are simulated."""
        return self._fabric.virtual is not None

    @property
    def moves_data(self) -> bool:
        """Whether its operations change arrays: not on virtual ranks of a simulation with ``moves_data=False``."""
        return self._fabric.virtual is None or self._fabric.virtual.moves_data

    def dump_flight_record(self, folder: str | Path) -> Path:
        """Write a file with the latest operations of this communicator and of those made from it.

        Any rank can call it at any time.

        Args:
            folder: a separate folder; every rank writes one file into it. ``torchfrtrace FOLDER`` compares the files
                and names the first collective that some ranks did not reach, or about which ranks disagree.

        Returns:
            The path of this rank's file.

        Raises:
            OSError: the file cannot be written.

        Examples:
            >>> path = comm.dump_flight_record("flight")
            >>> path.parent.name, path.is_file()
            ('flight', True)
        """
        groups = [
            GroupRecords(f"{each._key:016x}", each._label, each._members, each.rank, each.records())
            for each in self._family()
        ]
        return write_flight_record(Path(folder), rank=self._members[self.rank], groups=groups)

    split = groups.split
    dup = groups.dup
    group = groups.group

    batch = messages.batch
    probe = messages.probe
    synchronize = waiting.synchronize
    quiesce = waiting.quiesce
    fused = fusion.fused
    bucket = fusion.bucket
    prepare = prepare
    coalesced = coalesced
    wtime = wtime
    compute = compute
    sparse_all_reduce = sparse_all_reduce
    compressed_all_reduce = compressed_all_reduce
    compressed_reduce_scatter = compressed_reduce_scatter

    all_gather_object = objects.all_gather_object
    gather_object = objects.gather_object
    all_reduce_object = objects.all_reduce_object
    reduce_object = objects.reduce_object
    broadcast_object = objects.broadcast_object
    scatter_object = objects.scatter_object
    all_to_all_object = objects.all_to_all_object
    send_object = objects.send_object
    isend_object = objects.isend_object
    recv_object = objects.recv_object

    empty = sharing.empty
    zeros = sharing.zeros
    symmetric_like = sharing.symmetric_like
    symmetric_storage = sharing.symmetric_storage

    def _find_program(self, kind: str, algorithm: object, nbytes: int) -> int:
        """Return the number of a schedule; called by the native methods with the value of `algorithm=`."""
        return self._chooser.find_program(self, kind, algorithm, nbytes)

    def _sparse_sums(self) -> SparseSource:
        if self._sparse is None:
            self._sparse = self._fabric.open_sparse_sums(self)
        return self._sparse

    def _compressed_sums(self) -> CompressedSource:
        if self._compressed is None:
            self._compressed = self._fabric.open_compressed_sums(self)
        return self._compressed

    def _take_turn(self) -> None:
        """Call `on_turn`; called by the native methods before the collective that `_set_turn` has named."""
        if self._chooser.on_turn is not None:
            self._chooser.on_turn()

    def _reduce_by_function(self, kind: str, *arguments: Any, **options: Any) -> object:
        """Reduce with a registered function; called by the native methods for such an ``op``."""
        return reduce_by_function(self, kind, *arguments, **options)

    def abort(self, reason: str) -> None:
        """Break the communicator on all members; one rank calls it, and it returns without waiting.

        Operations in flight, on this rank and on the others, and all later operations raise `Aborted` with the reason.
        Call it when this rank cannot continue, so that the others need not wait for their timeouts.

        Examples:
            >>> own = comm.dup()
            >>> own.abort("the input file is missing")
            >>> own.barrier()
            Traceback (most recent call last):
            hocket.errors.Aborted: ...the input file is missing...
        """
        if not isinstance(reason, (str, BaseException)):
            raise InvalidType(f"reason must be a str to show on the other ranks, not {type(reason).__name__}")
        self._abort(str(reason))

    def shrink(self, exclude: Collection[int] = (), timeout: float | None = None) -> Communicator:
        """Make a communicator of the surviving ranks after a failure; called by all survivors.

        The ranks keep their order. Shared memory, UCX and gloo continue to work; MPI does not, once a rank has died.
        Finalizing the new communicator also finalizes this one.

        Args:
            exclude: ranks that are alive but hang, and so do not call `shrink`.
            timeout: seconds; None: the communicator's timeout.

        Raises:
            InvalidArgument: `exclude` names this rank, or a rank that is out of range.
            CommTimeout: a rank is alive but did not call `shrink`; the error names it.
            BackendUnavailable: no library connects the survivors.

        Examples:
            >>> failed = comm.dup()
            >>> failed.abort("as after the death of a rank")
            >>> with failed.shrink() as survivors:
            ...     survivors.all_reduce_object(1)
            2
        """
        self._check_usable()
        own = Membership(self._label, self.rank, self._members, self._fabric, self._lineage)
        excluded = check_excluded(own, exclude)
        return open_survivors(own, excluded, self.timeout if timeout is None else timeout, self._open_survivors)

    def finalize(self) -> None:
        """Wait for operations in flight, then leave this communicator and those made from it. Idempotent.

        Not collective: a member that still waits for this rank gets `PeerFailure`, or `Aborted` if this rank had
        operations in flight. A ``with`` block finalizes at its end.

        Raises:
            HocketError: the error of the first failed asynchronous operation that the program did not wait for. It is
                not raised if another failure was raised before; while the program handles another error, that error
                gets a note instead. The communicator is left in any case.

        Examples:
            >>> own = comm.dup()
            >>> own.finalize()
            >>> own
            <hocket.Communicator dup of ...finalized>
        """
        unseen = self._leave(self.timeout)
        if unseen is not None:
            raise_or_note(unseen)

    def _leave(self, drain_timeout_s: float, is_child: bool = False) -> BaseException | None:
        """Leave this communicator and those made from it.

        Args:
            drain_timeout_s: time for operations in flight to complete; 0: the program fails anyway.
            is_child: whether the communicator that it was made from is being left.

        Returns:
            The error of the first failed asynchronous operation, if no failure was raised in the program.
        """
        unseen = [child._leave(drain_timeout_s, True) for child in list(self._children)]
        was_open = not self._closed
        failure, unreceived = self._close(0.0 if self._is_watch else drain_timeout_s)
        unseen.append(None if self._is_watch else failure)
        self._chooser.on_turn = None
        if was_open:
            logger.debug("left %s", self._label)
            for library in self._fabric.libraries:
                library.close_lanes(self._key)
        if self._on_finalize is not None:
            unseen.append(_native.take_unseen())  # from communicators that the program dropped
        # Another thread may finalize at the same time.
        on_finalize, self._on_finalize = self._on_finalize, None
        first = next((error for error in unseen if error is not None), None)
        if first is not None and not is_child:
            if self._fabric.has_raised():
                first = None
            elif self._on_failure is not None:
                self._on_failure(self, first)
        if on_finalize is not None:
            on_finalize()
        if unreceived:  # last, because a warning filter may turn it into an error
            warn_at_the_users_line(f"hocket: rank {self.rank} of {self._label} never received what {unreceived}")
        return first

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error the operations in flight may never complete; leaving notifies the other members.
        if error is not None:
            self._leave(0.0)
        else:
            self.finalize()

    def __repr__(self) -> str:
        state = ", finalized" if self._closed else ""
        return f"<hocket.Communicator {self._label}: rank {self.rank} of {self.size}{state}>"

    def _family(self) -> Iterator[Communicator]:
        yield self
        for child in list(self._children):
            yield from child._family()

    @property
    def _ranks_of_host(self) -> list[int]:
        hosts = [self._fabric.layout.hosts[member] for member in self._members]
        return [rank for rank, host in enumerate(hosts) if host == hosts[self.rank]]

    def _count_split(self) -> int:
        self._num_splits += 1
        return self._num_splits

    def _count_group(self, members: tuple[int, ...]) -> int:
        self._groups_made[members] += 1
        return self._groups_made[members]

    def _child(self, ranks: list[int], label: str, *identity: object) -> Self:
        self._check_usable()
        members = [self._members[rank] for rank in ranks]
        try:
            return self._open(self._fabric, members, label, (self._key, *identity), self.timeout)
        except HocketError as error:
            if self._on_failure is not None:
                self._on_failure(self, error)  # for a failed operation the native core calls it
            raise

    def _check_usable(self) -> None:
        if _native.is_forked_child() or self._closed:
            raise InvalidState(f"{self._label} cannot be used any longer: it was finalized, or this is a forked child")

    def _open_survivors(self, opening: Opening) -> Communicator:
        survivors = self._open(opening.fabric, opening.members, opening.label, opening.identity, opening.timeout_s)
        survivors._lineage = opening.lineage
        survivors._on_finalize = lambda: self._leave(0.0)
        return survivors

    def _open(
        self, fabric: JobFabric, members: list[int], label: str, identity: tuple[object, ...], open_timeout: float
    ) -> Self:
        child = type(self)(
            replace(fabric, policy=self._chooser.given_policy),
            members,
            members.index(self._members[self.rank]),
            derive_key(*identity),
            label,
            self.timeout,
            open_timeout,
        )
        child._check_grad = self._check_grad
        self._children.add(child)
        logger.debug("made %s: rank %d of %d", label, child.rank, child.size)
        return child
