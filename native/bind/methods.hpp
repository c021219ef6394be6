// The hot methods of a communicator: plain vectorcall functions, one call from Python and no wrapper
// (docs/decisions/hot-methods-are-native.md).
#pragma once

#include <Python.h>

namespace hocket {

using Method = PyObject*(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames);

// methods.cpp
Method all_reduce, reduce, scan, broadcast, barrier;
Method all_reduce_coalesced, broadcast_coalesced;
// block_methods.cpp
Method all_gather, reduce_scatter, all_to_all, gather, scatter;
Method all_gatherv, reduce_scatterv, all_to_allv, gatherv, scatterv;
Method gather_for;
// message_methods.cpp
Method send, recv, isend, irecv, sendrecv, batch, find_sender;

PyMethodDef* operation_methods();

}  // namespace hocket
