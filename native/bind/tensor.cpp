#include "bind/tensor.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <array>
#include <string>

#include "bind/arrays.hpp"
#include "bind/errors.hpp"

namespace hocket {

namespace {

// The attributes of the torch module that are used here, looked up once.
struct Torch {
  PyTypeObject* tensor_type = nullptr;
  std::array<PyObject*, kNumDTypes> dtypes{};
  PyObject* strided_layout = nullptr;
  PyObject* is_grad_enabled = nullptr;
  PyObject* increment_version = nullptr;
};

PyObject* interned(const char* text) { return PyUnicode_InternFromString(text); }

// References are kept for the life of the process, like torch itself.
Torch* torch_or_null() {
  static Torch torch;
  if (torch.tensor_type) return &torch;
  static PyObject* torch_name = interned("torch");
  nb::object module = nb::steal(PyImport_GetModule(torch_name));
  // While torch is being imported, its attributes appear one by one, and no tensor exists yet.
  if (!module.is_valid() || !PyObject_HasAttrString(module.ptr(), "Tensor") ||
      !PyObject_HasAttrString(module.ptr(), "is_grad_enabled") || !PyObject_HasAttrString(module.ptr(), "strided")) {
    PyErr_Clear();
    return nullptr;
  }
  for (size_t i = 0; i < kNumDTypes; ++i) torch.dtypes[i] = nb::object(module.attr(kDTypeNames[i])).release().ptr();
  torch.strided_layout = nb::object(module.attr("strided")).release().ptr();
  torch.is_grad_enabled = nb::object(module.attr("is_grad_enabled")).release().ptr();
  torch.increment_version = nb::object(module.attr("_C").attr("_increment_version")).release().ptr();
  torch.tensor_type = reinterpret_cast<PyTypeObject*>(nb::object(module.attr("Tensor")).release().ptr());
  return &torch;
}

nb::object get(PyObject* object, PyObject* name) {
  PyObject* value = PyObject_GetAttr(object, name);
  if (!value) throw PythonError();
  return nb::steal(value);
}

nb::object call(PyObject* object, PyObject* method) {
  PyObject* value = PyObject_CallMethodNoArgs(object, method);
  if (!value) throw PythonError();
  return nb::steal(value);
}

bool is_true(PyObject* object, PyObject* name) { return get(object, name).ptr() == Py_True; }

// The stream on which torch uses a device's memory at present, in this thread.
uintptr_t current_stream(const nb::object& device) {
  const nb::object stream = nb::module_::import_("torch.cuda").attr("current_stream")(device);
  return nb::cast<uintptr_t>(stream.attr("cuda_stream"));
}

std::string text_of(PyObject* object, PyObject* name) { return nb::cast<std::string>(nb::str(get(object, name))); }

}  // namespace

bool is_tensor(PyObject* object) {
  // Tensors have no buffer protocol. NumPy arrays have it, and need no lookup of imported modules.
  const PyBufferProcs* buffers = Py_TYPE(object)->tp_as_buffer;
  if (buffers && buffers->bf_getbuffer) return false;
  const Torch* torch = torch_or_null();
  return torch && PyType_IsSubtype(Py_TYPE(object), torch->tensor_type);
}

TensorFacts read_tensor(PyObject* tensor, const ArrayRules& rules) {
  static PyObject *dtype = interned("dtype"), *is_cpu = interned("is_cpu"), *is_cuda = interned("is_cuda"),
                  *layout = interned("layout"), *requires_grad = interned("requires_grad"),
                  *data_ptr = interned("data_ptr"), *numel = interned("numel"),
                  *is_contiguous = interned("is_contiguous"), *device = interned("device"), *shape = interned("shape"),
                  *stride = interned("stride"), *is_neg = interned("is_neg"), *is_conj = interned("is_conj");
  const Torch& torch = *torch_or_null();
  const auto invalid = [&](const std::string& what) {
    throw Failure(ErrorCode::invalid_type, std::string("argument ") + rules.argument + ": " + what);
  };
  TensorFacts facts{};
  const nb::object its_dtype = get(tensor, dtype);
  size_t i = 0;
  while (i < kNumDTypes && torch.dtypes[i] != its_dtype.ptr()) ++i;
  if (i == kNumDTypes) {
    std::string known;
    for (const char* each : kDTypeNames) known += std::string(known.empty() ? "" : ", ") + each;
    throw Failure(ErrorCode::unsupported_dtype, std::string("argument ") + rules.argument + ": data type " +
                                                    text_of(tensor, dtype) + " is not supported; supported are " +
                                                    known);
  }
  facts.dtype = static_cast<DType>(i);
  const bool is_on_cuda = !is_true(tensor, is_cpu) && is_true(tensor, is_cuda);
  if (!is_on_cuda && !is_true(tensor, is_cpu))
    invalid("the tensor is on device " + text_of(tensor, device) + "; hocket supports the cpu and CUDA devices");
  if (get(tensor, layout).ptr() != torch.strided_layout)
    invalid("the tensor has layout " + text_of(tensor, layout) + "; only dense (strided) tensors are supported");
  if (rules.access == Access::write && rules.check_grad && is_true(tensor, requires_grad)) {
    PyObject* enabled = PyObject_CallNoArgs(torch.is_grad_enabled);
    if (!enabled) throw PythonError();
    Py_DECREF(enabled);
    if (enabled == Py_True)
      throw Failure(ErrorCode::invalid_argument,
                    std::string("argument ") + rules.argument +
                        ": the tensor requires grad and would be written in place, which autograd cannot follow; use "
                        "torch.no_grad() or x.detach()");
  }
  facts.data = reinterpret_cast<std::byte*>(PyLong_AsUnsignedLongLong(call(tensor, data_ptr).ptr()));
  if (PyErr_Occurred()) throw PythonError();
  const size_t count = PyLong_AsSize_t(call(tensor, numel).ptr());
  facts.nbytes = count * itemsize(facts.dtype);
  if (!facts.data && count != 0)
    invalid("the tensor has " + std::to_string(count) + " items but no memory; its storage was resized to 0 bytes");
  facts.is_contiguous = call(tensor, is_contiguous).ptr() == Py_True;
  if (is_on_cuda) {
    if (!facts.is_contiguous)
      invalid("a tensor in device memory must be contiguous; pass x.contiguous(), and copy the result back");
    facts.stream = current_stream(get(tensor, device));
  }
  if (is_complex(facts.dtype) && call(tensor, is_conj).ptr() == Py_True)
    invalid("the tensor is a lazily conjugated view; call resolve_conj() first");
  if (facts.is_contiguous && count != 1) return facts;
  // Lazily negated views always have a stride of two items: they are the imaginary parts of complex numbers.
  if (call(tensor, is_neg).ptr() == Py_True) invalid("the tensor is a lazily negated view; call resolve_neg() first");
  if (facts.is_contiguous) return facts;
  for (nb::handle extent : nb::iter(get(tensor, shape))) facts.shape.push_back(nb::cast<int64_t>(extent));
  for (nb::handle step : nb::iter(call(tensor, stride)))
    facts.strides.push_back(nb::cast<int64_t>(step) * static_cast<int64_t>(itemsize(facts.dtype)));
  return facts;
}

Shape shape_of_tensor(PyObject* tensor) {
  static PyObject* const shape = interned("shape");
  const nb::object size = nb::steal(PyObject_GetAttr(tensor, shape));
  std::array<size_t, Shape::kMostAxes> extents{};
  const Py_ssize_t num_axes = size.is_valid() && PyTuple_Check(size.ptr()) ? PyTuple_GET_SIZE(size.ptr()) : -1;
  for (Py_ssize_t axis = 0; axis < num_axes && axis < Shape::kMostAxes; ++axis)
    extents[static_cast<size_t>(axis)] = PyLong_AsSize_t(PyTuple_GET_ITEM(size.ptr(), axis));
  const bool is_known = num_axes >= 0 && num_axes <= Shape::kMostAxes && !PyErr_Occurred();
  PyErr_Clear();  // the shape is needed only for the text of an error
  return is_known ? Shape::of(extents.data(), static_cast<int>(num_axes)) : Shape{};
}

bool is_same_tensor(PyObject* tensor, const TensorFacts& before) {
  static PyObject *dtype = interned("dtype"), *data_ptr = interned("data_ptr"), *numel = interned("numel"),
                  *is_contiguous = interned("is_contiguous"), *shape = interned("shape"), *stride = interned("stride");
  if (get(tensor, dtype).ptr() != torch_or_null()->dtypes[static_cast<size_t>(before.dtype)]) return false;
  if (PyLong_AsUnsignedLongLong(call(tensor, data_ptr).ptr()) != reinterpret_cast<uintptr_t>(before.data)) return false;
  const size_t size = itemsize(before.dtype);
  if (PyLong_AsSize_t(call(tensor, numel).ptr()) * size != before.nbytes) return false;
  if ((call(tensor, is_contiguous).ptr() == Py_True) != before.is_contiguous) return false;
  if (before.is_contiguous) return true;
  std::vector<int64_t> now;
  for (nb::handle extent : nb::iter(get(tensor, shape))) now.push_back(nb::cast<int64_t>(extent));
  if (now != before.shape) return false;
  now.clear();
  for (nb::handle step : nb::iter(call(tensor, stride)))
    now.push_back(nb::cast<int64_t>(step) * static_cast<int64_t>(size));
  return now == before.strides;
}

PyObject* storage_of(PyObject* tensor, size_t* nbytes) {
  static PyObject* untyped_storage = interned("untyped_storage");
  nb::object storage = call(tensor, untyped_storage);
  *nbytes = storage_nbytes(storage.ptr());
  return storage.release().ptr();
}

size_t storage_nbytes(PyObject* storage) {
  static PyObject* nbytes = interned("nbytes");
  return PyLong_AsSize_t(call(storage, nbytes).ptr());
}

void mark_written(PyObject* tensor) {
  PyObject* tensors = PyTuple_Pack(1, tensor);
  if (!tensors) throw PythonError();
  PyObject* none = PyObject_CallOneArg(torch_or_null()->increment_version, tensors);
  Py_DECREF(tensors);
  if (!none) throw PythonError();
  Py_DECREF(none);
}

}  // namespace hocket
