// How to write data into shared memory that another processor reads next.
//
// Two processors that share a cache exchange lines through it, several times as fast as through memory. Two processors
// without a common cache (different sockets, or different parts of one; a virtual machine moves its processors between
// these within minutes) fetch each line out of the other's caches to write it, and again to read it, several times
// slower than through memory. Only the time of the writes shows which case it is.
#pragma once

#include "core/clock.hpp"
#include "core/copy.hpp"

namespace hocket {

class SharedWriter {
 public:
  void write(std::byte* to, const std::byte* from, size_t nbytes) {
    constexpr size_t kLeastBytes = 2 << 10;
    constexpr size_t kLongBytes = 8 << 10;  // the cost of reading the clock is small against such a write
    constexpr int kShortWritesPerMeasurement = 16;
    if (nbytes < kLeastBytes) return copy_bytes(to, from, nbytes);
    if (num_nontemporal_ > 0) {
      --num_nontemporal_;
      copy_nontemporal(to, from, nbytes);
      return;
    }
    if (nbytes < kLongBytes && !was_slow_ && ++num_short_ % kShortWritesPerMeasurement != 0) {
      std::memcpy(to, from, nbytes);
      return;
    }
    const int64_t begin = now_ns();
    std::memcpy(to, from, nbytes);
    note(nbytes, now_ns() - begin);
  }

 private:
  void note(size_t nbytes, int64_t elapsed_ns) {
    constexpr int64_t kSlowBytesPerNs = 7;
    constexpr int kWritesPerMeasurement = 256;
    if (elapsed_ns * kSlowBytesPerNs <= static_cast<int64_t>(nbytes)) {
      was_slow_ = false;
    } else if (was_slow_) {
      num_nontemporal_ = kWritesPerMeasurement;  // then measure again
    } else {
      was_slow_ = true;  // a single slow write may be an interruption
    }
  }

  bool was_slow_ = false;
  int num_nontemporal_ = 0;
  uint32_t num_short_ = 0;
};

}  // namespace hocket
