// How long a thread had to wait for a processor while it could have run.
#pragma once

#include <cstdint>

namespace hocket {

// Whether others' programs take processors from this thread, by what the kernel counts (run_delay, the second number of
// /proc/thread-self/schedstat). A look costs microseconds and is taken at most every few milliseconds: in between, and
// where the kernel does not count, the answer is no.
class RunDelay {
 public:
  static RunDelay& mine();  // of the calling thread
  bool is_there(int64_t now_ns);

 private:
  int64_t looked_ns_ = 0;
  int64_t delay_ns_ = 0;
};

}  // namespace hocket
