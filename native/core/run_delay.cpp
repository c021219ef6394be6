#include "core/run_delay.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

namespace hocket {

namespace {

constexpr int64_t kPeriodNs = 2'000'000;
constexpr int64_t kLeastNs = 300'000;  // what the kernel's own threads take now and then is less
constexpr int64_t kPart = 16;          // of the time since the last look

// No descriptor is kept: a thread would keep one for good.
int64_t read_delay_ns(pid_t thread) {
  char text[96];
  std::snprintf(text, sizeof text, "/proc/self/task/%d/schedstat", static_cast<int>(thread));
  const int fd = open(text, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return 0;
  const ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  if (length <= 0) return 0;
  text[length] = '\0';
  char* end = text;
  std::strtoll(text, &end, 10);
  return std::strtoll(end, nullptr, 10);
}

}  // namespace

RunDelay& RunDelay::mine() {
  static thread_local RunDelay delay{gettid()};
  return delay;
}

bool RunDelay::is_there(int64_t now_ns) {
  const int64_t since = now_ns - looked_ns_;
  if (since < kPeriodNs) return false;
  const int64_t before = delay_ns_;
  delay_ns_ = read_delay_ns(thread_);
  const bool is_first = looked_ns_ == 0;
  looked_ns_ = now_ns;
  return !is_first && delay_ns_ - before > kLeastNs && (delay_ns_ - before) * kPart > since;
}

}  // namespace hocket
