// A helper thread that wakes up often while other programs compete for the processors.
//
// Linux (EEVDF, measured with 6.18) divides processors between sessions (autogroup of sched(7)) and reconsiders a
// session whenever one of its threads wakes up. A process whose only thread computes waits for whole time slices of
// other processes. With a second thread that wakes up on the same processor every 0.3 ms, it is scheduled at each
// wake-up. gloo's ranks have such threads as a side effect. Beside eight busy processes, two ranks take 16 to 20 ms for
// a step of 1.2 ms without a ticker, and 1.7 ms with a ticker and KeepApart (benchmarks/busy.py).
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

namespace hocket {

class Ticker {
 public:
  static Ticker& instance();  // of the process; allowed if may_compete()
  explicit Ticker(bool allowed) : allowed_(allowed) {}
  ~Ticker() { stop(); }
  Ticker(const Ticker&) = delete;
  Ticker& operator=(const Ticker&) = delete;

  // Starts ticking for the calling thread, which was delayed. Ticking ends 1 s after the last delay of that thread, or
  // when the machine has no more runnable threads than the larger of its processors and the ranks that share them.
  void note_delay(int64_t now_ns, int num_ranks = 0);
  void stop();  // waits until the thread has ended, for 1 s at most
  bool is_running() const { return runs_.load(std::memory_order_acquire); }

 private:
  void run();

  const bool allowed_;
  std::atomic<int> num_ranks_{0};
  std::atomic<int64_t> next_start_ns_{0};
  std::atomic<bool> runs_{false};
  std::atomic<bool> is_to_stop_{false};
  std::atomic<pid_t> thread_{0};   // the latest ticking thread
  std::atomic<pid_t> delayed_{0};  // the thread that it ticks for
};

}  // namespace hocket
