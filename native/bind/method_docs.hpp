// Signatures and docstrings of the operations, as help() and inspect.signature() show them.
#pragma once

// NOLINTBEGIN(cppcoreguidelines-macro-usage): literals that are put together at compile time.

#define HOCKET_COLLECTIVE ", *, backend=None, algorithm=None, async_op=False, deps=(), timeout=None)\n--\n\n"
#define HOCKET_MESSAGE ", *, backend=None, timeout=None)\n--\n\n"

#define HOCKET_ARRAY "a NumPy array, a torch tensor or another object with the buffer protocol or DLPack, of any shape"
#define HOCKET_HOW                                                                               \
  "    backend: a library by name; None: the one that the policy chooses.\n"                     \
  "    algorithm: \"native\", a schedule by name, or a Schedule; None: as the policy chooses.\n" \
  "    async_op: return a Work at once, and let it be waited for.\n"                             \
  "    deps: Works of earlier collectives of this communicator that have to be over first.\n"    \
  "    timeout: seconds; None: the communicator's.\n"
#define HOCKET_TO "    backend, timeout: as of all_reduce.\n"
#define HOCKET_AS "    backend, algorithm, async_op, deps, timeout: as of all_reduce.\n"
#define HOCKET_RAISES                                                                                   \
  "\nRaises:\n"                                                                                         \
  "    InvalidArgument, InvalidType, UnsupportedDtype: an argument cannot work; nothing was sent.\n"    \
  "    CollectiveMismatch: the ranks disagree; on all of them, and the communicator goes on working.\n" \
  "    PeerFailure, CommTimeout, Aborted: a rank died, did not come, or gave up.\n"

namespace hocket::docs {

inline constexpr const char* kAllReduce =
    "all_reduce($self, x, op='sum'" HOCKET_COLLECTIVE
    "Reduce x over all ranks, in place on every rank.\n\nArgs:\n    x: " HOCKET_ARRAY
    "; the same on every rank.\n"
    "    op: \"sum\", \"prod\", \"min\", \"max\", \"avg\", \"band\", \"bor\", \"bxor\", \"land\", \"lor\", \"lxor\", "
    "or\n"
    "        the name of a registered reduction.\n" HOCKET_HOW HOCKET_RAISES
    "\nExample:\n    >>> x = np.full(1000, comm.rank, np.float32)\n    >>> comm.all_reduce(x)\n";
inline constexpr const char* kReduce =
    "reduce($self, x, root, op='sum'" HOCKET_COLLECTIVE
    "Reduce x over all ranks, in place on the root; x of the others stays as it is.\n\nArgs:\n    x, op: as of "
    "all_reduce.\n    root: rank that gets the result.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kScan =
    "scan($self, x, op='sum'" HOCKET_COLLECTIVE
    "Reduce x over ranks 0 to this one, in place on every rank.\n\nArgs:\n    x, op: as of all_reduce.\n" HOCKET_AS
        HOCKET_RAISES;
inline constexpr const char* kBroadcast = "broadcast($self, x, root" HOCKET_COLLECTIVE
                                          "Copy x of the root into x of every rank.\n\nArgs:\n    x: as of "
                                          "all_reduce.\n    root: rank whose x it is.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kAllReduceCoalesced =
    "all_reduce_coalesced($self, xs, op='sum'" HOCKET_COLLECTIVE
    "all_reduce of several arrays as one, each in place.\n\nArgs:\n    xs: arrays of one type.\n    op: as of "
    "all_reduce.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kBroadcastCoalesced =
    "broadcast_coalesced($self, xs, root" HOCKET_COLLECTIVE
    "broadcast of several arrays as one.\n\nArgs:\n    xs: arrays of one type.\n    root: rank whose arrays they "
    "are.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kBarrier =
    "barrier($self" HOCKET_COLLECTIVE "Return when all ranks have entered.\n\nArgs:\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kAllGather =
    "all_gather($self, out, x" HOCKET_COLLECTIVE
    "Put x of rank r into block r of out, on every rank.\n\nArgs:\n    out: of shape (size, *x.shape), or of as many "
    "items.\n    x: as of all_reduce.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kReduceScatter =
    "reduce_scatter($self, out, x, op='sum'" HOCKET_COLLECTIVE
    "Reduce x over all ranks and put block r of the result into out of rank r.\n\nArgs:\n    out: one block.\n    x: "
    "of shape (size, *out.shape), or of as many items.\n    op: as of all_reduce.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kAllToAll =
    "all_to_all($self, out, x" HOCKET_COLLECTIVE
    "Put block r of x into block (own rank) of out on rank r.\n\nArgs:\n    out, x: of the same size; the first axis "
    "is the rank.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kGather =
    "gather($self, out, x, root" HOCKET_COLLECTIVE
    "Put x of rank r into block r of out on the root; out is None on the others.\n\nArgs:\n    out: of shape (size, "
    "*x.shape), or of as many items.\n    x: as of all_reduce.\n    root: rank that gets them.\n" HOCKET_AS
        HOCKET_RAISES;
inline constexpr const char* kScatter =
    "scatter($self, out, x, root" HOCKET_COLLECTIVE
    "Put block r of the root's x into out of rank r; x is None on the others.\n\nArgs:\n    out: one block.\n    x: of "
    "shape (size, *out.shape), or of as many items.\n    root: rank whose x it is.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kAllGatherv =
    "all_gatherv($self, out, x, counts" HOCKET_COLLECTIVE
    "all_gather with counts[r] items of rank r.\n\nArgs:\n    out: of sum(counts) items.\n    x: of counts[rank] "
    "items.\n    counts: the same on all ranks.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kReduceScatterv =
    "reduce_scatterv($self, out, x, counts, op='sum'" HOCKET_COLLECTIVE
    "reduce_scatter with counts[r] items for rank r.\n\nArgs:\n    out: of counts[rank] items.\n    x: of sum(counts) "
    "items.\n    counts: the same on all ranks.\n    op: as of all_reduce.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kAllToAllv =
    "all_to_allv($self, out, x, out_counts, in_counts" HOCKET_COLLECTIVE
    "all_to_all with in_counts[r] items to and out_counts[r] from rank r.\n\nArgs:\n    out: of sum(out_counts) "
    "items.\n    x: of sum(in_counts) items.\n" HOCKET_AS HOCKET_RAISES;
inline constexpr const char* kGatherv =
    "gatherv($self, out, x, counts, root" HOCKET_COLLECTIVE
    "gather with counts[r] items of rank r.\n\nArgs:\n    out: of sum(counts) items on the root, None on the others.\n"
    "    x: of counts[rank] items.\n    counts: the same on all ranks.\n    root: rank that gets them.\n" HOCKET_AS
        HOCKET_RAISES;
inline constexpr const char* kScatterv =
    "scatterv($self, out, x, counts, root" HOCKET_COLLECTIVE
    "scatter with counts[r] items for rank r.\n\nArgs:\n    out: of counts[rank] items.\n    x: of sum(counts) items "
    "on the root, None on the others.\n    counts: the same on all ranks.\n    root: rank whose x it is.\n" HOCKET_AS
        HOCKET_RAISES;
inline constexpr const char* kSend =
    "send($self, x, dst, tag=0" HOCKET_MESSAGE
    "Send x to rank dst.\n\nArgs:\n    x: as of all_reduce.\n    dst: rank that receives it, or PROC_NULL.\n    tag: "
    "by which the receiver tells it from others; 0 to 2^31-1.\n" HOCKET_TO HOCKET_RAISES;
inline constexpr const char* kRecv =
    "recv($self, x, src, tag=0" HOCKET_MESSAGE
    "Receive from rank src into x.\n\nArgs:\n    x: as of all_reduce.\n    src: rank that sends it, or PROC_NULL.\n    "
    "tag: that it is sent with.\n" HOCKET_TO HOCKET_RAISES;
inline constexpr const char* kIsend =
    "isend($self, x, dst, tag=0" HOCKET_MESSAGE
    "Send x to rank dst; returns a Work. x must not be changed before that is over.\n\nArgs:\n    x, dst, tag: as of "
    "send.\n" HOCKET_TO HOCKET_RAISES;
inline constexpr const char* kIrecv =
    "irecv($self, x, src, tag=0" HOCKET_MESSAGE
    "Receive from rank src into x; returns a Work.\n\nArgs:\n    x, src, tag: as of recv.\n" HOCKET_TO HOCKET_RAISES;
inline constexpr const char* kSendrecv =
    "sendrecv($self, x, dst, out, src, tag=0, out_tag=None" HOCKET_MESSAGE
    "Send x to rank dst while receiving from rank src into out.\n\nArgs:\n    x, dst, tag: as of send.\n    out, src: "
    "as "
    "of recv.\n    out_tag: of what is received; None: tag.\n" HOCKET_TO HOCKET_RAISES;

}  // namespace hocket::docs

#undef HOCKET_COLLECTIVE
#undef HOCKET_MESSAGE
#undef HOCKET_ARRAY
#undef HOCKET_HOW
#undef HOCKET_TO
#undef HOCKET_AS
#undef HOCKET_RAISES
// NOLINTEND(cppcoreguidelines-macro-usage)
