// Moves a rank away from a processor that it shares with the rank that wakes it.
//
// Linux prefers to run a woken thread on the waker's processor. If other programs run too, ranks that wake each other
// end up on one processor and stay there, because the load looks balanced. With Linux 6.18, two processors and eight
// busy processes, a step of 1.2 ms takes 4.3 ms while the ranks share a processor and 1.6 ms while they do not
// (benchmarks/busy.py).
#pragma once

#include <cstdint>

namespace hocket {

class KeepApart {
 public:
  static KeepApart& mine();  // of the calling thread
  // Call after a thread on `ringer_processor` woke this one. After several calls in a row with this thread's own
  // processor, moves this thread to another processor and restores its affinity at once. If another program sets the
  // affinity between these two steps, that setting is overwritten.
  void note_ring(int ringer_processor, int64_t now_ns);

 private:
  int num_together_ = 0;
  int64_t moved_ns_ = 0;
};

}  // namespace hocket
