// Libraries that make progress only inside calls (MPI, UCX), even when none of their operations is in flight.
//
// An operation can complete before all its data has left this process: a queue was full when the answer to the sender
// was due, or a socket took only a part of the bytes. The core tests that operation no more, and the rank that waits
// for the rest may be the rank that this rank waits for over another library. So every wait drives such a library, with
// or without operations in flight (rule R3).
//
// A library does not report whether data is left. The pause between two calls is a part of the time since the last use:
// no peer waits much longer than necessary, and a library that was used long ago costs almost nothing.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <limits>

namespace hocket {

class DrivenLibrary {
 public:
  static constexpr int64_t kNever = std::numeric_limits<int64_t>::max();

  virtual ~DrivenLibrary() = default;
  // Call when one of its operations is complete or cancelled. From any thread.
  void note_use();
  // Call this and the following methods under the progress lock.
  void drive(int64_t now) {
    driven_ns_ = now;
    drive();
  }
  int64_t due_ns() const {
    const int64_t used = used_ns_.load(std::memory_order_acquire);
    if (used == 0) return kNever;
    const int64_t last = std::max(used, driven_ns_);
    return last + std::clamp((last - used) / kPausePart, kShortestPauseNs, kLongestPauseNs);
  }

 private:
  static constexpr int64_t kPausePart = 8;
  static constexpr int64_t kShortestPauseNs = 100'000;
  static constexpr int64_t kLongestPauseNs = 1'000'000'000;

  // Makes progress on the rest of completed operations; must not block.
  virtual void drive() = 0;

  std::atomic<int64_t> used_ns_{0};
  int64_t driven_ns_ = 0;
};

}  // namespace hocket
