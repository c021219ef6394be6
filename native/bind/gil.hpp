// Waits and the GIL (docs/decisions/python-under-the-gil.md).
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <unistd.h>

#include <mutex>
#include <string>

#include "bind/interruption.hpp"
#include "core/engine.hpp"

namespace hocket {

// Sleeps while the main thread ends the process. If that does nothing for 20 s, it may wait for a lock of the thread
// that sleeps here: then the process is aborted, as it would have been at once without the sleep.
[[noreturn]] void sleep_until_process_ends();

// A thread that outlives the interpreter (a daemon thread) never gets the GIL again: Python up to 3.13 then ends it by
// pthread_exit(), and unwinding through destructors calls std::terminate. Instead it sleeps until the process ends, as
// in Python 3.14.
inline void take_gil_back(PyThreadState* state) {
  try {
    PyEval_RestoreThread(state);
  } catch (const abi::__forced_unwind&) {
    sleep_until_process_ends();
  }
}

// The same for foreign threads, such as those that wait in torch for gloo when the interpreter ends: once it is ending,
// they sleep instead of calling std::terminate.
void let_threads_outlive_interpreter();

// Takes the progress lock in a thread that holds the GIL: tries it first, and waits for it only without the GIL.
class ProgressGuard {
 public:
  ProgressGuard() {
    ProgressLock& lock = Engine::instance().lock();
    if (lock.try_lock()) return;
    PyThreadState* state = PyEval_SaveThread();
    lock.lock();
    take_gil_back(state);
  }
  ~ProgressGuard() { Engine::instance().lock().unlock(); }
  ProgressGuard(const ProgressGuard&) = delete;
  ProgressGuard& operator=(const ProgressGuard&) = delete;
};

// Writes to the log (hocket.trace.log.report_stall). With the GIL.
void report_stall(const std::string& report) noexcept;

// Releases the GIL while this object lives; in the main thread, signal handlers run from time to time.
class ReleasedGil final : public WaitHooks {
 public:
  ReleasedGil() : state_(PyEval_SaveThread()), is_main_thread_(gettid() == getpid()) {}
  ~ReleasedGil() override { take_gil_back(state_); }
  ReleasedGil(const ReleasedGil&) = delete;
  ReleasedGil& operator=(const ReleasedGil&) = delete;

  // True if the Python exception is set.
  bool interrupted() override {
    if (!is_main_thread_) return false;
    PyEval_RestoreThread(state_);
    const bool raised = is_interrupted() && raise_interruption();
    state_ = PyEval_SaveThread();
    return raised;
  }
  void stalled(const std::string& report) override {
    take_gil_back(state_);
    report_stall(report);
    state_ = PyEval_SaveThread();
  }

 private:
  PyThreadState* state_;
  bool is_main_thread_;
};

}  // namespace hocket
