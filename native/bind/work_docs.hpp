// Docstrings of Work.
#pragma once

namespace hocket::docs {

inline constexpr const char* kWork = R"(The handle of an operation in flight; dropping it does not cancel the operation.

Collectives with async_op=True, isend, irecv and batch return it. In asyncio programs, "await work" waits for it.

Examples:
    >>> x = np.ones(2)
    >>> work = comm.all_reduce(x, async_op=True)  # returns at once; do not touch x yet
    >>> work.wait()
    >>> work.done, x
    (True, array([2., 2.]))
)";

inline constexpr const char* kWait = R"(Wait until the operation is complete.

Args:
    timeout: seconds; None: the timeout of the operation.

Raises:
    CommTimeout: the operation did not complete in time; it is given up.
    HocketError: the operation failed.

Examples:
    >>> work = comm.barrier(async_op=True)
    >>> work.wait(timeout=30.0)
)";

inline constexpr const char* kTest =
    R"(Return whether the operation is complete, without waiting; make progress on all operations.

Raises:
    HocketError: the operation failed.

Examples:
    >>> work = comm.barrier(async_op=True)
    >>> while not work.test():
    ...     pass  # do something else meanwhile
    >>> work.done
    True
)";

inline constexpr const char* kException =
    R"(Return the error of a failed operation; None while it is in flight, and if it succeeded.

Examples:
    >>> work = comm.barrier(async_op=True)
    >>> work.wait()
    >>> work.exception() is None
    True
)";

inline constexpr const char* kDone = "Whether the operation has completed or failed. Does not make progress; see test.";

inline constexpr const char* kSeq = "Number of the operation in the communicator's issue order.";

}  // namespace hocket::docs
