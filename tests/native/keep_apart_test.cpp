// Who is woken on the waker's processor several times leaves it, and may use all processors as before.
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
  // A pass in which the kernel moves this thread by itself says nothing.
  for (int attempt = 0; attempt < 100; ++attempt) {
    const int64_t now = now_ns();
    const int processor = sched_getcpu();
    for (int i = 0; i < 3; ++i) apart.note_ring(processor, now);
    const bool stayed = sched_getcpu() == processor;
    apart.note_ring(processor, now);
    const int after = sched_getcpu();
    if (!stayed) continue;
    if (CPU_COUNT(&before) > 1 && after == processor) return std::puts("it stays with the one that wakes it"), 1;
    break;
  }
  cpu_set_t now_allowed;
  sched_getaffinity(0, sizeof now_allowed, &now_allowed);
  if (!CPU_EQUAL(&before, &now_allowed)) return std::puts("it may use other processors than before"), 1;

  // Not so soon again, not from elsewhere, and not where it is bound to one.
  CPU_ZERO(&here);
  CPU_SET(sched_getcpu(), &here);
  sched_setaffinity(0, sizeof here, &here);
  KeepApart bound;
  for (int i = 0; i < 10; ++i) bound.note_ring(sched_getcpu(), now_ns());
  sched_getaffinity(0, sizeof now_allowed, &now_allowed);
  if (!CPU_EQUAL(&here, &now_allowed)) return std::puts("a bound thread is bound no more"), 1;
  std::puts("ok");
  return 0;
}
