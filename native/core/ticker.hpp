// A thread that wakes up often while others' programs compete for the processors.
//
// Linux' scheduler (EEVDF, seen with 6.18) divides processors between sessions (autogroup of sched(7)), and looks at a
// session's turn whenever one of its threads wakes up. A program whose one thread computes in long pieces waits for
// whole time slices of others again and again; one with a second thread that wakes up on the same processor every
// fraction of a millisecond is served at each of these. gloo's ranks have such threads by the way; ours have none, and
// two ranks that wait for each other would make a step of 1.2 ms in 16 to 20 beside eight busy processes, where it
// takes 1.7 with this one and KeepApart (benchmarks/busy.py).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace hocket {

class Ticker {
 public:
  static Ticker& instance();  // the process' own, never destroyed; may_compete() is asked
  explicit Ticker(bool allowed) : allowed_(allowed) {}
  ~Ticker() { stop(); }  // of those that are not the process' own
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // The kernel kept this thread waiting for a processor. Starts the ticking beside it, or brings it here; it ends by
  // itself a moment after the last delay of the thread, or when no more threads want to run than there are processors.
  void note_delay(int64_t now_ns);
  void stop();  // and wait until the thread is gone: milliseconds, a second at most
  bool is_running() const { return runs_.load(std::memory_order_acquire); }

 private:
  void run();

  const bool allowed_;
  std::atomic<int64_t> next_start_ns_{0};
  std::atomic<bool> runs_{false};
  std::atomic<bool> is_to_stop_{false};
  std::atomic<pid_t> thread_{0};   // the last one
  std::atomic<pid_t> delayed_{0};  // whom it ticks beside
};

}  // namespace hocket
