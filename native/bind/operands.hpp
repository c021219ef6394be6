// Converts the arguments of the operations' methods: the arrays of an operation, and the sizes of its blocks.
#pragma once

#include "bind/call.hpp"

namespace hocket {

void check_reducible(const Operation& op);

// Takes the array that the operation reads and writes in place.
void take_in_place(const Entry& entry, PyObject* x, Access access, Operation& op, Arrays& arrays);
void take_in_and_out(const Entry& entry, PyObject* out, PyObject* x, Operation& op, Arrays& arrays);

// Takes several arrays of one type, which are sent as one: the operation gets one buffer for all of them.
void take_parts(const Entry& entry, PyObject* xs, Access access, Operation& op, Arrays& arrays);

// Reads one number of items for every rank; returns the blocks' offsets in bytes.
BlockOffsets read_counts(PyObject* object, const char* argument, int size, size_t itemsize);

}  // namespace hocket
