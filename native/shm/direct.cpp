// The direct algorithms: gather and scatter between more than two ranks. The rank that needs a block reads it out of
// the owner's array, with one copy instead of two and without the owner's help: if ranks share processors, that saves
// most of the time that they would wait for each other. Each rank's header line has the address of its array and
// whether it may read the memory of all others. All members see the same lines, so all of them use a direct algorithm
// or none.
//
// An owner must not return before all readers have read; they signal it by `finished`, as in the staged algorithms. For
// all other operations, and between two ranks, measurements showed staging to be faster at any size: both sides copy at
// the same time, and through the caches.
#include <algorithm>

#include "core/copy.hpp"
#include "shm/collective_lane.hpp"
#include "shm/peer_memory.hpp"
#include "shm/slices.hpp"

namespace hocket {

bool CollectiveLane::is_direct(const Operation& op, uint64_t largest) const {
  const OpKind kind = without_counts(op.kind);
  return size_ > 2 && (kind == OpKind::gather || kind == OpKind::scatter) && largest >= kLeastDirectBytes &&
         std::all_of(offers_.begin(), offers_.end(), [](const Offer& offer) { return offer.reads_peers; });
}

Task CollectiveLane::read_directly(Operation op) {
  const uint64_t epoch = take_epochs(1) + 1;
  const bool is_gather = without_counts(op.kind) == OpKind::gather;
  const std::vector<Offer> offers = offers_;
  for (int i = 0; i < size_; ++i) {
    const int peer = (rank_ + i) % size_;
    if (peer == rank_ || (is_gather ? rank_ : peer) != op.root) continue;
    const Block part = is_gather ? op.out_block(peer) : op.in_block(rank_);
    std::byte* const to = op.out + (is_gather ? part.offset : 0);
    const uint64_t from = offers[static_cast<size_t>(peer)].address + (is_gather ? 0 : part.offset);
    for (uint64_t position = 0; position < part.nbytes; position += kPieceBytes) {
      const uint64_t nbytes = std::min(kPieceBytes, part.nbytes - position);
      co_await step();
      if (!read_memory(region_->pid(peer), from + position, to + position, nbytes))
        co_await finished_by(peer, UINT64_MAX);  // the peer has died; health() will report it
    }
  }
  publish_staged(epoch);
  publish_finished(epoch);
  if (rank_ == op.root) {
    const Block own = is_gather ? op.out_block(rank_) : op.in_block(rank_);
    std::byte* const to = op.out + (is_gather ? own.offset : 0);
    const std::byte* const from = op.in + (is_gather ? 0 : own.offset);
    if (to != from) copy_bytes(to, from, own.nbytes);
  }
  // An owner waits until the others have read its data.
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && (is_gather ? peer : rank_) == op.root) co_await finished_by(peer, epoch);
}

}  // namespace hocket
