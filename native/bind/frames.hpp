// The Python interface of messages of frames between two processes.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

void bind_frames(nb::module_& module);

}  // namespace hocket
