"""One process at a time owns a database: it holds a lease, which it renews while it lives.

ClickHouse has no compare-and-swap, so a lease is taken in three steps, of which each ends before the next begins:

1. look for other owners; 2. insert a row of our own; 3. look for other owners again.

Whoever finds another one in step 1 or 3 gives up. Of two that begin at once, the row of one is there before the other
one's step 3, since each inserts before it looks: at least one of them finds the other. So two never own a database,
though both may have to try again. This holds for one server; copies of a database on several servers do not see rows
at once.

A lease ends `LEASE_S` after it was renewed, by the clock of the server. Its owner counts from before it asked for the
renewal, so for it the lease ends earlier. It begins no insert later than `MARGIN_S` before that, and the server ends an
insert before that time is over: nothing of an owner arrives after its lease.

An owner that was killed on this host need not be waited for: its process is gone, and it is known by its number, its
begin, the boot and the namespace of processes. What it had sent may still be carried out, so the server is asked for
its inserts first.
"""

from __future__ import annotations

import os
import socket
from pathlib import Path
from time import monotonic, sleep

from hocket.errors import HocketError, InvalidState
from hocket.observe.store.arrow_batches import arrow
from hocket.observe.store.clickhouse.server import INSERT_S, ClickHouseServer

LEASE_S = 60.0
RENEW_S = 10.0
MARGIN_S = INSERT_S + 10.0
_SETTLE_S = 0.1


class Lease:
    """Of a database; for one thread, but `check` for all.

    Args:
        server: of the database.
        database: its name.
        ident: name of this owner, which no other has.
    """

    def __init__(self, server: ClickHouseServer, database: str, ident: str) -> None:
        self._server, self._database, self._ident = server, database, ident
        self._until_s = 0.0
        self._number = self._num_given_up = 0

    @property
    def is_held(self) -> bool:
        """Whether it lasts now."""
        return monotonic() < self._until_s

    def check(self) -> None:
        """Check that an insert may begin.

        Raises:
            InvalidState: the lease is over, or almost.
        """
        if monotonic() > self._until_s - MARGIN_S:
            raise InvalidState(f"the lease of database {self._database} was not renewed in time: it is taken again")

    def take(self) -> None:
        """Take it.

        Raises:
            InvalidState: another owner has it; names that one.
            PeerFailure: the server cannot be reached.
        """
        self._find_others()
        began_s = monotonic()
        self._insert(self._own_id, LEASE_S, is_over=False)
        try:
            self._find_others()
        except HocketError:
            self.give_up()
            raise
        self._until_s = began_s + LEASE_S

    def renew(self) -> None:
        """Have it last longer, unless it has ended meanwhile.

        Raises:
            InvalidState: it has ended.
            PeerFailure: the server cannot be reached.
        """
        before_s, began_s = self._until_s, monotonic()
        self._insert(self._own_id, LEASE_S, is_over=False)
        # Where it had ended meanwhile, another owner may have taken it.
        self._until_s = began_s + LEASE_S if monotonic() <= before_s else 0.0
        if not self._until_s:
            self.check()

    def give_up(self) -> None:
        """End it."""
        self._until_s = 0.0
        self._insert(self._own_id, 0.0, is_over=True)
        self._num_given_up += 1

    @property
    def _own_id(self) -> str:
        """A lease that was given up is over for ever; the next one has another name."""
        return f"{self._ident}.{self._num_given_up}"

    def _insert(self, ident: str, seconds: float, *, is_over: bool) -> None:
        self._number += 1
        now = self._server.ask("SELECT toUnixTimestamp64Milli(now64(3))").rows[0][0]
        pa = arrow()
        until = pa.array([now + int(seconds * 1000)], pa.timestamp("ms"))
        values = [pa.array([each]) for each in (ident, socket.gethostname(), own_process(), is_over)]
        rows = pa.table([*values, until], names=["id", "host", "process", "is_over", "until"])
        self._server.insert("owners", rows, f"{self._ident}/{ident}/{self._number}")

    def _find_others(self) -> None:
        """Look for owners that are alive."""
        sql = f"""SELECT id, any(host), any(process), max(until) - now64(3) FROM {self._database}.owners
            WHERE NOT startsWith(id, {{own:String}}) GROUP BY id HAVING max(until) > now64(3) AND NOT max(is_over)"""
        for ident, host, process, rest_s in self._server.ask(sql, {"own": f"{self._ident}."}).rows:
            if not has_ended(process) or not self._is_settled(ident):
                pid = process.split("/")[-2] if process.count("/") == 3 else "that is not known"
                raise InvalidState(
                    f"database {self._database} is owned by process {pid:.20} of {host:.80}: ask that one; if it is "
                    f"no more, its lease ends in {float(rest_s):.0f} s"
                )
            self._insert(ident, 0.0, is_over=True)

    def _is_settled(self, ident: str) -> bool:
        """Wait until the server does nothing any more for an owner that has ended; return whether it is so."""
        deadline = monotonic() + INSERT_S
        sql = "SELECT count() FROM system.processes WHERE startsWith(query_id, {owner:String})"
        while monotonic() < deadline:
            sleep(_SETTLE_S)
            try:
                if self._server.ask(sql, {"owner": f"{ident.partition('.')[0]}-"}).rows == ((0,),):
                    return True
            except HocketError:  # this user may not see it: then its lease has to end
                return False
        return False


def own_process() -> str:
    """Return what tells this process from all others: boot, namespace of processes, number, and when it began."""
    return f"{_surroundings()}/{os.getpid()}/{_began(os.getpid())}"


def has_ended(process: str) -> bool:
    """Return whether a process of `own_process` ran here, and does not any more."""
    parts = process.rsplit("/", 2)
    if len(parts) != 3 or parts[0] != _surroundings() or not parts[1].isdigit():
        return False
    pid = int(parts[1])
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except (PermissionError, OverflowError):
        pass
    began = _began(pid)
    return began is not None and began != parts[2]


def _surroundings() -> str:
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    return f"{boot}/{os.stat('/proc/self/ns/pid').st_ino}"


def _began(pid: int) -> str | None:
    """When a process began, in ticks since the boot; "": it has ended, and nobody has asked how. None: it is not seen,
    as those of other users are where /proc hides them."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return "" if fields[0] in "ZX" else fields[19]
