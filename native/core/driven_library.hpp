// Libraries that move data only while somebody looks (MPI, UCX), also when none of their operations is in flight.
//
// An operation may be over before all of it has left this process: an answer to the sender has found a queue full,
// bytes were more than a socket took. Nobody tests that operation any more, and the rank that waits for what is left of
// it may be the very one that this rank waits for over another library. So whoever waits drives such a library, whether
// it carries anything or not (rule R3).
//
// A library does not tell whether anything is left. The pauses between two looks are a part of the time since it was
// used last: nobody waits much longer than he has to, and a library that was used long ago costs next to nothing.
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
  // One of its operations is over, or was given up. From any thread.
  void note_use();
  // Under the progress lock, as is all that follows.
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

  // Moves on what is left of operations; may not block.
  virtual void drive() = 0;

  std::atomic<int64_t> used_ns_{0};
  int64_t driven_ns_ = 0;
};

}  // namespace hocket
