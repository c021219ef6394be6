// Persistent operations: arguments are read once, and the operation is issued many times.
#pragma once

#include "bind/call.hpp"

namespace hocket {

// Makes a Prepared from an operation with checked arguments; a new reference.
PyObject* prepare(PyObject* self, const Operation& op, std::unique_ptr<Arrays> arrays, const Options& options);

}  // namespace hocket
