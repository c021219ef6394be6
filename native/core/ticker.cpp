#include "core/ticker.hpp"

#include <fcntl.h>
#include <sched.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

#include <cstdlib>
#include <sstream>
#include <string>
#include <system_error>
#include <thread>

#include "core/clock.hpp"
#include "core/process.hpp"
#include "core/run_delay.hpp"

namespace hocket {

namespace {

constexpr long kTickNs = 250'000;             // and 50'000 of the timer's slack
constexpr int64_t kLookPeriodNs = 5'000'000;  // at how many threads want to run
constexpr int64_t kCrowdMemoryNs = 100'000'000;
constexpr int64_t kDelayMemoryNs = 1'000'000'000;
constexpr int64_t kWatchNs = 10'000'000'000;  // without ticking: work goes on, and the first delay is the longest
constexpr int64_t kMostStopNs = 1'000'000'000;
constexpr int64_t kRestNs = 1'000'000'000;  // after one that found no crowd

void pause(long ns) {
  const timespec time{0, ns};
  nanosleep(&time, nullptr);
}

// The beginning of a file of /proc; empty where it cannot be read.
std::string read_start(const std::string& path) {
  const int fd = open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return {};
  char text[512];
  const ssize_t length = read(fd, text, sizeof text);
  close(fd);
  return {text, length > 0 ? static_cast<size_t>(length) : 0};
}

// Threads that want to run, of all programs, by the fourth word of /proc/loadavg ("2/345"); 0 where there is none.
int64_t num_runnable() {
  std::istringstream words(read_start("/proc/loadavg"));
  std::string word;
  for (int i = 0; i < 4; ++i) words >> word;
  return std::strtoll(word.c_str(), nullptr, 10);
}

// The processor that a thread of this process runs on or waits for: word 39 of its stat, of which the second is a name
// in parentheses; -1 where there is none.
int processor_of(pid_t thread) {
  const std::string text = read_start("/proc/self/task/" + std::to_string(thread) + "/stat");
  const size_t name_end = text.rfind(')');
  if (name_end == std::string::npos) return -1;
  std::istringstream words(text.substr(name_end + 1));
  std::string word;
  for (int i = 2; i < 39; ++i) words >> word;
  return words ? std::atoi(word.c_str()) : -1;
}

// A thread that wakes up on another processor does nothing for the one that waits on this.
void go_to(int processor) {
  if (processor < 0 || processor >= CPU_SETSIZE) return;
  cpu_set_t set;
  CPU_ZERO(&set);
  CPU_SET(processor, &set);
  sched_setaffinity(0, sizeof set, &set);  // where this is not allowed it stays where it is
}

int64_t num_processors() {
  cpu_set_t set;
  return sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : sysconf(_SC_NPROCESSORS_ONLN);
}

}  // namespace

Ticker& Ticker::instance() {
  static auto* ticker = new Ticker(may_compete());  // NOLINT
  return *ticker;
}

void Ticker::note_delay(int64_t now_ns) {
  if (!allowed_ || now_ns < next_start_ns_.load(std::memory_order_acquire)) return;
  if (runs_.exchange(true, std::memory_order_acq_rel)) return;
  is_to_stop_.store(false, std::memory_order_relaxed);
  try {
    std::thread([this, delayed = gettid()] { run(delayed); }).detach();
  } catch (const std::system_error&) {  // no further thread is to be had: it goes on without
    next_start_ns_.store(now_ns + kRestNs, std::memory_order_release);
    runs_.store(false, std::memory_order_release);
  }
}

void Ticker::stop() {
  if (g_forked_child.load(std::memory_order_relaxed)) return;  // the thread is the parent's
  is_to_stop_.store(true, std::memory_order_relaxed);
  const int64_t deadline = now_ns() + kMostStopNs;
  const auto is_there = [&] {
    const pid_t thread = thread_.load(std::memory_order_relaxed);
    return is_running() || (thread != 0 && access(("/proc/self/task/" + std::to_string(thread)).c_str(), F_OK) == 0);
  };
  while (is_there() && now_ns() < deadline) pause(kTickNs);
}

// Looks first whether there is a crowd: our own threads delay each other, too. The delay is looked at from here,
// because a rank that is always the last one never waits for another, and would not notice it.
void Ticker::run(pid_t delayed) {
  thread_.store(gettid(), std::memory_order_relaxed);
  prctl(PR_SET_NAME, "hocket ticker", 0, 0, 0);
  const int64_t num_processors = hocket::num_processors();
  RunDelay delay(delayed);
  bool was_crowded = false;
  int64_t looked_ns = 0;
  int64_t now = now_ns();
  int64_t crowd_ns = now;
  int64_t delay_ns = now;
  while (!is_to_stop_.load(std::memory_order_relaxed) && now - crowd_ns < kCrowdMemoryNs && now - delay_ns < kWatchNs) {
    if (now - looked_ns >= kLookPeriodNs) {
      looked_ns = now;
      if (delay.is_there(now)) delay_ns = now;
      if (num_runnable() - 1 > num_processors) {  // this thread runs as well
        crowd_ns = now;
        was_crowded = true;
      }
    }
    const bool ticks = was_crowded && now - delay_ns < kDelayMemoryNs;
    if (ticks && looked_ns == now) go_to(processor_of(delayed));
    pause(ticks ? kTickNs : kLookPeriodNs);
    now = now_ns();
  }
  if (!was_crowded) next_start_ns_.store(now + kRestNs, std::memory_order_release);
  runs_.store(false, std::memory_order_release);
}

}  // namespace hocket
