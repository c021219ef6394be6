#include "core/run_delay.hpp"

#include <unistd.h>

#include <array>
#include <cstdio>

#include "core/proc_file.hpp"

namespace hocket {

namespace {

constexpr int64_t kPeriodNs = 2'000'000;
constexpr int64_t kLeastNs = 300'000;  // above what the kernel's own threads cause
constexpr int64_t kPart = 16;          // of the time since the last read

// Field 1 of schedstat; -1 if the kernel does not count it.
int64_t read_delay_ns(pid_t thread) {
  std::array<char, 64> path{};
  std::snprintf(path.data(), path.size(), "/proc/self/task/%d/schedstat", static_cast<int>(thread));
  return parse_field(read_proc_file(path.data()).data(), 1);
}

}  // namespace

RunDelay& RunDelay::mine() {
  static thread_local RunDelay delay{gettid()};
  return delay;
}

bool RunDelay::was_delayed(int64_t now_ns) {
  const int64_t since = now_ns - read_ns_;
  if (since < kPeriodNs) return false;
  const int64_t before = delay_ns_;
  delay_ns_ = read_delay_ns(thread_);
  const bool is_first = read_ns_ == 0;
  read_ns_ = now_ns;
  return !is_first && delay_ns_ - before > kLeastNs && (delay_ns_ - before) * kPart > since;
}

}  // namespace hocket
