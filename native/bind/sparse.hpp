// The Python interface of what sparse sums need: selection, sums of elements, and their messages.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

void bind_sparse(nb::module_& module);

}  // namespace hocket
