// Ranks that wait for each other beside others' programs leave a processor that they have come to share.
//
// The kernel likes to run who is woken where the waker runs. Ranks that wake each other then share one processor with
// half of the others' programs, run in turns, and stay there: to the kernel, that looks balanced. Seen with Linux 6.18:
// of eight busy processes and two ranks on two processors, a step of 1.2 ms takes 4.3 where the ranks share one and 1.6
// where they do not (benchmarks/busy.py).
#pragma once

#include <cstdint>

namespace hocket {

class KeepApart {
 public:
  static KeepApart& mine();  // of the calling thread
  // This thread was woken by one that ran on that processor. If that was its own several times in a row it goes to
  // another one that it may use, and may use all of them again at once. What somebody else sets it to at that very
  // moment is lost.
  void note_ring(int ringer_processor, int64_t now_ns);

 private:
  int num_together_ = 0;
  int64_t moved_ns_ = 0;
};

}  // namespace hocket
