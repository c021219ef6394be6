// How to write into shared memory what another processor reads next.
//
// Two processors that share a cache hand lines over in it, which is several times as fast as by way of the memory. Two
// that do not (other sockets, other parts of one; a virtual machine moves its processors between these by the minute)
// fetch each line out of the other's caches to write it, and again to read it, which is several times slower than the
// memory. Only the time that writing takes tells which it is.
#pragma once

#include "core/clock.hpp"
#include "core/copy.hpp"

namespace hocket {

class SharedWriter {
 public:
  void write(std::byte* to, const std::byte* from, size_t nbytes) {
    constexpr size_t kLeastBytes = 2 << 10;
    constexpr size_t kLongBytes = 8 << 10;  // of which a look at the clock takes little
    constexpr int kShortWritesBetweenLooks = 16;
    if (nbytes < kLeastBytes) return copy_bytes(to, from, nbytes);
    if (num_past_caches_ > 0) {
      --num_past_caches_;
      copy_past_caches(to, from, nbytes);
      return;
    }
    if (nbytes < kLongBytes && !was_slow_ && ++num_short_ % kShortWritesBetweenLooks != 0) {
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
    constexpr int kWritesBetweenLooks = 256;
    if (elapsed_ns * kSlowBytesPerNs <= static_cast<int64_t>(nbytes)) {
      was_slow_ = false;
    } else if (was_slow_) {
      num_past_caches_ = kWritesBetweenLooks;  // then look again
    } else {
      was_slow_ = true;  // once may be an interruption
    }
  }

  bool was_slow_ = false;
  int num_past_caches_ = 0;
  uint32_t num_short_ = 0;
};

}  // namespace hocket
