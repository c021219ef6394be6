// The Python interface of quantizers.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

void bind_quantize(nb::module_& module);

}  // namespace hocket
