// What a signal handler raised while the main thread was in Python for a wait, such as KeyboardInterrupt: it belongs to
// the program, not to the library that was called, and the wait raises it.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

// Runs the signal handlers that are due, if this is the main thread; true if one raised, now or before. With the GIL,
// as the others.
bool is_interrupted();
// Takes what a call into Python raised, if that is no error of a library; false: it is one.
bool take_interruption(nb::python_error& error);
// Sets it as the Python exception of this thread, if that is the main one.
bool raise_interruption();

}  // namespace hocket
