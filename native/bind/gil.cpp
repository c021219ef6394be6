#include "bind/gil.hpp"

#include <nanobind/stl/string.h>

#include <exception>

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

[[noreturn]] void sleep_if_interpreter_ends() {
  // During the unwinding of pthread_exit() there is no current exception.
  while (gettid() != getpid() && is_interpreter_ending() && !std::current_exception()) pause();
  if (g_previous) g_previous();
  std::abort();
}

}  // namespace

void let_threads_outlive_interpreter() {
  static const bool once = [] {
    g_previous = std::set_terminate(&sleep_if_interpreter_ends);
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
