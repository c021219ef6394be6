// Moves a rank away from a processor that it shares with the rank that wakes it.
//
// Linux prefers to run a woken thread on the waker's processor. Beside other programs, ranks that wake each other end
// up on one processor and stay there, because the load looks balanced. With Linux 6.18, two processors and eight busy
// processes, a step of 1.2 ms takes 4.3 ms while the ranks share a processor and 1.6 ms while they do not
// (benchmarks/busy.py).
#pragma once

#include <cstdint>

namespace hocket {

class KeepApart {
 public:
  static KeepApart& mine();  // of the calling thread
  // Call after a thread on `ringer_processor` woke this one. After several such calls in a row from the own processor,
  // moves this thread to another one and restores its affinity at once. An affinity that is set from outside between
  // these two steps is overwritten.
  void note_ring(int ringer_processor, int64_t now_ns);

 private:
  int num_together_ = 0;
  int64_t moved_ns_ = 0;
};

}  // namespace hocket
