#include "bind/gil.hpp"

#include <nanobind/stl/string.h>

#include <chrono>
#include <exception>
#include <fstream>
#include <iterator>
#include <string>
#include <thread>
#include <utility>

namespace hocket {

namespace {

std::terminate_handler g_previous = nullptr;

bool is_interpreter_ending() {
#if PY_VERSION_HEX >= 0x030d0000
  return Py_IsFinalizing();
#else
  return _Py_IsFinalizing();
#endif
}

std::string of_main_thread(const char* name) {
  std::ifstream file("/proc/self/task/" + std::to_string(getpid()) + '/' + name);
  return {std::istreambuf_iterator<char>(file), {}};
}

// Whether the main thread waits for a lock, as far as the kernel tells.
bool main_thread_waits_for_lock() { return of_main_thread("wchan").find("futex") != std::string::npos; }

void sleep_while_main_thread_runs() {
  constexpr std::chrono::seconds kMostIdle{20};
  constexpr std::chrono::milliseconds kStep{500};
  std::string last;
  for (std::chrono::milliseconds idle{0}; idle < kMostIdle; idle += kStep) {
    // What it has run and waited for so far.
    if (std::string now = of_main_thread("schedstat"); now.empty() || now != last || !main_thread_waits_for_lock()) {
      last = std::move(now);
      idle = std::chrono::milliseconds{0};
    }
    std::this_thread::sleep_for(kStep);
  }
  constexpr const char kText[] =
      "hocket: a thread of another library could not end before the interpreter, and its exit waits for that thread\n";
  if (write(STDERR_FILENO, kText, sizeof kText - 1) < 0) return;
}

[[noreturn]] void terminate_unless_interpreter_ends() {
  // During the unwinding of pthread_exit() there is no current exception.
  if (gettid() != getpid() && is_interpreter_ending() && !std::current_exception()) sleep_while_main_thread_runs();
  if (g_previous) g_previous();
  std::abort();
}

}  // namespace

void sleep_until_process_ends() {
  sleep_while_main_thread_runs();
  std::abort();
}

void let_threads_outlive_interpreter() {
  static const bool once = [] {
    g_previous = std::set_terminate(&terminate_unless_interpreter_ends);
    return true;
  }();
  (void)once;
}

void report_stall(const std::string& report) noexcept {
  try {
    nb::module_::import_("hocket.trace.log").attr("report_stall")(report);
  } catch (nb::python_error& error) {
    if (!take_interruption(error)) error.discard_as_unraisable("hocket's report of a wait");
  }
}

}  // namespace hocket
