// Messages between two ranks of MPI. The peer is a rank in the communicator; a receive from any source has the peer -1
// until its message is there. The bytes of a receive are those that came.
#include <mutex>
#include <unordered_map>

#include "hooks/mpi_requests.hpp"

using hocket::OpKind;
using hocket::hooks::Handle;
using hocket::hooks::KnownGroup;
using hocket::hooks::MpiCall;
using hocket::hooks::MpiOperation;
using hocket::hooks::of_this_process;
using hocket::hooks::StatusOf;

#define MESSAGE(C, D) void *buffer, C count, Handle type, int peer, int tag, Handle comm
#define OF_MESSAGE (buffer, count, type, peer, tag, comm)
#define SENT call.message(OpKind::send, call.nbytes(count, type), type, peer, tag, comm)
#define RECEIVED call.message(OpKind::recv, call.nbytes(count, type), type, peer, tag, comm)

#define SEND_MODE(blocking, nonblocking)                                                       \
  HOCKET_MPI_SIZED(BLOCKING, blocking, MESSAGE, OF_MESSAGE, HOCKET_MPI_NO_LENGTHS, SENT)       \
  HOCKET_MPI_SIZED(NONBLOCKING, nonblocking, MESSAGE, OF_MESSAGE, HOCKET_MPI_NO_LENGTHS, SENT) \
  HOCKET_MPI_SIZED(PERSISTENT_MESSAGE, blocking##_init, MESSAGE, OF_MESSAGE, HOCKET_MPI_NO_LENGTHS, SENT)
// Without the parameter for hints that persistent collectives have.
#define HOCKET_MPI_PERSISTENT_MESSAGE(symbol, narrow, C, D, P, A, lengths, ...)           \
  HOCKET_HOOK int MPI_##symbol(P(C, D), void* request) {                                  \
    HOCKET_MPI_CALL(symbol, narrow);                                                      \
    const int code = call(HOCKET_MPI_LIST A, request);                                    \
    return call.plan(code, request, call.is_recorded() ? (__VA_ARGS__) : MpiOperation{}); \
  }
#define HOCKET_MPI_RECEIVING(symbol, narrow, C, D, P, A, lengths, ...) \
  HOCKET_HOOK int MPI_##symbol(P(C, D), void* status) {                \
    HOCKET_MPI_CALL(symbol, narrow);                                   \
    StatusOf status_of(call, status);                                  \
    if (call.is_recorded()) call.begin(__VA_ARGS__);                   \
    const int code = call(HOCKET_MPI_LIST A, status_of.used());        \
    return call.end(code, status_of.used());                           \
  }

SEND_MODE(Send, Isend)
SEND_MODE(Bsend, Ibsend)
SEND_MODE(Ssend, Issend)
SEND_MODE(Rsend, Irsend)
HOCKET_MPI_SIZED(RECEIVING, Recv, MESSAGE, OF_MESSAGE, HOCKET_MPI_NO_LENGTHS, RECEIVED)
HOCKET_MPI_SIZED(NONBLOCKING, Irecv, MESSAGE, OF_MESSAGE, HOCKET_MPI_NO_LENGTHS, RECEIVED)
HOCKET_MPI_SIZED(PERSISTENT_MESSAGE, Recv_init, MESSAGE, OF_MESSAGE, HOCKET_MPI_NO_LENGTHS, RECEIVED)

// A send and a receive are two operations with one call.
#define EXCHANGE(C, D)                                                                                            \
  const void *buffer, C count, Handle type, int peer, int tag, void *out, C out_count, Handle out_type, int from, \
      int out_tag, Handle comm
#define OF_EXCHANGE (buffer, count, type, peer, tag, out, out_count, out_type, from, out_tag, comm)
#define EXCHANGE_RECEIVED call.message(OpKind::recv, call.nbytes(out_count, out_type), out_type, from, out_tag, comm)
#define REPLACEMENT(C, D) void *buffer, C count, Handle type, int peer, int tag, int from, int out_tag, Handle comm
#define OF_REPLACEMENT (buffer, count, type, peer, tag, from, out_tag, comm)
#define REPLACEMENT_RECEIVED call.message(OpKind::recv, call.nbytes(count, type), type, from, out_tag, comm)

#define HOCKET_MPI_EXCHANGING(symbol, narrow, C, D, P, A, lengths, received) \
  HOCKET_HOOK int MPI_##symbol(P(C, D), void* status) {                      \
    HOCKET_MPI_CALL(symbol, narrow);                                         \
    StatusOf status_of(call, status);                                        \
    if (call.is_recorded()) {                                                \
      call.begin(received);                                                  \
      call.begin_sent(SENT);                                                 \
    }                                                                        \
    const int code = call(HOCKET_MPI_LIST A, status_of.used());              \
    return call.end(code, status_of.used());                                 \
  }
namespace {
// Otherwise the receive keeps the peer and the size that the caller named.
MpiOperation with_known_status(const MpiCall& call, MpiOperation received) {
  received.is_receive = call.mpi().constants().has_exchange_status;
  return received;
}
}  // namespace
#define HOCKET_MPI_EXCHANGE_STARTING(symbol, narrow, C, D, P, A, lengths, received) \
  HOCKET_HOOK int MPI_##symbol(P(C, D), void* request) {                            \
    HOCKET_MPI_CALL(symbol, narrow);                                                \
    if (call.is_recorded()) {                                                       \
      call.begin(with_known_status(call, received), hocket::kEventAsync);           \
      call.begin_sent(SENT, hocket::kEventAsync);                                   \
    }                                                                               \
    return call.follow(call(HOCKET_MPI_LIST A, request), request);                  \
  }
HOCKET_MPI_SIZED(EXCHANGING, Sendrecv, EXCHANGE, OF_EXCHANGE, HOCKET_MPI_NO_LENGTHS, EXCHANGE_RECEIVED)
HOCKET_MPI_SIZED(EXCHANGING, Sendrecv_replace, REPLACEMENT, OF_REPLACEMENT, HOCKET_MPI_NO_LENGTHS, REPLACEMENT_RECEIVED)
HOCKET_MPI_SIZED(EXCHANGE_STARTING, Isendrecv, EXCHANGE, OF_EXCHANGE, HOCKET_MPI_NO_LENGTHS, EXCHANGE_RECEIVED)
HOCKET_MPI_SIZED(EXCHANGE_STARTING, Isendrecv_replace, REPLACEMENT, OF_REPLACEMENT, HOCKET_MPI_NO_LENGTHS,
                 REPLACEMENT_RECEIVED)

// The data of a partitioned message move in parts, but it is one operation; its status has no count.
#define PARTITIONED(symbol, op)                                                                              \
  HOCKET_HOOK int MPI_##symbol(void* buffer, int partitions, int64_t count, Handle type, int peer, int tag,  \
                               Handle comm, Handle info, void* request) {                                    \
    HOCKET_MPI_CALL(symbol, nullptr);                                                                        \
    const int code = call(buffer, partitions, count, type, peer, tag, comm, info, request);                  \
    if (!call.is_recorded()) return code;                                                                    \
    MpiOperation operation = call.message(op, call.nbytes(partitions * count, type), type, peer, tag, comm); \
    operation.is_receive = false;                                                                            \
    return call.plan(code, request, operation);                                                              \
  }
PARTITIONED(Psend_init, OpKind::send)
PARTITIONED(Precv_init, OpKind::recv)

// MPI_Mprobe takes a message out of the queue, and MPI_Mrecv receives it without naming its communicator.
namespace {

struct ProbedMessage {
  std::shared_ptr<KnownGroup> group;
  int source;
  int tag;
};

class ProbedMessages {
 public:
  void add(MpiCall& call, const void* message, Handle comm, const void* status) {
    const hocket::hooks::MpiConstants& constants = call.mpi().constants();
    const std::lock_guard guard(mutex_);
    probed_[call.mpi().handle_at(message, 0)] = {hocket::hooks::communicator_of(call.mpi(), comm),
                                                 call.mpi().field(status, constants.source_at),
                                                 call.mpi().field(status, constants.tag_at)};
  }
  MpiOperation take(MpiCall& call, const void* message, uint64_t nbytes, Handle type) {
    const std::lock_guard guard(mutex_);
    const auto found = probed_.find(call.mpi().handle_at(message, 0));
    MpiOperation operation =
        call.operation_of(OpKind::recv, nbytes, type, found == probed_.end() ? nullptr : found->second.group);
    operation.is_message = operation.is_receive = true;
    if (found == probed_.end()) return operation;
    operation.peer = call.peer_of(found->second.source);
    operation.tag = static_cast<uint32_t>(found->second.tag);
    probed_.erase(found);
    return operation;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<Handle, ProbedMessage> probed_;
};

}  // namespace

HOCKET_HOOK int MPI_Mprobe(int source, int tag, Handle comm, void* message, void* status) {
  HOCKET_MPI_CALL(Mprobe, nullptr);
  StatusOf status_of(call, status);
  const int code = call(source, tag, comm, message, status_of.used());
  if (call.is_recorded() && code == 0) of_this_process<ProbedMessages>().add(call, message, comm, status_of.used());
  return code;
}

HOCKET_HOOK int MPI_Improbe(int source, int tag, Handle comm, int* flag, void* message, void* status) {
  HOCKET_MPI_CALL(Improbe, nullptr);
  StatusOf status_of(call, status);
  const int code = call(source, tag, comm, flag, message, status_of.used());
  if (call.is_recorded() && code == 0 && *flag)
    of_this_process<ProbedMessages>().add(call, message, comm, status_of.used());
  return code;
}

#define PROBED(C, D) void *buffer, C count, Handle type, void *message
#define OF_PROBED (buffer, count, type, message)
#define PROBED_RECEIVED of_this_process<ProbedMessages>().take(call, message, call.nbytes(count, type), type)
HOCKET_MPI_SIZED(RECEIVING, Mrecv, PROBED, OF_PROBED, HOCKET_MPI_NO_LENGTHS, PROBED_RECEIVED)
HOCKET_MPI_SIZED(NONBLOCKING, Imrecv, PROBED, OF_PROBED, HOCKET_MPI_NO_LENGTHS, PROBED_RECEIVED)
