// The Python interface of the event engine.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

void bind_sim(nb::module_& module);

}  // namespace hocket
