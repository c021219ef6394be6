#include "bind/driven_in_python.hpp"

#include <vector>

#include "bind/gil.hpp"
#include "bind/python_lane.hpp"
#include "core/engine.hpp"

namespace hocket {

namespace {

// Used with the GIL only. Never destroyed, because threads may use it at exit.
std::vector<std::shared_ptr<DrivenInPython>>& all_driven() {
  static auto* all = new std::vector<std::shared_ptr<DrivenInPython>>;  // NOLINT
  return *all;
}

}  // namespace

void DrivenInPython::drive() {
  if (!is_due_.exchange(true, std::memory_order_acq_rel)) Engine::instance().request_pump(1);
}

void DrivenInPython::drive_if_requested() {
  if (!call_.is_valid() || !is_due_.exchange(false, std::memory_order_acq_rel)) return;
  Engine::instance().request_pump(-1);
  const nb::object call = call_;  // a copy: the call may release the GIL, and another thread may close this then
  try {
    call();
  } catch (nb::python_error& error) {
    error.discard_as_unraisable("hocket drives a library");
  }
}

void DrivenInPython::close() {
  call_.reset();
  // It stays due, so that it never requests attention again.
  if (is_due_.exchange(true, std::memory_order_acq_rel)) Engine::instance().request_pump(-1);
}

PyDrivenLibrary::PyDrivenLibrary(nb::object call) : library(std::make_shared<DrivenInPython>(std::move(call))) {
  all_driven().push_back(library);
  set_python_pump();
  const ProgressGuard guard;
  Engine::instance().add(library);
}

PyDrivenLibrary::~PyDrivenLibrary() {
  std::erase(all_driven(), library);
  library->close();
}

void drive_requested_libraries() {
  const std::vector<std::shared_ptr<DrivenInPython>> all = all_driven();
  for (const auto& each : all) each->drive_if_requested();
}

void bind_driven_in_python(nb::module_& module) {
  nb::class_<PyDrivenLibrary>(module, "DrivenLibrary",
                              "A library that moves data only during calls of `drive`, which must not block.")
      .def(nb::init<nb::object>(), nb::arg("drive"))
      .def("note_use", [](PyDrivenLibrary& self) { self.library->note_use(); });
}

}  // namespace hocket
