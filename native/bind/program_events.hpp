// Regions, marks and counters that the user's program records beside its operations.
#pragma once

#include <nanobind/nanobind.h>

namespace hocket {

// Adds `region`, `mark` and `counter` to the module.
void bind_program_events(nanobind::module_& module);

}  // namespace hocket
