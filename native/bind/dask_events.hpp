// Messages over the connections of Dask, in the recorder.
#pragma once

#include <nanobind/nanobind.h>

namespace hocket {

// Adds `MessageLog` to the module.
void bind_dask_events(nanobind::module_& module);

}  // namespace hocket
