// The direct algorithms: gather and scatter between more than two ranks. Who needs a block reads it out of its owner's
// array, with one copy instead of two, and without the owner's help: where ranks share processors that saves most of
// what they would wait for each other. A rank says in its header line where its array lies and whether it may read all
// others' memory; all members see the same lines, so all of them take this way or none.
//
// An owner may not return before everyone has read: `finished` says so, as in the staged algorithms. For all others,
// and between two ranks, staging was measured to be faster at any size: both sides copy at once, and through the
// caches.
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
        co_await finished_by(peer, UINT64_MAX);  // it has died, as health() is about to find
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
  // Whose data others read stays until they have.
  for (int peer = 0; peer < size_; ++peer)
    if (peer != rank_ && (is_gather ? peer : rank_) == op.root) co_await finished_by(peer, epoch);
}

}  // namespace hocket
