// The direct algorithms: who needs a block reads it out of its owner's array, with one copy instead of two. A rank says
// in its header line where its array lies and whether it may read all others' memory; all members see the same lines,
// so all of them take this way or none.
//
// An owner may not return before everyone has read: `finished` says so, as in the staged algorithms. A reduction has to
// read everything in any case, and is not faster this way.
#include <algorithm>
#include <cstring>
#include <iterator>

#include "core/copy.hpp"
#include "shm/collective_lane.hpp"
#include "shm/peer_memory.hpp"

namespace hocket {

namespace {

constexpr uint64_t kPieceBytes = 256 << 10;  // read in one step: other lanes want their turn

// Where reading was measured to be faster than staging, which wins as long as its pieces overlap in the caches.
struct Range {
  OpKind kind;
  uint64_t begin;  // of Operation::nbytes
  uint64_t end;
};
constexpr Range kFasterDirectly[] = {
    {OpKind::broadcast, kLeastDirectBytes, UINT64_MAX}, {OpKind::gather, kLeastDirectBytes, UINT64_MAX},
    {OpKind::scatter, kLeastDirectBytes, UINT64_MAX},   {OpKind::all_gather, kLeastDirectBytes, 640 << 10},
    {OpKind::all_to_all, kLeastDirectBytes, 640 << 10}, {OpKind::all_to_all, 2560 << 10, UINT64_MAX},
};

}  // namespace

void CollectiveLane::offer_array(const Operation& op) const {
  const bool is_private = op.kind == OpKind::all_to_allv;
  const Offer offer{reinterpret_cast<uint64_t>(op.in), reads_peers_,
                    is_private ? reinterpret_cast<uint64_t>(op.blocks->in.data()) : 0,
                    is_private ? op.largest_block() : 0};
  std::memcpy(agreement_.payload(rank_, sizeof offer), &offer, sizeof offer);
}

void CollectiveLane::read_offers() {
  for (int peer = 0; peer < size_; ++peer)
    std::memcpy(&offers_[static_cast<size_t>(peer)], agreement_.payload(peer, sizeof(Offer)), sizeof(Offer));
}

bool CollectiveLane::is_direct(const Operation& op, uint64_t largest) const {
  const auto is_in = [&](const Range& range) {
    return without_counts(op.kind) == range.kind && largest >= range.begin && largest < range.end;
  };
  return std::any_of(std::begin(kFasterDirectly), std::end(kFasterDirectly), is_in) &&
         std::all_of(offers_.begin(), offers_.end(), [](const Offer& offer) { return offer.reads_peers != 0; });
}

Task CollectiveLane::read_directly(Operation op) {
  const uint64_t epoch = take_epochs(1) + 1;
  const OpKind kind = without_counts(op.kind);
  const bool from_root = kind == OpKind::broadcast || kind == OpKind::scatter;
  const bool to_root = kind == OpKind::gather;
  // Which part of its owner's array, and where it goes to.
  const auto part_of = [&](int peer) {
    if (op.kind == OpKind::all_to_allv) return Block{0, op.out_block(peer).nbytes};  // the offset only its owner knows
    if (has_input_blocks(kind)) return op.in_block(rank_);
    return Block{0, has_output_blocks(kind) ? op.out_block(peer).nbytes : op.nbytes};
  };
  const auto place_of = [&](int peer) { return op.out + (has_output_blocks(kind) ? op.out_block(peer).offset : 0); };
  const std::vector<Offer> offers = offers_;
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;  // everyone begins elsewhere
    if ((from_root && peer != op.root) || (to_root && rank_ != op.root)) continue;
    const Offer& offer = offers[static_cast<size_t>(peer)];
    Block part = part_of(peer);
    if (offer.offsets && part.nbytes &&
        !read_memory(region_->pid(peer), offer.offsets + static_cast<size_t>(rank_) * sizeof part.offset,
                     reinterpret_cast<std::byte*>(&part.offset), sizeof part.offset))
      co_await finished_by(peer, UINT64_MAX);  // it has died, as health() is about to find
    for (uint64_t position = 0; position < part.nbytes; position += kPieceBytes) {
      const uint64_t nbytes = std::min(kPieceBytes, part.nbytes - position);
      co_await finished_by(rank_, 0);  // a step, reached at once
      if (!read_memory(region_->pid(peer), offer.address + part.offset + position, place_of(peer) + position, nbytes))
        co_await finished_by(peer, UINT64_MAX);  // as above
    }
  }
  publish_staged(epoch);
  publish_finished(epoch);
  if (kind != OpKind::broadcast && ((!from_root && !to_root) || rank_ == op.root)) {
    const Block own = has_input_blocks(kind) ? op.in_block(rank_) : Block{0, part_of(rank_).nbytes};
    if (op.in + own.offset != place_of(rank_)) copy_bytes(place_of(rank_), op.in + own.offset, own.nbytes);
  }
  // Whose data others read stays until they have.
  for (int peer = 0; peer < size_; ++peer) {
    const bool reads_mine = peer != rank_ && (!from_root || rank_ == op.root) && (!to_root || peer == op.root);
    if (reads_mine) co_await finished_by(peer, epoch);
  }
}

}  // namespace hocket
