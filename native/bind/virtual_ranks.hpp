// The Python interface of virtual ranks (native/sim/virtual_ranks.hpp).
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "sim/virtual_ranks.hpp"

namespace nb = nanobind;

namespace hocket {

struct PyVirtualRanks {
  std::shared_ptr<sim::VirtualRanks> ranks;
};

void bind_virtual_ranks(nb::module_& module);

}  // namespace hocket
