#include "bind/interruption.hpp"

#include <unistd.h>

#include <optional>

#include "core/engine.hpp"

namespace hocket {

namespace {

// Used with the GIL only. Never destroyed: at exit the interpreter may be gone.
std::optional<nb::python_error>& interruption() {
  static auto* held = new std::optional<nb::python_error>;  // NOLINT
  return *held;
}

bool is_main_thread() { return gettid() == getpid(); }

void keep(nb::python_error&& error) {
  if (interruption()) return;  // keep the first one
  interruption().emplace(std::move(error));
  Engine::instance().note_interruption(true);
}

}  // namespace

bool is_interrupted() {
  if (!is_main_thread()) return false;
  if (PyErr_CheckSignals() != 0) keep(nb::python_error());
  return interruption().has_value();
}

bool take_interruption(nb::python_error& error) {
  if (!is_main_thread() || error.matches(PyExc_Exception)) return false;
  keep(std::move(error));
  return true;
}

bool raise_interruption() {
  if (!interruption() || !is_main_thread()) return false;
  interruption()->restore();
  interruption().reset();
  Engine::instance().note_interruption(false);
  return true;
}

}  // namespace hocket
