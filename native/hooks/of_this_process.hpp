// State of a hook that a forked child must not share with its parent.
#pragma once

#include <pthread.h>

#include <new>

namespace hocket::hooks {

// The one T of this process. A forked child begins with a new one: another thread of the parent may have held its lock.
template <typename T>
T& of_this_process() {
  static T* const made = [] {
    pthread_atfork(nullptr, nullptr, [] { new (&of_this_process<T>()) T; });
    return new T;  // NOLINT: threads may use it until the process ends
  }();
  return *made;
}

}  // namespace hocket::hooks
