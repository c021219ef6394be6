"""Which send belongs to which receive."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from hocket.observe.analysis.operations import RunOperations


def matched_messages(operations: RunOperations) -> NDArray[np.int64]:
    """Return the places of the sends and of the receives of messages in `RunOperations.rows`, of shape (messages, 2).

    Messages of one sender, receiver, tag and communicator are received in the order in which they were sent (MPI 4.1,
    section 3.5, and hocket's rules of mixing). Where not all of them were recorded on both sides, none is matched.

    Args:
        operations: from `operations_of`.

    Examples:
        >>> from hocket import observe
        >>> from hocket.observe.analysis.messages import matched_messages
        >>> _ = observe.record_run(["true"], "run-without-messages")
        >>> matched_messages(observe.operations_of(observe.open_run("run-without-messages"))).shape
        (0, 2)
    """
    import numpy as np

    rows = operations.rows
    names = np.array(operations.kind_names)[rows["kind"]]
    is_known = (rows["comm"] >= 0) & (rows["rank"] >= 0) & (rows["peer"] >= 0) & (rows["weight"] == 1)
    sends, receives = (np.flatnonzero(is_known & (names == name)) for name in ("send", "recv"))
    of_sends = _keys(rows[sends], "rank", "peer")
    of_receives = _keys(rows[receives], "peer", "rank")
    unique, key = np.unique(np.concatenate([of_sends, of_receives]), axis=0, return_inverse=True)
    key = key.reshape(-1)
    counts = [np.bincount(part, minlength=len(unique)) for part in (key[: len(sends)], key[len(sends) :])]
    is_whole = counts[0] == counts[1]
    # Rows are in the order of their begins, and these sorts keep it.
    pairs = []
    for places, keys in ((sends, key[: len(sends)]), (receives, key[len(sends) :])):
        order = np.argsort(keys, kind="stable")
        pairs.append(places[order][is_whole[keys[order]]])
    return np.stack(pairs, axis=1)


def _keys(rows: NDArray[np.void], source: str, target: str) -> NDArray[np.int64]:
    import numpy as np

    fields = ("comm", source, target, "tag")
    return np.stack([rows[field].astype(np.int64) for field in fields], axis=1)
