#include "shm/opened_memory.hpp"

#include <algorithm>

#include "core/error.hpp"

namespace hocket {

std::shared_ptr<const OpenedAllocation> OpenedMemory::open(const std::shared_ptr<MemoryDriver>& driver, int device,
                                                           int owner, const SharedAllocation& allocation) {
  const auto found = std::find_if(opened_.begin(), opened_.end(),
                                  [&](const auto& each) { return each->is(*driver, device, owner, allocation); });
  if (found != opened_.end()) {
    opened_.splice(opened_.begin(), opened_, found);
    return opened_.front();
  }
  opened_.remove_if([&](const auto& each) { return each->is_in_the_place_of(owner, allocation); });
  close_unused(kMostUnused - 1);
  const auto open = [&] { return std::make_shared<const OpenedAllocation>(driver, device, owner, allocation); };
  try {
    opened_.push_front(open());
  } catch (const Failure&) {
    close_unused(0);
    opened_.push_front(open());
  }
  return opened_.front();
}

void OpenedMemory::close_unused(size_t most) {
  size_t unused = 0;
  opened_.remove_if([&](const auto& each) { return each.use_count() == 1 && ++unused > most; });
}

}  // namespace hocket
