// Offers: the places of a member's arrays, in its line of the agreement, and how the others use them.
//
// Other members can use an array in place if it is in the host's heap, or on a device whose memory they can open. The
// line also says whether its member can see the arrays of all others, so this must be known before: operations on such
// arrays use copies until every member has tried to open the memory of every other one.
#include <algorithm>
#include <cstring>

#include "core/error.hpp"
#include "shm/collective_lane.hpp"

namespace hocket {

void CollectiveLane::offer_arrays(const Operation& op) {
  Offer offer{.address = reinterpret_cast<uint64_t>(op.in),
              .largest = op.kind == OpKind::all_to_allv ? op.largest_block() : 0,
              .in_place = kNotShared,
              .out_place = kNotShared,
              .reads_peers = reads_peers_ && !op.device,
              .is_on_device = op.device != nullptr,
              .sees_others = false};
  static_assert(sizeof offer <= Agreement::kMostPayload);
  if (op.device) {
    offer_device_arrays(op, offer);
  } else {
    if (!heap_ && region_->host().has_heap()) heap_ = region_->host().heap();
    if (heap_) {
      offer.sees_others = true;
      const auto place_of = [&](const std::byte* begin, uint64_t nbytes) {
        return begin ? heap_->place_of(begin, nbytes).value_or(kNotShared) : kNotShared;
      };
      offer.in_place = place_of(op.in, op.in_nbytes(size_));
      offer.out_place = place_of(op.out, op.out_nbytes(size_));
    }
  }
  std::memcpy(agreement_.payload(rank_, sizeof offer), &offer, sizeof offer);
}

void CollectiveLane::offer_device_arrays(const Operation& op, Offer& offer) {
  const DeviceArrays& device = *op.device;
  const std::set<int>& proven = proven_[{device.driver.get(), device.device}];
  offer.sees_others = proven.size() + 1 == static_cast<size_t>(size_) && !proven.contains(kCannot);
  DeviceOffer more{};
  const auto share = [&](const Buffer& buffer, const std::byte* array, SharedAllocation& allocation) {
    if (!array || buffer.begin == 0) return kNotShared;
    allocation = {buffer.begin, buffer.end, buffer.id, {}};
    if (!device.driver->share(buffer, &allocation.handle)) return kNotShared;
    return reinterpret_cast<uint64_t>(array) - buffer.begin;
  };
  offer.in_place = share(device.in, op.in, more.in);
  offer.out_place = share(device.out, op.out, more.out);
  static_assert(sizeof more <= kEagerBytes);
  std::memcpy(agreement_.payload(rank_, kEagerBytes), &more, sizeof more);
}

void CollectiveLane::read_offers(const Operation& op) {
  for (int peer = 0; peer < size_; ++peer) {
    const auto place = static_cast<size_t>(peer);
    std::memcpy(&offers_[place], agreement_.payload(peer, sizeof(Offer)), sizeof(Offer));
    if (offers_[place].is_on_device)
      std::memcpy(&device_offers_[place], agreement_.payload(peer, kEagerBytes), sizeof(DeviceOffer));
  }
  // Takes effect from the next operation.
  if (op.device)
    try_to_open(op);
  else
    map_heap();
}

void CollectiveLane::map_heap() {
  const auto is_shared = [](const Offer& offer) {
    return !offer.is_on_device && (offer.in_place != kNotShared || offer.out_place != kNotShared);
  };
  if (heap_ || cannot_map_ || !std::any_of(offers_.begin(), offers_.end(), is_shared)) return;
  try {
    heap_ = region_->host().heap();
  } catch (const Failure&) {
    cannot_map_ = true;  // operations are staged instead
  }
}

void CollectiveLane::try_to_open(const Operation& op) {
  std::set<int>& proven = proven_[{op.device->driver.get(), op.device->device}];
  for (int peer = 0; peer < size_ && !proven.contains(kCannot); ++peer) {
    const Offer& offer = offers_[static_cast<size_t>(peer)];
    const DeviceOffer& more = device_offers_[static_cast<size_t>(peer)];
    if (peer == rank_ || !offer.is_on_device || proven.contains(peer)) continue;
    if (offer.in_place == kNotShared && offer.out_place == kNotShared) continue;
    try {
      opened(op, peer, offer.in_place != kNotShared ? more.in : more.out);
      proven.insert(peer);
    } catch (const Failure&) {
      proven.insert(kCannot);  // no direct access between the devices: operations go through the host instead
    }
  }
}

std::byte* CollectiveLane::opened(const Operation& op, int peer, const SharedAllocation& allocation) {
  in_use_.push_back(
      region_->host().opened_memory().open(op.device->driver, op.device->device, region_->host_rank(peer), allocation));
  return in_use_.back()->data();
}

std::byte* CollectiveLane::in_of(const Operation& op, int peer) {
  const auto at = static_cast<size_t>(peer);
  if (op.device) return opened(op, peer, device_offers_[at].in) + offers_[at].in_place;
  return heap_->at(region_->host_rank(peer), offers_[at].in_place);
}

std::byte* CollectiveLane::out_of(const Operation& op, int peer) {
  const auto at = static_cast<size_t>(peer);
  if (op.device) return opened(op, peer, device_offers_[at].out) + offers_[at].out_place;
  return heap_->at(region_->host_rank(peer), offers_[at].out_place);
}

}  // namespace hocket
