#include "shm/opened_memory.hpp"

#include <algorithm>

namespace hocket {

OpenedMemory::~OpenedMemory() {
  for (const Entry& entry : entries_) entry.close();
}

std::byte* OpenedMemory::open(const std::shared_ptr<MemoryDriver>& driver, int device, int owner,
                              const SharedAllocation& allocation) {
  const auto is_it = [&](const Entry& entry) {
    return entry.driver == driver && entry.device == device && entry.owner == owner &&
           entry.allocation.id == allocation.id && entry.allocation.begin == allocation.begin;
  };
  auto found = std::find_if(entries_.begin(), entries_.end(), is_it);
  if (found == entries_.end()) {
    entries_.remove_if([&](const Entry& entry) {
      const bool is_in_its_place = entry.owner == owner && entry.allocation.id != allocation.id &&
                                   entry.allocation.begin < allocation.end && allocation.begin < entry.allocation.end;
      if (is_in_its_place) entry.close();
      return is_in_its_place;
    });
    if (entries_.size() == kMostOpen) {
      entries_.back().close();
      entries_.pop_back();
    }
    entries_.push_front({driver, device, owner, allocation, driver->open(allocation.handle, device)});
  } else {
    entries_.splice(entries_.begin(), entries_, found);
  }
  return reinterpret_cast<std::byte*>(entries_.front().address);  // NOLINT
}

}  // namespace hocket
