// I/O that Python code does through interfaces above files, and the recorder for a library that is loaded later.
#pragma once

#include <nanobind/nanobind.h>

namespace hocket {

// Adds `recorder_handle`, `begin_io` and `end_io` to the module.
void bind_io_events(nanobind::module_& module);

}  // namespace hocket
