// The hot methods of a communicator: plain vectorcall functions, one call from Python and no wrapper (decision 16).
#pragma once

#include <Python.h>

namespace hocket {

PyMethodDef* operation_methods();

}  // namespace hocket
