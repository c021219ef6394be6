"""The communicator. Its operations are native methods; here is what is called rarely."""

from __future__ import annotations

import weakref
from array import array
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any

from hocket import _native
from hocket.comm import objects, sharing
from hocket.comm.chooser import Chooser
from hocket.comm.fabric import Backends, JobFabric
from hocket.comm.foreign_names import ForeignNames
from hocket.comm.fusion import Bucket, Fused
from hocket.comm.identity import LARGEST_INT64, derive_key, read_int64, read_members
from hocket.comm.issuing import coalesced, prepare
from hocket.comm.messages import batch, wait_for_sender
from hocket.comm.object_seals import ObjectSeals
from hocket.comm.objects import ObjectWay
from hocket.comm.policy import Explanation, Group, Policy
from hocket.comm.rank_clock import compute, wtime
from hocket.comm.reductions import reduce_by_function
from hocket.comm.shrink import Lineage, Membership, Opening, check_excluded, open_survivors
from hocket.comm.unseen import raise_or_note, warn_at_the_users_line
from hocket.errors import CommTimeout, HocketError, InvalidState, InvalidType
from hocket.trace import GroupRecords, Record, decode_events, logger, write_flight_record

_NO_COLOR = -1


class Communicator(_native.Communicator, ForeignNames):
    """A group of ranks with an issue order of its own.

    Operations work in place or write into `out`, on NumPy arrays, torch tensors on the CPU and anything else with the
    buffer protocol; non-contiguous arrays are worked on in a copy that is written back. All members issue the same
    collectives in the same order: what they disagree about raises `CollectiveMismatch` on every one of them.

    all_reduce(x, op="sum"), reduce(x, root, op="sum"), scan(x, op="sum"), broadcast(x, root), barrier(),
    all_gather(out, x), reduce_scatter(out, x, op="sum"), all_to_all(out, x), gather(out, x, root),
    scatter(out, x, root), send(x, dst, tag=0), recv(x, src, tag=0), isend, irecv,
    sendrecv(x, dst, out, src, tag=0, out_tag=None),
    all_gatherv(out, x, counts), reduce_scatterv(out, x, counts, op="sum"), gatherv(out, x, counts, root),
    scatterv(out, x, counts, root), all_to_allv(out, x, out_counts, in_counts): counts[r] is the number of items in the
    block of rank r, the same list on every rank; blocks lie one behind the other. For all_to_allv out_counts[r] says
    how many items come from rank r and in_counts[r] how many go there.
    all_gather_object(obj), gather_object(obj, root), broadcast_object(obj, root), scatter_object(objs, root),
    all_reduce_object(obj, op="sum"), reduce_object(obj, root, op="sum"), all_to_all_object(objs),
    send_object(obj, dst, tag=0), recv_object(src, tag=0) carry Python objects.
    The collectives take ``async_op=True`` and return a `Work` then; all take ``timeout`` in seconds.

    Reductions are made in rank order: bitwise equal on all ranks and from run to run. float16 and bfloat16 accumulate
    in float32; integers wrap; min and max propagate NaN; avg divides once, at the end. op is "sum", "prod", "min",
    "max", "avg", for bits "band", "bor", "bxor", for zero and not zero "land", "lor", "lxor", or a name that was given
    to `hocket.register_reduction`.

    Where there are several backends each operation goes to the one that the policy names, or to ``backend=``. It is
    executed as the library itself does it, or by a schedule that the policy names, or that ``algorithm=`` does:
    "circulant", "chain(num_blocks=8)", a `hocket.collectives.Schedule`; "native" is the library's own way.
    Operations on different backends run side by side; those that touch the same bytes, and those that follow others by
    ``deps=``, keep their order.

    Made by `hocket.init`, `split`, `group` and `dup`.
    """

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
        self._object_way = ObjectWay(
            ObjectSeals(fabric.object_key, key),
            shares_memory="shm" in self._backends,
            moves_data=fabric.virtual is None or fabric.virtual.moves_data,
            leaves_process=fabric.virtual is None,
        )
        self._num_splits = 0
        self._groups_made: Counter[tuple[int, ...]] = Counter()
        self._children: weakref.WeakSet[Communicator] = weakref.WeakSet()
        self._on_finalize: Callable[[], object] | None = None
        self._lineage = Lineage(key)

    @property
    def local_rank(self) -> int:
        """Number of this process among the members on its host."""
        return self._ranks_of_host.index(self.rank)

    @property
    def local_size(self) -> int:
        """Members on this host."""
        return len(self._ranks_of_host)

    @property
    def num_hosts(self) -> int:
        """Hosts that the members are on."""
        return self._fabric.layout.num_hosts(self._members)

    @property
    def backends(self) -> Backends:
        """The libraries that can carry operations of this communicator, with a word on each.

        Its attribute `left_out` says of the others why they are not there.
        """
        return Backends(self._backends, self._backends.left_out)

    def records(self) -> list[Record]:
        """Return the latest operations (at most 4096), oldest first, those in flight included."""
        return decode_events(self._records(), self._names, self._program_names(), in_ns=self.is_virtual)

    @property
    def policy(self) -> Policy:
        """How a backend is chosen for an operation that names none; to be set alike on all members, between the same
        operations. As it was set it is taken over by communicators that are made from this one afterwards; what is
        learned while running belongs to this one alone."""
        return self._chooser.policy

    @policy.setter
    def policy(self, policy: Policy) -> None:
        self._chooser.set_policy(self, policy)

    def explain(self, op: str, nbytes: int = 0, dtype: str = "float32", reduction: str = "sum") -> Explanation:
        """Say what carries an operation that names no backend and no algorithm, why, and what was second.

        Args:
            op: name of the operation, e.g. "all_reduce".
            nbytes: as in `Record.nbytes`.
            dtype: name of the type of its elements.
            reduction: for operations that reduce.

        Raises:
            InvalidArgument: there is no such operation, type or size.
            UnsupportedDtype: no backend can carry it.
        """
        return self._chooser.explain(self, op, nbytes, dtype, reduction)

    @property
    def is_virtual(self) -> bool:
        """Whether its ranks are those of `hocket.simulate`, and all its times simulated."""
        return self._fabric.virtual is not None

    def dump_flight_record(self, folder: str | Path) -> Path:
        """Write the latest operations of this communicator and of those made from it; called by any rank at any time.

        Args:
            folder: of its own; every rank writes one file into it. ``torchfrtrace FOLDER`` compares them and names the
                first collective that not all ranks came to, or about which they disagree.

        Returns:
            The path of this rank's file.

        Raises:
            OSError: it cannot be written.
        """
        groups = [
            GroupRecords(f"{each._key:016x}", each._label, each._members, each.rank, each.records())
            for each in self._family()
        ]
        return write_flight_record(Path(folder), rank=self._members[self.rank], groups=groups)

    def probe(self, tag: int = 0, timeout: float = 0.0) -> int | None:
        """Return a rank that has sent a message with this tag which no receive has taken yet, or None.

        It is waited for `timeout` seconds. Over shared memory only.

        Raises:
            InvalidState: the ranks are on several hosts.
        """
        if self._names[0] != "shm":
            raise InvalidState(f"probe() looks into shared memory, but the ranks are on {self.num_hosts} hosts")
        return wait_for_sender(self._find_sender, tag, timeout)

    batch = batch
    prepare = prepare
    coalesced = coalesced
    wtime = wtime
    compute = compute

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
        """Called by the native methods with what `algorithm=` was given."""
        return self._chooser.find_program(self, kind, algorithm, nbytes)

    def _take_turn(self) -> None:
        """Called by the native methods before a collective, where `_set_turn` has asked for it."""
        if self._chooser.on_turn is not None:
            self._chooser.on_turn()

    def _reduce_by_function(self, kind: str, *arguments: Any, **options: Any) -> object:
        """Called by the native methods for an ``op`` that a program registered."""
        return reduce_by_function(self, kind, *arguments, **options)

    def fused(self, *, max_nbytes: int = 4 << 20, backend: str | None = None) -> Fused:
        """Make all_reduces of a ``with`` block travel together: ``with comm.fused() as fused: fused.all_reduce(x)``.

        Args:
            max_nbytes: of arrays of one type and reduction that travel together.
            backend: as of `all_reduce`.
        """
        return Fused(self, max_nbytes, backend)

    def bucket(self, *, max_nbytes: int = 4 << 20, max_seconds: float = 0.005, backend: str | None = None) -> Bucket:
        """Make a bucket, which collects all_reduces and sends them together; called by all members.

        Args:
            max_nbytes: that are collected before they are sent.
            max_seconds: that one is kept before it is sent.
            backend: as of `all_reduce`.

        Raises:
            InvalidState: the ranks are virtual: they have no thread for it.
        """
        if self.is_virtual:
            raise InvalidState("a bucket needs a thread of its own, which virtual ranks have not; use fused()")
        return Bucket(self.dup, max_nbytes, max_seconds, backend)

    def split(self, color: int | None, key: int = 0) -> Communicator | None:
        """Divide the communicator; called by all members.

        Args:
            color: members with the same one (0 or more) come together; None: this rank will be in none.
            key: order of the ranks in the new communicator; equal keys keep the present order.

        Returns:
            The communicator of this rank's color, or None.

        Raises:
            CommTimeout: some member did not come in time.
        """
        rule = "color must be an int of 0 or more, or None"
        own_color = _NO_COLOR if color is None else read_int64(color, 0, rule)
        own_key = read_int64(key, -LARGEST_INT64, "key must be an int of 64 bits")
        wanted = self._gather_ints("split", (own_color, own_key))
        self._num_splits += 1  # not before: after a mismatch the members still count alike
        if color is None:
            return None
        ranks = [rank for rank in range(self.size) if wanted[rank][0] == own_color]
        ranks.sort(key=lambda rank: (wanted[rank][1], rank))
        return self._child(ranks, f"split {own_color} of {self._label}", "split", self._num_splits, own_color)

    def dup(self) -> Communicator:
        """Make a communicator of the same members with an issue order of its own; called by all members."""
        self._gather_ints("dup", (0, 0))
        self._num_splits += 1
        return self._child(list(range(self.size)), f"dup of {self._label}", "dup", self._num_splits)

    def group(self, ranks: Sequence[int]) -> Communicator:
        """Make a communicator of some members, in the order given; called by those only.

        Args:
            ranks: of this communicator, each once, this rank among them.

        Raises:
            InvalidArgument: a rank is out of range or twice there, or this rank is not among them.
            CommTimeout: one of them did not come in time.
        """
        members = read_members(ranks, self.rank, self.size)
        self._groups_made[tuple(members)] += 1
        count = self._groups_made[tuple(members)]
        return self._child(members, f"group {members} of {self._label}", "group", count, *members)

    def synchronize(self, timeout: float | None = None) -> None:
        """Wait for every operation of this rank that is in flight on this communicator.

        Args:
            timeout: seconds; None: that of the communicator.

        Raises:
            CommTimeout: some are in flight still.
            HocketError: what has broken the communicator. What went wrong with one operation its `Work` raises.
        """
        limit_s = self.timeout if timeout is None else timeout
        if not self._drain(limit_s):
            left = [record for record in self.records() if record.state in ("issued", "started", "waited")]
            names = ", ".join(f"{record.op} number {record.seq}" for record in left[:3])
            raise CommTimeout(
                f"rank {self.rank} of {self._label}: {len(left)} operations are in flight after {limit_s:g} s: {names}"
            )

    def quiesce(self, timeout: float | None = None) -> None:
        """Return when nothing is in flight on any member, e.g. to take a checkpoint; called by all members.

        Args:
            timeout: seconds, of this rank's operations and then of the others'; None: that of the communicator.

        Raises:
            CommTimeout: naming what is in flight here, or the members that did not come.
        """
        self.synchronize(timeout)
        self.barrier(timeout=timeout, async_op=True).wait()  # also inside of coalesced()

    def abort(self, reason: str) -> None:
        """Give the communicator up; this rank alone calls it, and does not wait for anybody.

        Operations in flight, here and on the other members, and all later ones raise `Aborted` with the reason. To be
        called where a rank cannot go on: the others need not wait for their timeouts.
        """
        if not isinstance(reason, (str, BaseException)):
            raise InvalidType(f"reason must be a str that the other ranks are told, not {type(reason).__name__}")
        self._abort(str(reason))

    def shrink(self, exclude: Collection[int] = (), timeout: float | None = None) -> Communicator:
        """Make a communicator of the ranks that are left, after this one has failed; called by all of those.

        They keep their order. Shared memory, UCX and gloo go on; MPI ends with the first rank that dies. To finalize
        the new communicator finalizes this one as well.

        Args:
            exclude: ranks that are alive but do not call this, since they hang.
            timeout: seconds; None: that of the communicator.

        Raises:
            InvalidArgument: `exclude` names this rank, or one out of range.
            CommTimeout: naming ranks that are alive but did not call this.
            BackendUnavailable: nothing connects those that are left.
        """
        self._check_usable()
        own = Membership(self._label, self.rank, self._members, self._fabric, self._lineage)
        excluded = check_excluded(own, exclude)
        return open_survivors(own, excluded, self.timeout if timeout is None else timeout, self._open_survivors)

    def finalize(self) -> None:
        """Wait for operations in flight and leave this communicator and those made from it. Idempotent.

        Not collective: others that still wait for this rank get `PeerFailure`, or `Aborted` if it had operations in
        flight.

        Raises:
            HocketError: what the first asynchronous operation failed with that nobody waited for, unless the program
                was told of another failure before, or handles an error right now, which gets a note then. The
                communicator is left all the same.
        """
        unseen = self._leave(self.timeout)
        if unseen is not None:
            raise_or_note(unseen)

    def _leave(self, drain_timeout_s: float, is_child: bool = False) -> BaseException | None:
        """Leave this communicator and those made from it.

        Args:
            drain_timeout_s: how long operations in flight have to come to their end; 0: the program fails anyway.
            is_child: whether one that it was made from is being left.

        Returns:
            What the first asynchronous operation failed with, if the program was told of no failure.
        """
        unseen = [child._leave(drain_timeout_s, True) for child in list(self._children)]
        was_open = not self._closed
        failure, unreceived = self._close(drain_timeout_s)
        unseen.append(failure)
        self._chooser.on_turn = None
        if was_open:
            logger.debug("left %s", self._label)
            for library in self._fabric.libraries:
                library.close_lanes(self._key)
        if self._on_finalize is not None:
            unseen.append(_native.take_unseen())  # of communicators that the program dropped
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
        if unreceived:  # at last, as a warning may be turned into an error
            warn_at_the_users_line(f"hocket: rank {self.rank} of {self._label} never received what {unreceived}")
        return first

    def __enter__(self) -> Communicator:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # After an error the operations in flight may never end; the others learn from our leaving.
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

    def _gather_ints(self, kind: str, values: tuple[int, int]) -> list[tuple[int, int]]:
        gathered = array("q", bytes(16 * self.size))
        self._gather_for(kind, gathered, array("q", values))  # type: ignore[arg-type]
        return list(zip(gathered[::2], gathered[1::2], strict=True))

    def _child(self, ranks: list[int], label: str, *identity: object) -> Communicator:
        self._check_usable()
        members = [self._members[rank] for rank in ranks]
        try:
            return self._open(self._fabric, members, label, (self._key, *identity), self.timeout)
        except HocketError as error:
            if self._on_failure is not None:
                self._on_failure(self, error)  # an operation does that by itself
            raise

    def _check_usable(self) -> None:
        if _native.is_forked_child() or self._closed:
            raise InvalidState(f"{self._label} cannot be used any more: it was finalized, or this is a forked child")

    def _open_survivors(self, opening: Opening) -> Communicator:
        survivors = self._open(opening.fabric, opening.members, opening.label, opening.identity, opening.timeout_s)
        survivors._lineage = opening.lineage
        survivors._on_finalize = lambda: self._leave(0.0)
        return survivors

    def _open(
        self, fabric: JobFabric, members: list[int], label: str, identity: tuple[object, ...], open_timeout: float
    ) -> Communicator:
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
