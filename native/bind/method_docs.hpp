// Signatures and docstrings of the operations, as help() and inspect.signature() show them.
#pragma once

// NOLINTBEGIN(cppcoreguidelines-macro-usage): literals that are put together at compile time.

#define HOCKET_COLLECTIVE ", *, backend=None, algorithm=None, async_op=False, deps=(), timeout=None)\n--\n\n"
#define HOCKET_MESSAGE ", *, backend=None, timeout=None)\n--\n\n"

#define HOCKET_HOW                                                                                           \
  "    backend: name of the library that carries the operation; None: the policy chooses.\n"                 \
  "    algorithm: \"native\", the name of a schedule, or a Schedule; None: the policy chooses.\n"            \
  "    async_op: return a Work at once; the result is in place when the Work is done.\n"                     \
  "    deps: Works of earlier collectives of this communicator that must complete before this one starts.\n" \
  "    timeout: seconds; None: the communicator's timeout.\n"
#define HOCKET_TO "    backend, timeout: as for all_reduce.\n"
#define HOCKET_AS "    backend, algorithm, async_op, deps, timeout: as for all_reduce.\n"
#define HOCKET_COUNTS                                                                                        \
  "    counts: number of items in the block of each rank, equal on all ranks; blocks lie one after another " \
  "without\n        gaps.\n"
#define HOCKET_RAISES                                                                                               \
  "\nRaises:\n"                                                                                                     \
  "    InvalidArgument, InvalidType, UnsupportedDtype: an argument is wrong; nothing was sent.\n"                   \
  "    CollectiveMismatch: the ranks disagree; raised on all of them. On one host the communicator stays usable.\n" \
  "    PeerFailure, CommTimeout, Aborted: a rank died, did not take part in time, or aborted.\n"

namespace hocket::docs {

inline constexpr const char* kAllReduce =
    "all_reduce($self, x, op='sum'" HOCKET_COLLECTIVE R"(Reduce x over all ranks, in place on every rank.

Args:
    x: array of any shape, with the same number of items and the same type on every rank: a NumPy array, a torch
        tensor or another object with the buffer protocol or DLPack.
    op: "sum", "prod", "min", "max", "avg", "band", "bor", "bxor", "land", "lor", "lxor", or the name of a registered
        reduction.
)" HOCKET_HOW HOCKET_RAISES R"(
Examples:
    >>> x = np.full(3, comm.rank + 1.0)
    >>> comm.all_reduce(x)
    >>> x
    array([3., 3., 3.])
    >>> work = comm.all_reduce(x, "max", async_op=True)  # returns at once
    >>> work.wait()
)";

inline constexpr const char* kReduce =
    "reduce($self, x, root, op='sum'" HOCKET_COLLECTIVE
    R"(Reduce x over all ranks, in place on the root; x on the other ranks is not changed.

Args:
    x, op: as for all_reduce.
    root: rank that gets the result.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> x = np.array([comm.rank + 1])
    >>> comm.reduce(x, root=0)
    >>> comm.all_gather_object(x.tolist())  # x of each rank
    [[3], [2]]
)";

inline constexpr const char* kScan =
    "scan($self, x, op='sum'" HOCKET_COLLECTIVE R"(Reduce x over the ranks from 0 to this one, in place on every rank.

Args:
    x, op: as for all_reduce, without "avg".
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> x = np.array([comm.rank + 1])
    >>> comm.scan(x)
    >>> comm.all_gather_object(x.tolist())  # x of each rank
    [[1], [3]]
)";

inline constexpr const char* kBroadcast =
    "broadcast($self, x, root" HOCKET_COLLECTIVE R"(Copy x of the root into x of every rank.

Args:
    x: as for all_reduce.
    root: rank whose x is copied.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> x = np.array([comm.rank + 5])
    >>> comm.broadcast(x, root=1)
    >>> x
    array([6])
)";

inline constexpr const char* kAllReduceCoalesced =
    "all_reduce_coalesced($self, xs, op='sum'" HOCKET_COLLECTIVE
    R"(Reduce several arrays over all ranks in one operation, each in place.

Args:
    xs: arrays of one type.
    op: as for all_reduce, without registered reductions.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> xs = [np.ones(2), np.full(1, 4.0)]
    >>> comm.all_reduce_coalesced(xs)
    >>> xs
    [array([2., 2.]), array([8.])]
)";

inline constexpr const char* kBroadcastCoalesced = "broadcast_coalesced($self, xs, root" HOCKET_COLLECTIVE
                                                   R"(Copy several arrays of the root to every rank in one operation.

Args:
    xs: arrays of one type.
    root: rank whose arrays are copied.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> xs = [np.full(2, comm.rank), np.full(1, comm.rank)]
    >>> comm.broadcast_coalesced(xs, root=1)
    >>> xs
    [array([1, 1]), array([1])]
)";

inline constexpr const char* kBarrier = "barrier($self" HOCKET_COLLECTIVE R"(Return when all ranks have entered.

Args:
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> comm.barrier()
    >>> work = comm.barrier(async_op=True)  # do something else meanwhile
    >>> work.wait()
)";

inline constexpr const char* kAllGather =
    "all_gather($self, out, x" HOCKET_COLLECTIVE R"(Copy x of rank r into block r of out, on every rank.

Args:
    out: array of shape (size, *x.shape), or with the same number of items.
    x: as for all_reduce.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> out = np.zeros((2, 3), int)
    >>> comm.all_gather(out, np.full(3, comm.rank + 1))
    >>> out.tolist()
    [[1, 1, 1], [2, 2, 2]]
)";

inline constexpr const char* kReduceScatter =
    "reduce_scatter($self, out, x, op='sum'" HOCKET_COLLECTIVE
    R"(Reduce x over all ranks, and copy block r of the result into out of rank r.

Args:
    out: one block.
    x: array of shape (size, *out.shape), or with the same number of items.
    op: as for all_reduce.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> out = np.zeros(2, int)
    >>> comm.reduce_scatter(out, np.array([[1, 2], [3, 4]]))
    >>> comm.all_gather_object(out.tolist())  # out of each rank
    [[2, 4], [6, 8]]
)";

inline constexpr const char* kAllToAll = "all_to_all($self, out, x" HOCKET_COLLECTIVE
                                         R"(Copy block r of x into out of rank r, at the block of the sending rank.

Args:
    out, x: arrays of the same size; the first axis is the rank.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> x = np.array([0, 1]) + 10 * comm.rank  # [0, 1] on rank 0, [10, 11] on rank 1
    >>> out = np.zeros(2, int)
    >>> comm.all_to_all(out, x)
    >>> comm.all_gather_object(out.tolist())  # out of each rank
    [[0, 10], [1, 11]]
)";

inline constexpr const char* kGather =
    "gather($self, out, x, root" HOCKET_COLLECTIVE R"(Copy x of rank r into block r of out on the root.

Args:
    out: on the root, array of shape (size, *x.shape), or with the same number of items; None on the other ranks.
    x: as for all_reduce.
    root: rank that gets the blocks.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> out = np.zeros(2, int) if comm.rank == 0 else None
    >>> comm.gather(out, np.array([comm.rank + 1]), root=0)
    >>> comm.broadcast_object(out, root=0)  # out of rank 0
    array([1, 2])
)";

inline constexpr const char* kScatter =
    "scatter($self, out, x, root" HOCKET_COLLECTIVE R"(Copy block r of the root's x into out of rank r.

Args:
    out: one block.
    x: on the root, array of shape (size, *out.shape), or with the same number of items; None on the other ranks.
    root: rank whose x is scattered.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> out = np.zeros(1, int)
    >>> comm.scatter(out, np.array([5, 6]) if comm.rank == 0 else None, root=0)
    >>> comm.all_gather_object(out.tolist())  # out of each rank
    [[5], [6]]
)";

inline constexpr const char* kAllGatherv =
    "all_gatherv($self, out, x, counts" HOCKET_COLLECTIVE
    R"(Gather blocks of different sizes on every rank: all_gather with counts[r] items from rank r.

Args:
    out: array of sum(counts) items.
    x: array of counts[rank] items.
)" HOCKET_COUNTS HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> counts = [1, 2]
    >>> out = np.zeros(3, int)
    >>> comm.all_gatherv(out, np.full(counts[comm.rank], comm.rank + 7), counts)
    >>> out
    array([7, 8, 8])
)";

inline constexpr const char* kReduceScatterv =
    "reduce_scatterv($self, out, x, counts, op='sum'" HOCKET_COLLECTIVE
    R"(Reduce x and scatter blocks of different sizes: reduce_scatter with counts[r] items for rank r.

Args:
    out: array of counts[rank] items.
    x: array of sum(counts) items.
    op: as for all_reduce.
)" HOCKET_COUNTS HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> counts = [1, 2]
    >>> out = np.zeros(counts[comm.rank], int)
    >>> comm.reduce_scatterv(out, np.array([1, 2, 3]), counts)
    >>> comm.all_gather_object(out.tolist())  # out of each rank
    [[2], [4, 6]]
)";

inline constexpr const char* kAllToAllv = "all_to_allv($self, out, x, out_counts, in_counts" HOCKET_COLLECTIVE
                                          R"(Exchange blocks of different sizes between all ranks.

Args:
    out: array of sum(out_counts) items.
    x: array of sum(in_counts) items.
    out_counts: number of items that this rank receives from each rank.
    in_counts: number of items that this rank sends to each rank.
)" HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> x, in_counts = (np.array([10, 11, 12]), [1, 2]) if comm.rank == 0 else (np.array([20]), [1, 0])
    >>> out_counts = [1, 1] if comm.rank == 0 else [2, 0]
    >>> out = np.zeros(2, int)
    >>> comm.all_to_allv(out, x, out_counts, in_counts)
    >>> comm.all_gather_object(out.tolist())  # out of each rank
    [[10, 20], [11, 12]]
)";

inline constexpr const char* kGatherv =
    "gatherv($self, out, x, counts, root" HOCKET_COLLECTIVE
    R"(Gather blocks of different sizes on the root: gather with counts[r] items from rank r.

Args:
    out: array of sum(counts) items on the root, None on the other ranks.
    x: array of counts[rank] items.
    root: rank that gets the blocks.
)" HOCKET_COUNTS HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> counts = [1, 2]
    >>> out = np.zeros(3, int) if comm.rank == 0 else None
    >>> comm.gatherv(out, np.full(counts[comm.rank], comm.rank + 7), counts, root=0)
    >>> comm.broadcast_object(out, root=0)  # out of rank 0
    array([7, 8, 8])
)";

inline constexpr const char* kScatterv =
    "scatterv($self, out, x, counts, root" HOCKET_COLLECTIVE
    R"(Scatter blocks of different sizes from the root: scatter with counts[r] items for rank r.

Args:
    out: array of counts[rank] items.
    x: array of sum(counts) items on the root, None on the other ranks.
    root: rank whose x is scattered.
)" HOCKET_COUNTS HOCKET_AS HOCKET_RAISES R"(
Examples:
    >>> counts = [1, 2]
    >>> out = np.zeros(counts[comm.rank], int)
    >>> comm.scatterv(out, np.array([5, 6, 7]) if comm.rank == 0 else None, counts, root=0)
    >>> comm.all_gather_object(out.tolist())  # out of each rank
    [[5], [6, 7]]
)";

inline constexpr const char* kSend = "send($self, x, dst, tag=0" HOCKET_MESSAGE R"(Send x to rank dst.

Args:
    x: as for all_reduce.
    dst: rank that receives it, or PROC_NULL.
    tag: number from 0 to 2^31-1; a receive gets only messages with its own tag.
)" HOCKET_TO HOCKET_RAISES R"(
Examples:
    >>> x = np.full(2, 10 * comm.rank + 1)
    >>> comm.send(x, dst=1) if comm.rank == 0 else comm.recv(x, src=0)
    >>> x
    array([1, 1])
)";

inline constexpr const char* kRecv = "recv($self, x, src, tag=0" HOCKET_MESSAGE R"(Receive from rank src into x.

Args:
    x: as for all_reduce.
    src: rank that sends the message, or PROC_NULL.
    tag: tag that the message is sent with.
)" HOCKET_TO HOCKET_RAISES R"(
Examples:
    >>> x = np.array([3.5, 4.5]) if comm.rank == 1 else np.zeros(2)
    >>> comm.recv(x, src=1, tag=9) if comm.rank == 0 else comm.send(x, dst=0, tag=9)
    >>> x
    array([3.5, 4.5])
)";

inline constexpr const char* kIsend =
    "isend($self, x, dst, tag=0" HOCKET_MESSAGE
    R"(Start to send x to rank dst, and return a Work; do not change x before the Work is done.

Args:
    x, dst, tag: as for send.
)" HOCKET_TO HOCKET_RAISES R"(
Examples:
    >>> other = 1 - comm.rank
    >>> work = comm.isend(np.full(2, 7), other)
    >>> received = np.zeros(2, int)
    >>> comm.recv(received, other)
    >>> work.wait()
    >>> received
    array([7, 7])
)";

inline constexpr const char* kIrecv =
    "irecv($self, x, src, tag=0" HOCKET_MESSAGE
    R"(Start to receive from rank src into x, and return a Work; x is complete when the Work is done.

Args:
    x, src, tag: as for recv.
)" HOCKET_TO HOCKET_RAISES R"(
Examples:
    >>> other = 1 - comm.rank
    >>> received = np.zeros(2, int)
    >>> work = comm.irecv(received, other)
    >>> comm.send(np.full(2, 7), other)
    >>> work.wait()
    >>> received
    array([7, 7])
)";

inline constexpr const char* kSendrecv = "sendrecv($self, x, dst, out, src, tag=0, out_tag=None" HOCKET_MESSAGE
                                         R"(Send x to rank dst and receive from rank src into out, at the same time.

Args:
    x, dst, tag: as for send.
    out, src: as x and src for recv.
    out_tag: tag of the received message; None: tag.
)" HOCKET_TO HOCKET_RAISES R"(
Examples:
    >>> other = 1 - comm.rank
    >>> out = np.zeros(1, int)
    >>> comm.sendrecv(np.array([comm.rank + 1]), other, out, other)
    >>> comm.all_gather_object(out.tolist())  # out of each rank
    [[2], [1]]
)";

}  // namespace hocket::docs

#undef HOCKET_COLLECTIVE
#undef HOCKET_MESSAGE
#undef HOCKET_HOW
#undef HOCKET_TO
#undef HOCKET_AS
#undef HOCKET_COUNTS
#undef HOCKET_RAISES
// NOLINTEND(cppcoreguidelines-macro-usage)
