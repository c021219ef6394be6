// Lanes of foreign libraries, passed from the adapter that made them to a communicator.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "core/lane.hpp"

namespace nb = nanobind;

namespace hocket {

struct PyLane {
  std::unique_ptr<Lane> lane;
};

void bind_lanes(nb::module_& module);

}  // namespace hocket
