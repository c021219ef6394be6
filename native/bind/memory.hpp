// The Python interface of device memory: its driver and the pointer cache.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

void bind_memory(nb::module_& module);

}  // namespace hocket
