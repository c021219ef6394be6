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
  std::vector<int64_t> shape;       // only if not contiguous
  std::vector<int64_t> strides;     // bytes
  std::optional<uintptr_t> stream;  // torch's current stream, for a tensor on a CUDA device
};

// False while torch is not loaded.
bool is_tensor(PyObject* object);
// Throws Failure for a tensor that cannot be used, PythonError if torch raised.
TensorFacts read_tensor(PyObject* tensor, const ArrayRules& rules);
// Unknown if a subclass has replaced the attribute.
Shape shape_of_tensor(PyObject* tensor);
// Whether a tensor still has the memory, size, type and layout that were read before, on the host or on a device.
bool is_same_tensor(PyObject* tensor, const TensorFacts& before);
// A new reference to the storage of a tensor, and its size. The storage keeps the memory even if the tensor gets other
// memory later.
PyObject* storage_of(PyObject* tensor, size_t* nbytes);
size_t storage_nbytes(PyObject* storage);
// Marks the tensor as changed for autograd, as every in-place operation of torch does.
void mark_written(PyObject* tensor);

}  // namespace hocket
