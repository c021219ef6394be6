#include "core/process.hpp"

#include <pthread.h>

#include <cstdlib>
#include <cstring>

namespace hocket {

void watch_forks() {
  static const int once =
      pthread_atfork(nullptr, nullptr, [] { g_forked_child.store(true, std::memory_order_relaxed); });
  static_cast<void>(once);
}

bool may_compete() {
  static const bool may = [] {
    const char* value = std::getenv("HOCKET_COMPETE");
    return value == nullptr || std::strcmp(value, "0") != 0;
  }();
  return may;
}

}  // namespace hocket
