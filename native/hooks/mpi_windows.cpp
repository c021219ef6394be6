// One-sided operations of MPI. The bytes are those of this rank's buffer, the communicator is the window, and the time
// is that of the call, which only begins the operation; with a request, until the request is complete.
#include "hooks/mpi_requests.hpp"

using hocket::ForeignKind;
using hocket::hooks::Handle;
using hocket::hooks::MpiCall;
using hocket::hooks::MpiOperation;

namespace {

MpiOperation one_sided(const MpiCall& call, ForeignKind kind, uint64_t nbytes, Handle type, int target, Handle window,
                       Handle op = 0) {
  MpiOperation operation = call.operation_of(kind, nbytes, type, hocket::hooks::window_of(call.mpi(), window));
  operation.peer = call.peer_of(target);
  operation.is_message = true;
  if (operation.peer == hocket::kProcNull) operation.nbytes = 0;
  if (op) operation.reduce = call.mpi().reduction(op);
  operation.flags = hocket::kEventAsync;
  return operation;
}

}  // namespace

#define BOTH_FORMS(blocking, requesting, P, A, ...)                              \
  HOCKET_MPI_SIZED(BLOCKING, blocking, P, A, HOCKET_MPI_NO_LENGTHS, __VA_ARGS__) \
  HOCKET_MPI_SIZED(NONBLOCKING, requesting, P, A, HOCKET_MPI_NO_LENGTHS, __VA_ARGS__)

#define TRANSFER(C, D) \
  void *buffer, C count, Handle type, int target, intptr_t displacement, C target_count, Handle target_type
#define OF_TRANSFER buffer, count, type, target, displacement, target_count, target_type
#define TRANSFER_IN(C, D) TRANSFER(C, D), Handle window
#define OF_TRANSFER_IN (OF_TRANSFER, window)
#define REDUCTION_IN(C, D) TRANSFER(C, D), Handle op, Handle window
#define OF_REDUCTION_IN (OF_TRANSFER, op, window)
#define OWN call.nbytes(count, type), type, target, window
BOTH_FORMS(Put, Rput, TRANSFER_IN, OF_TRANSFER_IN, one_sided(call, ForeignKind::put, OWN))
BOTH_FORMS(Get, Rget, TRANSFER_IN, OF_TRANSFER_IN, one_sided(call, ForeignKind::get, OWN))
BOTH_FORMS(Accumulate, Raccumulate, REDUCTION_IN, OF_REDUCTION_IN, one_sided(call, ForeignKind::accumulate, OWN, op))

// The bytes of the result: what is added may be nothing (MPI_NO_OP).
#define FETCH(C, D)                                                                                       \
  const void *buffer, C count, Handle type, void *result, C result_count, Handle result_type, int target, \
      intptr_t displacement, C target_count, Handle target_type, Handle op, Handle window
#define OF_FETCH \
  (buffer, count, type, result, result_count, result_type, target, displacement, target_count, target_type, op, window)
BOTH_FORMS(Get_accumulate, Rget_accumulate, FETCH, OF_FETCH,
           one_sided(call, ForeignKind::get_accumulate, call.nbytes(result_count, result_type), result_type, target,
                     window, op))

#define FETCH_ONE(C, D) \
  const void *buffer, void *result, Handle type, int target, intptr_t displacement, Handle op, Handle window
#define OF_FETCH_ONE (buffer, result, type, target, displacement, op, window)
HOCKET_MPI_BLOCKING(Fetch_and_op, nullptr, int, int, FETCH_ONE, OF_FETCH_ONE, HOCKET_MPI_NO_LENGTHS,
                    one_sided(call, ForeignKind::get_accumulate, call.nbytes(1, type), type, target, window, op))

#define SWAP(C, D) \
  const void *buffer, const void *compared, void *result, Handle type, int target, intptr_t displacement, Handle window
#define OF_SWAP (buffer, compared, result, type, target, displacement, window)
HOCKET_MPI_BLOCKING(Compare_and_swap, nullptr, int, int, SWAP, OF_SWAP, HOCKET_MPI_NO_LENGTHS,
                    one_sided(call, ForeignKind::get_accumulate, call.nbytes(1, type), type, target, window))
