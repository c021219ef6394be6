// Persistent operations: arguments are read once, and the operation is issued again and again.
#pragma once

#include "bind/call.hpp"

namespace hocket {

// Makes a Prepared out of an operation whose arguments are good; a new reference.
PyObject* prepare(PyObject* self, const Operation& op, std::unique_ptr<Arrays> arrays, const Options& options);

}  // namespace hocket
