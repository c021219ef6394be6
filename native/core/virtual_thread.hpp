// A rank that is a thread of this process on a virtual clock (native/sim). Exactly one such thread runs at a time; a
// thread that waits yields to another one.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/clock.hpp"
#include "core/error.hpp"

namespace hocket {

class Communicator;

class VirtualThread {
 public:
  virtual ~VirtualThread() = default;
  // Virtual seconds since the start.
  virtual double now_s() const = 0;
  // Yields to another thread; returns at `until_s`, or earlier if an operation of this rank has completed. Call without
  // locks and without the GIL.
  virtual void sleep_until(double until_s) = 0;
  // Why no thread can continue; nothing while the job runs.
  virtual std::optional<Error> stopped() const = 0;

  // The communicators of this rank; only this thread drives them.
  std::vector<std::shared_ptr<Communicator>> communicators;

  // The calling thread; null for an ordinary thread.
  static VirtualThread*& current() {
    thread_local VirtualThread* thread = nullptr;
    return thread;
  }
};

// The time of the calling thread's clock.
inline int64_t caller_ns() {
  const VirtualThread* thread = VirtualThread::current();
  return thread ? static_cast<int64_t>(thread->now_s() * 1e9) : now_ns();
}

}  // namespace hocket
