#include "core/process.hpp"

#include <pthread.h>

namespace hocket {

void watch_forks() {
  static const int once =
      pthread_atfork(nullptr, nullptr, [] { g_forked_child.store(true, std::memory_order_relaxed); });
  static_cast<void>(once);
}

}  // namespace hocket
