// torch tensors, read through their Python attributes: linking against torch's C++ would tie hocket to one version of
// it.
#pragma once

#include <Python.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/shape.hpp"
#include "core/types.hpp"

namespace hocket {

struct ArrayRules;

struct TensorFacts {
  std::byte* data;
  size_t nbytes;
  DType dtype;
  bool is_contiguous;
  std::vector<int64_t> shape;       // only where not contiguous
  std::vector<int64_t> strides;     // bytes
  std::optional<uintptr_t> stream;  // of torch, on which a tensor of a CUDA device is worked on
};

// False as long as torch is not loaded.
bool is_tensor(PyObject* object);
// Throws Failure for a tensor that cannot be used, PythonError if torch raised.
TensorFacts read_tensor(PyObject* tensor, const ArrayRules& rules);
// Unknown where a subclass has made something else of it.
Shape shape_of_tensor(PyObject* tensor);
// Whether a tensor still has the memory, size, type and layout of a contiguous or strided tensor on the host, or of one
// on a device, that was read before.
bool is_same_tensor(PyObject* tensor, const TensorFacts& before);
// A new reference to the storage of a tensor, which keeps its memory whatever the tensor has later, and its size.
PyObject* storage_of(PyObject* tensor, size_t* nbytes);
size_t storage_nbytes(PyObject* storage);
// Tells autograd that the tensor was written, as every in-place operation of torch does.
void mark_written(PyObject* tensor);

}  // namespace hocket
