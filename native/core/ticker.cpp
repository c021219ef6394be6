#include "core/ticker.hpp"

#include <sched.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <cstring>
#include <exception>
#include <string>
#include <thread>

#include "core/clock.hpp"
#include "core/proc_file.hpp"
#include "core/process.hpp"
#include "core/run_delay.hpp"

namespace hocket {

namespace {

constexpr long kTickNs = 250'000;             // and 50'000 of the timer's slack
constexpr int64_t kReadPeriodNs = 5'000'000;  // between reads of the number of runnable threads
constexpr int64_t kCrowdMemoryNs = 100'000'000;
constexpr int64_t kDelayMemoryNs = 1'000'000'000;
constexpr int64_t kWatchNs = 10'000'000'000;  // lifetime after the last delay: a restart needs another delay
constexpr int64_t kMostStopNs = 1'000'000'000;
constexpr int64_t kRestNs = 1'000'000'000;  // before the next start if a run found no crowd

void pause(long ns) {
  const timespec time{0, ns};
  nanosleep(&time, nullptr);
}

// The processor that a thread of this process runs on or waits for: field 38 of its stat. The name is field 1, in
// parentheses, and may contain spaces, so the fields are counted from its end.
int64_t processor_of(pid_t thread) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/task/%d/stat", static_cast<int>(thread));
  const ProcText text = read_proc_file(path.data());
  const char* name_end = std::strrchr(text.data(), ')');
  return name_end == nullptr ? -1 : parse_field(name_end, 38 - 1);
}

// Only wake-ups on the delayed thread's own processor help it.
void go_to(int64_t processor) {
  if (processor < 0 || processor >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(static_cast<int>(processor), &set);
  sched_setaffinity(0, sizeof set, &set);  // on failure, the thread stays where it is
}

}  // namespace

Ticker& Ticker::instance() {
  static auto* ticker = new Ticker(may_compete());  // NOLINT
  return *ticker;
}

void Ticker::note_delay(int64_t now_ns, int num_ranks) {
  num_ranks_.store(num_ranks, std::memory_order_relaxed);
  if (!allowed_ || now_ns < next_start_ns_.load(std::memory_order_acquire)) return;
  delayed_.store(gettid(), std::memory_order_relaxed);
  if (runs_.exchange(true, std::memory_order_acq_rel)) return;
  is_to_stop_.store(false, std::memory_order_relaxed);
  try {
    std::thread([this] { run(); }).detach();
  } catch (const std::exception&) {  // no thread can be created: the job continues without a ticker
    next_start_ns_.store(now_ns + kRestNs, std::memory_order_release);
    runs_.store(false, std::memory_order_release);
  }
}

void Ticker::stop() {
  if (g_forked_child.load(std::memory_order_relaxed)) return;  // the thread is the parent's
  is_to_stop_.store(true, std::memory_order_relaxed);
  const int64_t deadline = now_ns() + kMostStopNs;
  const auto exists = [&] {
    const pid_t thread = thread_.load(std::memory_order_relaxed);
    return is_running() || (thread != 0 && access(("/proc/self/task/" + std::to_string(thread)).c_str(), F_OK) == 0);
  };
  while (exists() && now_ns() < deadline) pause(kTickNs);
}

// Ticks only while the machine has more runnable threads than processors and than ranks: otherwise our own threads
// caused the delay. The delay is measured here as well as in waits, because the slowest rank never waits.
void Ticker::run() {
  thread_.store(gettid(), std::memory_order_relaxed);
  prctl(PR_SET_NAME, "hocket ticker", 0, 0, 0);
  const int64_t most = std::max<int64_t>(sysconf(_SC_NPROCESSORS_ONLN), num_ranks_.load(std::memory_order_relaxed));
  pid_t delayed = delayed_.load(std::memory_order_relaxed);
  RunDelay delay(delayed);
  bool was_crowded = false;
  int64_t read_ns = 0;
  int64_t now = now_ns();
  int64_t crowd_ns = now;
  int64_t delay_ns = now;
  while (!is_to_stop_.load(std::memory_order_relaxed) && now - crowd_ns < kCrowdMemoryNs && now - delay_ns < kWatchNs) {
    if (now - read_ns >= kReadPeriodNs) {
      read_ns = now;
      if (const pid_t next = delayed_.load(std::memory_order_relaxed); next != delayed) {
        delayed = next;
        delay = RunDelay(delayed);
        delay_ns = now;
      }
      if (delay.was_delayed(now)) delay_ns = now;
      if (num_runnable() - 1 > most) {  // this thread is one of them
        crowd_ns = now;
        was_crowded = true;
      }
    }
    const bool ticks = was_crowded && now - delay_ns < kDelayMemoryNs;
    if (ticks && read_ns == now) go_to(processor_of(delayed));
    pause(ticks ? kTickNs : kReadPeriodNs);
    now = now_ns();
  }
  if (!was_crowded) next_start_ns_.store(now + kRestNs, std::memory_order_release);
  runs_.store(false, std::memory_order_release);
}

}  // namespace hocket
