#include "core/keep_apart.hpp"

#include <sched.h>

#include <cstring>

#include "core/process.hpp"

namespace hocket {

namespace {

constexpr int kMostTogether = 4;
constexpr int64_t kLeastBetweenNs = 20'000'000;  // a move takes some 10 us, and more where others run

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
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;  // more than 1,024 processors: it stays
  cpu_set_t others = allowed;
  CPU_CLR(processor, &others);
  if (CPU_COUNT(&others) == 0 || sched_setaffinity(0, sizeof others, &others) != 0) return;
  // Any of all that there are, if that is what it was: the kernel keeps to what was asked for when more come.
  cpu_set_t all;
  std::memset(&all, 0xff, sizeof all);
  cpu_set_t now_allowed;
  if (sched_setaffinity(0, sizeof all, &all) == 0 && sched_getaffinity(0, sizeof now_allowed, &now_allowed) == 0 &&
      CPU_EQUAL(&now_allowed, &allowed))
    return;
  for (int attempt = 0; attempt < 3 && sched_setaffinity(0, sizeof allowed, &allowed) != 0; ++attempt) {
  }
}

}  // namespace hocket
