// Libraries that a call into Python drives while none of their operations is in flight (core/driven_library.hpp). Under
// the progress lock they only request attention; the pump makes the call, with the GIL and without that lock.
#pragma once

#include <nanobind/nanobind.h>

#include <atomic>
#include <memory>

#include "core/driven_library.hpp"

namespace nb = nanobind;

namespace hocket {

class DrivenInPython final : public DrivenLibrary {
 public:
  explicit DrivenInPython(nb::object call) : call_(std::move(call)) {}
  DrivenInPython(const DrivenInPython&) = delete;
  DrivenInPython& operator=(const DrivenInPython&) = delete;

  // Both need the GIL.
  void drive_if_requested();
  void close();

 private:
  void drive() override;

  nb::object call_;  // none: closed
  std::atomic<bool> is_due_{false};
};

struct PyDrivenLibrary {
  std::shared_ptr<DrivenInPython> library;
  explicit PyDrivenLibrary(nb::object call);
  ~PyDrivenLibrary();
  PyDrivenLibrary(const PyDrivenLibrary&) = delete;
  PyDrivenLibrary& operator=(const PyDrivenLibrary&) = delete;
};

// Drives the libraries that have requested attention; for the pump.
void drive_requested_libraries();

void bind_driven_in_python(nb::module_& module);

}  // namespace hocket
