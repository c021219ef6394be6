// An exception that a signal handler raised while a wait in the main thread was calling Python, e.g. KeyboardInterrupt.
// It is meant for the program, not for the library that was being called, so the wait raises it.
#pragma once

#include <nanobind/nanobind.h>

namespace nb = nanobind;

namespace hocket {

// Runs the pending signal handlers in the main thread; true if one has raised, now or before. All three need the GIL.
bool is_interrupted();
// Takes the exception of a call into Python if a signal handler raised it; false: it is an error of the library.
bool take_interruption(nb::python_error& error);
// Sets it as the Python exception, if this is the main thread.
bool raise_interruption();

}  // namespace hocket
