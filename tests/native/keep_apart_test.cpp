// A thread that is woken several times on the waker's processor moves away, and may use all processors as before.
#include "core/keep_apart.hpp"

#include <sched.h>

#include <cstdio>

#include "core/clock.hpp"

using hocket::KeepApart;
using hocket::now_ns;

int main() {
  cpu_set_t before;
  if (sched_getaffinity(0, sizeof before, &before) != 0) return std::puts("no affinity"), 1;
  cpu_set_t here;
  KeepApart apart;
  // Repeat an attempt in which the kernel moved this thread.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int64_t now = now_ns();
    const int processor = sched_getcpu();
    for (int i = 0; i < 3; ++i) apart.note_ring(processor, now);
    const bool stayed = sched_getcpu() == processor;
    apart.note_ring(processor, now);
    const int after = sched_getcpu();
    if (!stayed) continue;
    if (CPU_COUNT(&before) > 1 && after == processor) return std::puts("the thread stays on the waker's processor"), 1;
    break;
  }
  cpu_set_t now_allowed;
  sched_getaffinity(0, sizeof now_allowed, &now_allowed);
  if (!CPU_EQUAL(&before, &now_allowed)) return std::puts("the affinity of the thread has changed"), 1;

  // A thread bound to one processor stays bound.
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  sched_setaffinity(0, sizeof here, &here);
  KeepApart bound;
  for (int i = 0; i < 10; ++i) bound.note_ring(sched_getcpu(), now_ns());
  sched_getaffinity(0, sizeof now_allowed, &now_allowed);
  if (!CPU_EQUAL(&here, &now_allowed)) return std::puts("a bound thread is no longer bound"), 1;
  std::puts("ok");
  return 0;
}
