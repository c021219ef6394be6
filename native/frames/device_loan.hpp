// A frame in device memory. Its bytes stay in the sender's allocation until the receiver, which opens the allocation by
// its handle, has copied them; in the stream is what it needs for that.
#pragma once

#include <cstdint>
#include <cstring>

#include "frames/wire.hpp"
#include "shm/opened_memory.hpp"

namespace hocket {

struct DeviceLoan {
  SharedAllocation allocation;
  uint64_t offset;  // of the frame in it
  uint64_t nbytes;
  uint64_t for_own_process;  // 1: the id is the number of the loan, and there is no handle
};
static_assert(sizeof(DeviceLoan) == kLoanBytes);

// Throws Failure if the bytes of a frame are no loan.
inline DeviceLoan loan_from(const std::byte* bytes) {
  DeviceLoan loan;
  std::memcpy(&loan, bytes, sizeof loan);
  const uint64_t size = loan.allocation.end - loan.allocation.begin;
  if (loan.nbytes &&
      (loan.allocation.end < loan.allocation.begin || loan.offset > size || loan.nbytes > size - loan.offset))
    refuse_record("a frame in device memory is not in its allocation");
  return loan;
}

}  // namespace hocket
