// The Python interface of arrays in fewer bytes without loss.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

void bind_lossless(nb::module_& module);

}  // namespace hocket
