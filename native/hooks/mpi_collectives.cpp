// Collective operations of MPI. The bytes of an event are those that this rank gives to the operation: its vector or
// block; for all_to_all and reduce_scatter all of its blocks together; for broadcast and scatter, where only the root
// gives, those that each rank has afterwards. Functions whose blocks differ in size count their own sum.
#include <algorithm>

#include "hooks/mpi_requests.hpp"

using hocket::ForeignKind;
using hocket::OpKind;
using hocket::hooks::Handle;
using hocket::hooks::KnownGroup;
using hocket::hooks::LargeCount;
using hocket::hooks::MpiCall;
using hocket::hooks::MpiOperation;
using hocket::hooks::Neighbours;

namespace {

struct Collective {
  uint64_t nbytes = 0;
  Handle type = 0;
  bool is_in_place = false;
};

template <typename Kind>
MpiOperation collective(const MpiCall& call, Kind kind, Handle comm, Collective own) {
  MpiOperation operation =
      call.operation_of(kind, own.nbytes, own.type, hocket::hooks::communicator_of(call.mpi(), comm));
  if (own.is_in_place) operation.flags = hocket::kEventInPlace;
  return operation;
}

template <typename Kind>
MpiOperation rooted(const MpiCall& call, Kind kind, int root, Handle comm, Collective own) {
  // Between two groups the root's own group gives and takes nothing but at the root.
  if (root == call.mpi().constants().proc_null) own.nbytes = 0;
  MpiOperation operation = collective(call, kind, comm, own);
  operation.peer =
      root == call.mpi().constants().root && operation.group ? operation.group->sizes.rank : call.peer_of(root);
  return operation;
}

template <typename Kind>
MpiOperation reducing(const MpiCall& call, Kind kind, Handle op, Handle comm, Collective own) {
  MpiOperation operation = collective(call, kind, comm, own);
  operation.reduce = call.mpi().reduction(op);
  return operation;
}

// These are also needed where nothing is recorded, so they define no communicator.
int num_peers(const MpiCall& call, Handle comm) { return hocket::hooks::sizes_of(call.mpi(), comm).num_peers; }

// The ranks that have a block in an operation within one group; between two groups, those of this one.
int num_own(const MpiCall& call, Handle comm) { return hocket::hooks::sizes_of(call.mpi(), comm).size; }

bool is_root(const MpiCall& call, int root, Handle comm) {
  if (root == call.mpi().constants().root) return true;
  const hocket::hooks::GroupSizes sizes = hocket::hooks::sizes_of(call.mpi(), comm);
  return !sizes.is_inter && sizes.rank == root;
}

template <typename C>
uint64_t own_block(const MpiCall& call, const C* counts, Handle type, Handle comm) {
  const int rank = hocket::hooks::sizes_of(call.mpi(), comm).rank;
  return counts && rank >= 0 ? call.nbytes(counts[rank], type) : 0;
}

std::array<int, 4> equal_lengths(int length) { return {length, length, length, length}; }
std::array<int, 4> lengths_at_root(const MpiCall& call, int root, Handle comm) {
  return equal_lengths(is_root(call, root, comm) ? num_peers(call, comm) : 0);
}
// In place, the counts of what is sent are no arrays.
std::array<int, 4> lengths_of_all(const MpiCall& call, const void* in, Handle comm) {
  const int length = num_peers(call, comm);
  const int sent = call.mpi().is_in_place(in) ? 0 : length;
  return {sent, sent, length, length};
}
std::array<int, 4> lengths_of_neighbours(const MpiCall& call, Handle comm, bool has_large_displacements) {
  const Neighbours neighbours = hocket::hooks::neighbours_of(call.mpi(), comm);
  if (has_large_displacements) return {neighbours.out, neighbours.in};
  return {neighbours.out, neighbours.out, neighbours.in, neighbours.in};
}

// What this rank gives: its own block in place, or in the array that it passes.
template <typename C, typename Out>
Collective block(const MpiCall& call, const void* in, C count, Handle type, Out out_nbytes, Handle out_type) {
  if (call.mpi().is_in_place(in)) return {out_nbytes(), out_type, true};
  return {call.nbytes(count, type), type};
}

}  // namespace

#define ALL_FORMS(blocking, nonblocking, P, A, lengths, ...)             \
  HOCKET_MPI_SIZED(BLOCKING, blocking, P, A, lengths, __VA_ARGS__)       \
  HOCKET_MPI_SIZED(NONBLOCKING, nonblocking, P, A, lengths, __VA_ARGS__) \
  HOCKET_MPI_SIZED(PERSISTENT, blocking##_init, P, A, lengths, __VA_ARGS__)

#define BARRIER(C, D) Handle comm
#define BARRIER_OF collective(call, OpKind::barrier, comm, {})
HOCKET_MPI_BLOCKING(Barrier, nullptr, int, int, BARRIER, (comm), HOCKET_MPI_NO_LENGTHS, BARRIER_OF)
HOCKET_MPI_NONBLOCKING(Ibarrier, nullptr, int, int, BARRIER, (comm), HOCKET_MPI_NO_LENGTHS, BARRIER_OF)
HOCKET_MPI_PERSISTENT(Barrier_init, nullptr, int, int, BARRIER, (comm), HOCKET_MPI_NO_LENGTHS, BARRIER_OF)

#define BROADCAST(C, D) void *buffer, C count, Handle type, int root, Handle comm
#define OF_BROADCAST (buffer, count, type, root, comm)
ALL_FORMS(Bcast, Ibcast, BROADCAST, OF_BROADCAST, HOCKET_MPI_NO_LENGTHS,
          rooted(call, OpKind::broadcast, root, comm, {call.nbytes(count, type), type}))

#define REDUCTION(C, D) const void *in, void *out, C count, Handle type, Handle op, Handle comm
#define OF_REDUCTION (in, out, count, type, op, comm)
#define VECTOR {call.nbytes(count, type), type, call.mpi().is_in_place(in)}
#define BLOCKS {call.nbytes(count, type) * static_cast<uint64_t>(num_own(call, comm)), type, call.mpi().is_in_place(in)}
ALL_FORMS(Allreduce, Iallreduce, REDUCTION, OF_REDUCTION, HOCKET_MPI_NO_LENGTHS,
          reducing(call, OpKind::all_reduce, op, comm, VECTOR))
ALL_FORMS(Scan, Iscan, REDUCTION, OF_REDUCTION, HOCKET_MPI_NO_LENGTHS, reducing(call, OpKind::scan, op, comm, VECTOR))
ALL_FORMS(Exscan, Iexscan, REDUCTION, OF_REDUCTION, HOCKET_MPI_NO_LENGTHS,
          reducing(call, ForeignKind::exscan, op, comm, VECTOR))
ALL_FORMS(Reduce_scatter_block, Ireduce_scatter_block, REDUCTION, OF_REDUCTION, HOCKET_MPI_NO_LENGTHS,
          reducing(call, OpKind::reduce_scatter, op, comm, BLOCKS))

#define REDUCTION_TO_ROOT(C, D) const void *in, void *out, C count, Handle type, Handle op, int root, Handle comm
#define OF_REDUCTION_TO_ROOT (in, out, count, type, op, root, comm)
namespace {
MpiOperation reducing_to(const MpiCall& call, int root, Handle op, Handle comm, Collective own) {
  MpiOperation operation = rooted(call, OpKind::reduce, root, comm, own);
  operation.reduce = call.mpi().reduction(op);
  return operation;
}
}  // namespace
ALL_FORMS(Reduce, Ireduce, REDUCTION_TO_ROOT, OF_REDUCTION_TO_ROOT, HOCKET_MPI_NO_LENGTHS,
          reducing_to(call, root, op, comm, VECTOR))

#define REDUCTION_V(C, D) const void *in, void *out, const C *counts, Handle type, Handle op, Handle comm
#define OF_REDUCTION_V (in, out, counts, type, op, comm)
ALL_FORMS(Reduce_scatter, Ireduce_scatter, REDUCTION_V, OF_REDUCTION_V, equal_lengths(num_own(call, comm)),
          reducing(call, OpKind::reduce_scatterv, op, comm,
                   {call.sum_nbytes(counts, num_own(call, comm), type), type, call.mpi().is_in_place(in)}))

#define EACH(C, D) const void *in, C count, Handle type, void *out, C out_count, Handle out_type
#define OF_EACH in, count, type, out, out_count, out_type
#define OUT_BLOCK [&] { return call.nbytes(out_count, out_type); }
#define GATHERING(C, D) EACH(C, D), Handle comm
#define OF_GATHERING (OF_EACH, comm)
#define GATHERING_TO(C, D) EACH(C, D), int root, Handle comm
#define OF_GATHERING_TO (OF_EACH, root, comm)
ALL_FORMS(Gather, Igather, GATHERING_TO, OF_GATHERING_TO, HOCKET_MPI_NO_LENGTHS,
          rooted(call, OpKind::gather, root, comm, block(call, in, count, type, OUT_BLOCK, out_type)))
ALL_FORMS(Allgather, Iallgather, GATHERING, OF_GATHERING, HOCKET_MPI_NO_LENGTHS,
          collective(call, OpKind::all_gather, comm, block(call, in, count, type, OUT_BLOCK, out_type)))
// The root may leave its block where it is, and between groups it has none.
#define SCATTERED(in_nbytes)                                         \
  call.mpi().is_in_place(out) || root == call.mpi().constants().root \
      ? Collective{in_nbytes, type, call.mpi().is_in_place(out)}     \
      : Collective {                                                 \
    call.nbytes(out_count, out_type), out_type                       \
  }
ALL_FORMS(Scatter, Iscatter, GATHERING_TO, OF_GATHERING_TO, HOCKET_MPI_NO_LENGTHS,
          rooted(call, OpKind::scatter, root, comm, SCATTERED(call.nbytes(count, type))))

namespace {
Collective times(Collective one, int count) {
  one.nbytes *= static_cast<uint64_t>(count);
  return one;
}
}  // namespace
ALL_FORMS(Alltoall, Ialltoall, GATHERING, OF_GATHERING, HOCKET_MPI_NO_LENGTHS,
          collective(call, OpKind::all_to_all, comm,
                     times(block(call, in, count, type, OUT_BLOCK, out_type), num_peers(call, comm))))
ALL_FORMS(Neighbor_allgather, Ineighbor_allgather, GATHERING, OF_GATHERING, HOCKET_MPI_NO_LENGTHS,
          collective(call, ForeignKind::neighbor_all_gather, comm, {call.nbytes(count, type), type}))
ALL_FORMS(Neighbor_alltoall, Ineighbor_alltoall, GATHERING, OF_GATHERING, HOCKET_MPI_NO_LENGTHS,
          collective(call, ForeignKind::neighbor_all_to_all, comm,
                     times({call.nbytes(count, type), type}, hocket::hooks::neighbours_of(call.mpi(), comm).out)))

#define OUT_V(C, D) \
  const void *in, C count, Handle type, void *out, const C *counts, const D *displacements, Handle out_type
#define OF_OUT_V in, count, type, out, counts, displacements, out_type
#define OWN_OUT_BLOCK [&] { return own_block(call, counts, out_type, comm); }
#define GATHERING_V(C, D) OUT_V(C, D), Handle comm
#define OF_GATHERING_V (OF_OUT_V, comm)
#define GATHERING_V_TO(C, D) OUT_V(C, D), int root, Handle comm
#define OF_GATHERING_V_TO (OF_OUT_V, root, comm)
ALL_FORMS(Gatherv, Igatherv, GATHERING_V_TO, OF_GATHERING_V_TO, lengths_at_root(call, root, comm),
          rooted(call, OpKind::gatherv, root, comm, block(call, in, count, type, OWN_OUT_BLOCK, out_type)))
ALL_FORMS(Allgatherv, Iallgatherv, GATHERING_V, OF_GATHERING_V, equal_lengths(num_peers(call, comm)),
          collective(call, OpKind::all_gatherv, comm, block(call, in, count, type, OWN_OUT_BLOCK, out_type)))
ALL_FORMS(Neighbor_allgatherv, Ineighbor_allgatherv, GATHERING_V, OF_GATHERING_V,
          equal_lengths(hocket::hooks::neighbours_of(call.mpi(), comm).in),
          collective(call, ForeignKind::neighbor_all_gather, comm, {call.nbytes(count, type), type}))

#define SCATTERING_V(C, D)                                                                                       \
  const void *in, const C *counts, const D *displacements, Handle type, void *out, C out_count, Handle out_type, \
      int root, Handle comm
#define OF_SCATTERING_V (in, counts, displacements, type, out, out_count, out_type, root, comm)
#define ROOT_BLOCK                                                                           \
  root == call.mpi().constants().root ? call.sum_nbytes(counts, num_peers(call, comm), type) \
                                      : own_block(call, counts, type, comm)
ALL_FORMS(Scatterv, Iscatterv, SCATTERING_V, OF_SCATTERING_V, lengths_at_root(call, root, comm),
          rooted(call, OpKind::scatterv, root, comm, SCATTERED((ROOT_BLOCK))))

#define ALL_V(C, D)                                                                                     \
  const void *in, const C *counts, const D *displacements, Handle type, void *out, const C *out_counts, \
      const D *out_displacements, Handle out_type, Handle comm
#define OF_ALL_V (in, counts, displacements, type, out, out_counts, out_displacements, out_type, comm)
#define ALL_W(C, D)                                                                                           \
  const void *in, const C *counts, const D *displacements, const void *types, void *out, const C *out_counts, \
      const D *out_displacements, const void *out_types, Handle comm
#define OF_ALL_W (in, counts, displacements, types, out, out_counts, out_displacements, out_types, comm)
namespace {
template <typename C, typename T>
Collective all_blocks(const MpiCall& call, const void* in, const C* counts, T type, const C* out_counts, T out_type,
                      Handle comm) {
  const bool is_in_place = call.mpi().is_in_place(in);
  Collective own{
      call.sum_nbytes(is_in_place ? out_counts : counts, num_peers(call, comm), is_in_place ? out_type : type), 0,
      is_in_place};
  if constexpr (std::is_same_v<T, Handle>) own.type = is_in_place ? out_type : type;
  return own;
}
template <typename C, typename T>
Collective neighbour_blocks(const MpiCall& call, const C* counts, T type, Handle comm) {
  Collective own{call.sum_nbytes(counts, hocket::hooks::neighbours_of(call.mpi(), comm).out, type)};
  if constexpr (std::is_same_v<T, Handle>) own.type = type;
  return own;
}
}  // namespace
ALL_FORMS(Alltoallv, Ialltoallv, ALL_V, OF_ALL_V, lengths_of_all(call, in, comm),
          collective(call, OpKind::all_to_allv, comm, all_blocks(call, in, counts, type, out_counts, out_type, comm)))
ALL_FORMS(Alltoallw, Ialltoallw, ALL_W, OF_ALL_W, lengths_of_all(call, in, comm),
          collective(call, OpKind::all_to_allv, comm, all_blocks(call, in, counts, types, out_counts, out_types, comm)))
ALL_FORMS(Neighbor_alltoallv, Ineighbor_alltoallv, ALL_V, OF_ALL_V, lengths_of_neighbours(call, comm, false),
          collective(call, ForeignKind::neighbor_all_to_all, comm, neighbour_blocks(call, counts, type, comm)))
// Displacements are addresses in both forms.
#define NEIGHBOUR_W(C, D) ALL_W(C, Handle)
ALL_FORMS(Neighbor_alltoallw, Ineighbor_alltoallw, NEIGHBOUR_W, OF_ALL_W, lengths_of_neighbours(call, comm, true),
          collective(call, ForeignKind::neighbor_all_to_all, comm, neighbour_blocks(call, counts, types, comm)))
