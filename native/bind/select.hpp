// The Python interface of the selection of the largest elements.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

void bind_select(nb::module_& module);

}  // namespace hocket
