// The direct algorithms: who needs a block reads it out of its owner's array, with one copy instead of two. A rank says
// in its header line where its array lies and whether it may read all others' memory; all members see the same lines,
// so all of them take this way or none.
//
// An owner may not return before everyone has read: `finished` says so, as in the staged algorithms. A reduction has to
// read everything in any case, and is not faster this way.
#include <algorithm>
#include <cstring>
#include <iterator>

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
  const Offer offer{reinterpret_cast<uint64_t>(op.in), reads_peers_};
  std::memcpy(agreement_.payload(rank_, sizeof offer), &offer, sizeof offer);
}

bool CollectiveLane::is_direct(const Operation& op) {
  const auto is_in = [&](const Range& range) {
    return op.kind == range.kind && op.nbytes >= range.begin && op.nbytes < range.end;
  };
  if (std::none_of(std::begin(kFasterDirectly), std::end(kFasterDirectly), is_in)) return false;
  for (int peer = 0; peer < size_; ++peer) {
    Offer offer;
    std::memcpy(&offer, agreement_.payload(peer, sizeof offer), sizeof offer);
    if (!offer.reads_peers) return false;
    addresses_[static_cast<size_t>(peer)] = offer.address;
  }
  return true;
}

Task CollectiveLane::read_directly(Operation op) {
  const uint64_t epoch = take_epochs(1) + 1;
  const bool from_root = op.kind == OpKind::broadcast || op.kind == OpKind::scatter;
  const bool to_root = op.kind == OpKind::gather;
  // Which of its owner's blocks, and where it goes to.
  const bool takes_own_block = op.kind == OpKind::all_to_all || op.kind == OpKind::scatter;
  const bool has_block_of_each = op.kind == OpKind::all_gather || op.kind == OpKind::all_to_all || to_root;
  const uint64_t offset = takes_own_block ? static_cast<uint64_t>(rank_) * op.nbytes : 0;
  const auto place_of = [&](int peer) {
    return op.out + (has_block_of_each ? static_cast<size_t>(peer) * op.nbytes : 0);
  };
  const std::vector<uint64_t> addresses = addresses_;
  for (int step = 1; step < size_; ++step) {
    const int peer = (rank_ + step) % size_;  // everyone begins elsewhere
    if ((from_root && peer != op.root) || (to_root && rank_ != op.root)) continue;
    const uint64_t from = addresses[static_cast<size_t>(peer)] + offset;
    std::byte* to = place_of(peer);
    for (uint64_t position = 0; position < op.nbytes; position += kPieceBytes) {
      const uint64_t nbytes = std::min(kPieceBytes, op.nbytes - position);
      co_await finished_by(rank_, 0);  // a step, reached at once
      if (!read_memory(region_->pid(peer), from + position, to + position, nbytes))
        co_await finished_by(peer, UINT64_MAX);  // it has died, as health() is about to find
    }
  }
  publish_staged(epoch);
  publish_finished(epoch);
  if (op.kind != OpKind::broadcast && ((!from_root && !to_root) || rank_ == op.root)) {
    const std::byte* own = op.in + offset;
    if (own != place_of(rank_)) std::memcpy(place_of(rank_), own, op.nbytes);
  }
  // Whose data others read stays until they have.
  for (int peer = 0; peer < size_; ++peer) {
    const bool reads_mine = peer != rank_ && (!from_root || rank_ == op.root) && (!to_root || peer == op.root);
    if (reads_mine) co_await finished_by(peer, epoch);
  }
}

}  // namespace hocket
