// The Python interface of roll-ups.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

void bind_rollups(nb::module_& module);

}  // namespace hocket
