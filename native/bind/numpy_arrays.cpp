// NumPy's own arrays, read directly as structs: the buffer protocol takes NumPy 0.1 us per call, as long as the rest of
// a small operation.
#define NPY_NO_DEPRECATED_API NPY_2_0_API_VERSION
#define NPY_TARGET_VERSION NPY_1_22_API_VERSION
#include <numpy/ndarraytypes.h>

#include <cstring>

#include "bind/arrays.hpp"
#include "bind/errors.hpp"

namespace hocket {

namespace {

// Null until NumPy is imported. Only fields of structs are read, because NumPy's C API would need an import.
PyTypeObject* ndarray_type(PyObject* object) {
  static PyTypeObject* type = nullptr;
  if (type || std::strcmp(Py_TYPE(object)->tp_name, "numpy.ndarray") != 0) return type;
  static PyObject* const numpy = PyUnicode_InternFromString("numpy");
  const nb::object module = nb::steal(PyImport_GetModule(numpy));
  if (module.is_valid()) type = reinterpret_cast<PyTypeObject*>(nb::object(module.attr("ndarray")).release().ptr());
  PyErr_Clear();
  return type;
}

bool dtype_of_number(int number, DType* dtype) {
  switch (number) {
    case NPY_HALF:
      *dtype = DType::float16;
      return true;
    case NPY_FLOAT:
      *dtype = DType::float32;
      return true;
    case NPY_DOUBLE:
      *dtype = DType::float64;
      return true;
    case NPY_BYTE:
      *dtype = DType::int8;
      return true;
    case NPY_SHORT:
      *dtype = DType::int16;
      return true;
    case NPY_INT:
      *dtype = DType::int32;
      return true;
    case NPY_LONG:
    case NPY_LONGLONG:
      static_assert(sizeof(npy_long) == 8);
      *dtype = DType::int64;
      return true;
    case NPY_UBYTE:
      *dtype = DType::uint8;
      return true;
    case NPY_USHORT:
      *dtype = DType::uint16;
      return true;
    case NPY_UINT:
      *dtype = DType::uint32;
      return true;
    case NPY_ULONG:
    case NPY_ULONGLONG:
      *dtype = DType::uint64;
      return true;
    case NPY_BOOL:
      *dtype = DType::boolean;
      return true;
    case NPY_CFLOAT:
      *dtype = DType::complex64;
      return true;
    case NPY_CDOUBLE:
      *dtype = DType::complex128;
      return true;
    default:
      return false;
  }
}

}  // namespace

bool Array::acquire_numpy(PyObject* object, const ArrayRules& rules) {
  if (Py_TYPE(object) != ndarray_type(object)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(object);
  const PyArray_Descr* descr = PyArray_DESCR(array);
  const int flags = PyArray_FLAGS(array);
  // All other arrays, and wrong ones, are left to the buffer protocol.
  if (!PyArray_ISNBO(descr->byteorder) || !(flags & NPY_ARRAY_ALIGNED) || !dtype_of_number(descr->type_num, &dtype_) ||
      (rules.access == Access::write && !(flags & NPY_ARRAY_WRITEABLE))) [[unlikely]]
    return false;
  owner_ = Py_NewRef(object);
  data_ = static_cast<std::byte*>(PyArray_DATA(array));
  const int num_axes = PyArray_NDIM(array);
  const npy_intp* shape = PyArray_DIMS(array);
  if (flags & NPY_ARRAY_C_CONTIGUOUS) [[likely]] {
    nbytes_ = itemsize(dtype_);
    for (int axis = 0; axis < num_axes; ++axis) nbytes_ *= static_cast<size_t>(shape[axis]);
    return true;
  }
  const npy_intp* strides = PyArray_STRIDES(array);
  set_strided({data_, itemsize(dtype_), {shape, shape + num_axes}, {strides, strides + num_axes}}, rules);
  return true;
}

Shape Array::numpy_shape() const {
  if (Py_TYPE(owner_) != ndarray_type(owner_)) return {};
  auto* array = reinterpret_cast<PyArrayObject*>(owner_);
  return Shape::of(PyArray_DIMS(array), PyArray_NDIM(array));
}

bool Array::has_numpy_changed() const {
  if (Py_TYPE(owner_) != ndarray_type(owner_)) return false;
  auto* array = reinterpret_cast<PyArrayObject*>(owner_);
  DType dtype = dtype_;  // NumPy has no number for bfloat16
  dtype_of_number(PyArray_DESCR(array)->type_num, &dtype);
  const auto num_axes = static_cast<size_t>(PyArray_NDIM(array));
  const npy_intp* shape = PyArray_DIMS(array);
  size_t nbytes = itemsize(dtype);
  for (size_t axis = 0; axis < num_axes; ++axis) nbytes *= static_cast<size_t>(shape[axis]);
  if (PyArray_DATA(array) != address() || dtype != dtype_ || nbytes != nbytes_) return true;
  if (!copy_) return !(PyArray_FLAGS(array) & NPY_ARRAY_C_CONTIGUOUS);
  const npy_intp* strides = PyArray_STRIDES(array);
  return strided_.shape != std::vector<int64_t>(shape, shape + num_axes) ||
         strided_.strides != std::vector<int64_t>(strides, strides + num_axes);
}

PyObject* find_numpy_owner(PyObject* object) {
  while (object && PyMemoryView_Check(object)) object = PyMemoryView_GET_BASE(object);
  PyTypeObject* type = object ? ndarray_type(object) : nullptr;
  if (!type || !PyType_IsSubtype(Py_TYPE(object), type)) return nullptr;
  while (true) {
    PyObject* base = PyArray_BASE(reinterpret_cast<PyArrayObject*>(object));
    while (base && PyMemoryView_Check(base)) base = PyMemoryView_GET_BASE(base);
    if (!base || !PyType_IsSubtype(Py_TYPE(base), type)) return object;
    object = base;
  }
}

}  // namespace hocket
