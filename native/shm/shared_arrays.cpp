// The algorithms for arrays in the shared memory of the host's ranks (heap.hpp), or on devices whose memory they can
// open: a rank reads its inputs in place and writes results directly to their destination, without staging. Each rank's
// header line has the places of its arrays and whether it sees the arrays of the others. All members see the same
// lines, so all of them use these algorithms or none. find_sharing() defines which arrays must be shared.
//
// For arrays on devices, a rank copies the part that it owns to the host, piece by piece, and reduces it there. The
// result is bitwise equal to that of any other reduction of hocket.
//
// Barriers: the agreement is the barrier at the begin; a rank that has published its line has its contribution in its
// array. `finished` is the barrier at the end; no rank returns while others read or write its array.
//
// Invariant: two ranks never access the same bytes at the same time, except to read. In a reduction in place, only the
// owner of a slice reads and writes it, in all arrays. scan_in_place() is the exception; see there.
#include <algorithm>
#include <vector>

#include "core/copy.hpp"
#include "shm/collective_lane.hpp"
#include "shm/slices.hpp"

namespace hocket {

namespace {

// A result for more than two arrays is read again, so a piece must fit into the processor's own cache.
constexpr uint64_t kCachedPieceBytes = 32 << 10;
constexpr uint64_t kDevicePieceBytes = 1 << 20;      // a copy to or from a device has a latency of ten microseconds
constexpr uint64_t kMostDeviceCopyBytes = 16 << 20;  // between devices: within a millisecond

void copy_to_device(const Operation& op, std::byte* to, const std::byte* from, uint64_t nbytes) {
  op.device->driver->copy_to_device(reinterpret_cast<uintptr_t>(to), from, nbytes, op.device->device);
}

}  // namespace

CollectiveLane::Sharing CollectiveLane::find_sharing(const Operation& op) const {
  const auto all = [&](auto&& has) { return std::all_of(offers_.begin(), offers_.end(), has); };
  const auto has_in = [](const Offer& offer) { return offer.in_place != kNotShared; };
  const auto has_out = [](const Offer& offer) { return offer.out_place != kNotShared; };
  const auto sees = [&](const Offer& offer) {
    return offer.sees_others && offer.is_on_device == offers_[static_cast<size_t>(rank_)].is_on_device;
  };
  if (!all(sees)) return Sharing::none;
  const Offer& root = offers_[static_cast<size_t>(std::max(op.root, 0))];
  switch (op.kind) {
    case OpKind::all_reduce:
    case OpKind::scan:
      return all(has_in) && all(has_out) ? Sharing::in : Sharing::none;
    case OpKind::reduce:
      return all(has_in) && has_out(root) ? Sharing::in : Sharing::none;
    case OpKind::broadcast:
      if (!has_in(root)) return Sharing::none;
      return all(has_out) ? Sharing::both : Sharing::in;
    case OpKind::gather:
    case OpKind::gatherv:
      return has_out(root) ? Sharing::out : all(has_in) ? Sharing::in : Sharing::none;
    case OpKind::scatter:
    case OpKind::scatterv:
      return has_in(root) ? Sharing::in : all(has_out) ? Sharing::out : Sharing::none;
    case OpKind::reduce_scatter:
    case OpKind::reduce_scatterv:
      return all(has_in) ? Sharing::in : Sharing::none;
    case OpKind::all_gather:
    case OpKind::all_gatherv:
    case OpKind::all_to_all:
      return all(has_in) ? Sharing::in : all(has_out) ? Sharing::out : Sharing::none;
    default:  // all_to_allv: only two ranks know the place of a block
      return Sharing::none;
  }
}

Task CollectiveLane::start_shared(const Operation& op, Sharing sharing) {
  switch (without_counts(op.kind)) {
    case OpKind::all_reduce:
    case OpKind::reduce:
      return reduce_in_place(op);
    case OpKind::scan:
      return scan_in_place(op);
    case OpKind::reduce_scatter:
      return reduce_scatter_in_place(op);
    default:
      return copy_in_place(op, sharing);
  }
}

// Every rank reduces its slice over all arrays, in rank order, and writes the result into all of them; for reduce, into
// the root's array only.
Task CollectiveLane::reduce_in_place(Operation op) {
  const uint64_t epoch = take_epochs(1) + 1;
  const ReduceKernel kernel = reduce_kernel(op.dtype, op.reduce);
  const Slice own = slice_of(op.nbytes, rank_, size_);
  std::vector<std::byte*> ins, outs;
  for (int peer = 0; peer < size_; ++peer)
    ins.push_back((peer == rank_ ? const_cast<std::byte*>(op.in) : in_of(op, peer)) + own.begin);
  for (int step = 0; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    if (op.kind == OpKind::all_reduce || peer == op.root)
      outs.push_back((peer == rank_ ? op.out : out_of(op, peer)) + own.begin);
  }
  std::vector<const std::byte*> sources(ins.size());
  const uint64_t piece = op.device ? kDevicePieceBytes : outs.size() > 2 ? kCachedPieceBytes : kPieceBytes;
  for (uint64_t position = 0; position < own.nbytes; position += piece) {
    co_await step();
    const uint64_t nbytes = std::min(piece, own.nbytes - position);
    for (size_t i = 0; i < ins.size(); ++i) sources[i] = ins[i] + position;
    if (op.device) {
      std::byte* const result = reduce_on_host(op, sources, nbytes);
      for (std::byte* out : outs) copy_to_device(op, out + position, result, nbytes);
      continue;
    }
    kernel(outs[0] + position, outs.size() > 1 ? outs[1] + position : nullptr, sources.data(), size_,
           nbytes / itemsize(op.dtype));
    for (size_t i = 2; i < outs.size(); ++i) copy_bytes(outs[i] + position, outs[0] + position, nbytes);
  }
  publish_staged(epoch);
  publish_finished(epoch);
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) co_await finished_by(peer, epoch);
}

Task CollectiveLane::reduce_scatter_in_place(Operation op) {
  const uint64_t epoch = take_epochs(1) + 1;
  const ReduceKernel kernel = reduce_kernel(op.dtype, op.reduce);
  const Block own = op.in_block(rank_);
  std::vector<const std::byte*> ins, sources(static_cast<size_t>(size_));
  for (int peer = 0; peer < size_; ++peer) ins.push_back((peer == rank_ ? op.in : in_of(op, peer)) + own.offset);
  const uint64_t piece = op.device ? kDevicePieceBytes : kPieceBytes;
  for (uint64_t position = 0; position < own.nbytes; position += piece) {
    co_await step();
    const uint64_t nbytes = std::min(piece, own.nbytes - position);
    for (size_t i = 0; i < ins.size(); ++i) sources[i] = ins[i] + position;
    if (op.device)
      copy_to_device(op, op.out + position, reduce_on_host(op, sources, nbytes), nbytes);
    else
      kernel(op.out + position, nullptr, sources.data(), size_, nbytes / itemsize(op.dtype));
  }
  publish_staged(epoch);
  publish_finished(epoch);
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) co_await finished_by(peer, epoch);
}

// Higher ranks read an array that its own rank overwrites. So, chunk by chunk, every rank computes its result in
// private memory, and copies it to its array after all higher ranks have computed theirs.
Task CollectiveLane::scan_in_place(Operation op) {
  const ReduceKernel kernel = reduce_kernel(op.dtype, op.reduce);
  const uint64_t piece = op.device ? kDevicePieceBytes : kCachedPieceBytes;
  const uint64_t num_chunks = div_up(op.nbytes, piece);
  const uint64_t base = take_epochs(num_chunks);
  std::vector<const std::byte*> ins, sources(static_cast<size_t>(rank_ + 1));
  for (int peer = 0; peer <= rank_; ++peer) ins.push_back(peer == rank_ ? op.in : in_of(op, peer));
  std::vector<std::byte> on_host(op.device ? 0 : std::min(op.nbytes, piece));
  for (uint64_t k = 0; k < num_chunks; ++k) {
    const Block part = piece_of({0, op.nbytes}, k, piece);
    for (size_t i = 0; i < ins.size(); ++i) sources[i] = ins[i] + part.offset;
    std::byte* result = on_host.data();
    if (op.device)
      result = reduce_on_host(op, sources, part.nbytes);
    else
      kernel(result, nullptr, sources.data(), rank_ + 1, part.nbytes / itemsize(op.dtype));
    publish_staged(base + k + 1);
    publish_finished(base + k + 1);
    for (int peer = rank_ + 1; peer < size_; ++peer) co_await finished_by(peer, base + k + 1);
    co_await step();
    if (op.device)
      copy_to_device(op, op.out + part.offset, result, part.nbytes);
    else
      copy_bytes(op.out + part.offset, result, part.nbytes);
  }
}

std::byte* CollectiveLane::reduce_on_host(const Operation& op, const std::vector<const std::byte*>& sources,
                                          uint64_t nbytes) {
  if (scratch_.size() < sources.size() * nbytes) scratch_.resize(sources.size() * nbytes);
  std::vector<const std::byte*> copies;
  for (const std::byte* source : sources) {
    std::byte* const copy = scratch_.data() + copies.size() * nbytes;
    op.device->driver->copy_to_host(copy, reinterpret_cast<uintptr_t>(source), nbytes, op.device->device);
    copies.push_back(copy);
  }
  reduce_kernel(op.dtype, op.reduce)(scratch_.data(), nullptr, copies.data(), static_cast<int>(copies.size()),
                                     nbytes / itemsize(op.dtype));
  return scratch_.data();
}

// Sharing::in: the rank that needs data copies it. Sharing::out: the rank that has data copies it. Sharing::both
// divides a broadcast: the root copies one slice to each other rank, and each other rank reads the rest.
Task CollectiveLane::copy_in_place(Operation op, Sharing sharing) {
  const uint64_t epoch = take_epochs(1) + 1;
  const OpKind kind = without_counts(op.kind);
  struct Copy {
    std::byte* to;
    const std::byte* from;
    uint64_t nbytes;
  };
  std::vector<Copy> copies;
  const auto add = [&](std::byte* to, const std::byte* from, uint64_t nbytes) {
    if (to != from && nbytes) copies.push_back({to, from, nbytes});
  };
  const bool reads = sharing != Sharing::out;
  for (int step = 0; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;
    const bool is_own = peer == rank_;
    // Called only for peers whose array is needed: other peers may have none.
    const auto their_in = [&] { return is_own ? op.in : in_of(op, peer); };
    const auto their_out = [&] { return is_own ? op.out : out_of(op, peer); };
    switch (kind) {
      case OpKind::all_gather:
        if (is_own || reads)
          add(op.out + op.out_block(peer).offset, their_in(), op.out_block(peer).nbytes);
        else
          add(their_out() + op.out_block(rank_).offset, op.in, op.out_block(rank_).nbytes);
        break;
      case OpKind::all_to_all:
        if (is_own || reads)
          add(op.out + op.out_block(peer).offset, their_in() + op.in_block(rank_).offset, op.nbytes);
        else
          add(their_out() + op.out_block(rank_).offset, op.in + op.in_block(peer).offset, op.nbytes);
        break;
      case OpKind::gather:
        if (reads ? rank_ == op.root : peer == op.root)
          add((reads ? op.out : their_out()) + op.out_block(reads ? peer : rank_).offset, reads ? their_in() : op.in,
              op.out_block(reads ? peer : rank_).nbytes);
        break;
      case OpKind::scatter:
        if (reads ? peer == op.root : rank_ == op.root)
          add(reads ? op.out : their_out(), (reads ? their_in() : op.in) + op.in_block(reads ? rank_ : peer).offset,
              op.in_block(reads ? rank_ : peer).nbytes);
        break;
      default: {  // broadcast
        const Slice of_root = sharing == Sharing::both ? slice_of(op.nbytes, op.root, size_) : Slice{0, 0};
        if (rank_ == op.root && !is_own) add(their_out() + of_root.begin, op.in + of_root.begin, of_root.nbytes);
        if (rank_ != op.root && peer == op.root) {
          add(op.out, their_in(), of_root.begin);
          add(op.out + of_root.end(), their_in() + of_root.end(), op.nbytes - of_root.end());
        }
      }
    }
  }
  const uint64_t piece = op.device ? kMostDeviceCopyBytes : kPieceBytes;
  for (const Copy& copy : copies) {
    for (uint64_t position = 0; position < copy.nbytes; position += piece) {
      co_await step();
      const uint64_t nbytes = std::min(piece, copy.nbytes - position);
      if (op.device)
        op.device->driver->copy_within(reinterpret_cast<uintptr_t>(copy.to + position),
                                       reinterpret_cast<uintptr_t>(copy.from + position), nbytes, op.device->device);
      else
        copy_into_array(copy.to + position, copy.from + position, nbytes, op.out_nbytes(size_));
    }
  }
  publish_staged(epoch);
  publish_finished(epoch);
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_) co_await finished_by(peer, epoch);
}

}  // namespace hocket
