// From the core's errors to the exceptions of hocket.errors.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include "core/error.hpp"

namespace nb = nanobind;

namespace hocket {

// A Python exception is already set.
class PythonError {};

// The exception object of an error; a new reference.
PyObject* make_exception(const Error& error);
void set_error(const Error& error);
// The repr of an object, for messages.
inline std::string repr_of(PyObject* object) { return nb::cast<std::string>(nb::repr(nb::handle(object))); }
inline void set_error(ErrorCode code, std::string message) { set_error(Error{code, std::move(message), {}}); }

// Runs `body`, which returns a new reference, and converts C++ exceptions to Python exceptions.
template <typename Body>
PyObject* guarded(Body&& body) {
  try {
    return body();
  } catch (const PythonError&) {
  } catch (const Failure& failure) {
    if (failure.error().code != ErrorCode::interrupted || !PyErr_Occurred()) set_error(failure.error());
  } catch (nb::python_error& error) {
    error.restore();
  } catch (const std::bad_alloc&) {
    PyErr_NoMemory();
  } catch (const std::exception& error) {
    PyErr_SetString(PyExc_RuntimeError, error.what());
  }
  return nullptr;
}

}  // namespace hocket
