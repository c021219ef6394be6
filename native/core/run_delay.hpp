// Detects that other programs take processors from a thread.
#pragma once

#include <sys/types.h>

#include <cstdint>

namespace hocket {

// Measures how long a thread of this process was runnable without a processor: the kernel's run_delay, field 1 of
// /proc/self/task/N/schedstat. was_delayed() reads it at most once in 2 ms, because a read costs microseconds.
class RunDelay {
 public:
  explicit RunDelay(pid_t thread) : thread_(thread) {}
  static RunDelay& mine();  // of the calling thread
  // Whether the thread was delayed for more than 1/16 of the time since the last read. False between reads, at the
  // first read, and if the kernel does not count delays.
  bool was_delayed(int64_t now_ns);

 private:
  pid_t thread_;
  int64_t read_ns_ = 0;
  int64_t delay_ns_ = 0;
};

}  // namespace hocket
