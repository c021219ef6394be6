// A lane whose library is driven by Python (docs/decisions/python-under-the-gil.md). Under the progress lock it only
// queues operations and reads flags. The pump calls Python, with the GIL and without that lock, in a thread that waits
// or enters hocket.
#pragma once

#include <nanobind/nanobind.h>

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/driven_library.hpp"
#include "core/lane.hpp"

namespace nb = nanobind;

namespace hocket {

class PythonLane final : public Lane {
 public:
  struct Slot;
  struct Adapter;

  // adapter: a hocket.backends.base.Lane; library: the library below it, if it must be driven also while no operation
  // is in flight. Needs the GIL.
  PythonLane(nb::object adapter, std::string backend, std::shared_ptr<DrivenLibrary> library);
  ~PythonLane() override;

  const char* backend() const override { return backend_.c_str(); }
  size_t depth() const override { return depth_; }
  Progress post(Operation& op) override;
  Progress test(Operation& op) override;
  std::vector<int> missing(const Operation& op) const override;
  bool cancel(Operation& op) noexcept override;
  std::optional<std::string> refuses(const Operation& op) const override;
  bool takes_memory(const Operation& op) const override;
  Polling polling() const override;
  bool has_threads() const override;
  bool keeps_arrays() const override { return true; }

 private:
  std::string backend_;
  size_t depth_ = 1;
  std::optional<int> device_;  // the device whose memory it takes; none: the host
  std::shared_ptr<Adapter> adapter_;
  // Reasons for refusals by kind, type and reduction; computed once, so that choosing needs no call into Python.
  std::map<uint32_t, std::string> refusals_;
};

// Installs the pump; called before the first lane or library that is driven by calls into Python.
void set_python_pump();

void bind_python_lane(nb::module_& module);

}  // namespace hocket
