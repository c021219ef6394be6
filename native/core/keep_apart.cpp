#include "core/keep_apart.hpp"

#include <sched.h>

#include <cstring>

#include "core/process.hpp"

namespace hocket {

namespace {

constexpr int kMostTogether = 4;
constexpr int64_t kLeastBetweenNs = 20'000'000;  // a move takes 10 us or more

}  // namespace

KeepApart& KeepApart::mine() {
  static thread_local KeepApart apart;
  return apart;
}

void KeepApart::note_ring(int ringer_processor, int64_t now_ns) {
  const int processor = sched_getcpu();
  if (processor < 0 || processor != ringer_processor) {
    num_together_ = 0;
    return;
  }
  if (++num_together_ < kMostTogether || now_ns - moved_ns_ < kLeastBetweenNs || !may_compete()) return;
  num_together_ = 0;
  moved_ns_ = now_ns;
  cpu_set_t allowed;
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // more than 1,024 processors: not supported
  cpu_set_t others = allowed;
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return;
  // Restore by requesting all processors if that gives the same set: the kernel remembers the requested set, and a
  // smaller one would exclude processors that are added later.
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  cpu_set_t restored;
  if (sched_setaffinity(0, sizeof all, &all) == 0 && sched_getaffinity(0, sizeof restored, &restored) == 0 &&
      CPU_EQUAL(&restored, &allowed))
    return;
  sched_setaffinity(0, sizeof allowed, &allowed);
}

}  // namespace hocket
