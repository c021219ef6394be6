#include "bind/arrays.hpp"

#include <nanobind/stl/vector.h>

#include <string>

#include "bind/errors.hpp"
#include "bind/tensor.hpp"

namespace hocket {

namespace {

[[noreturn]] void invalid_type(const ArrayRules& rules, const std::string& what) {
  throw Failure(ErrorCode::invalid_type, std::string("argument ") + rules.argument + ": " + what);
}

bool dtype_of_format(const char* format, DType* dtype) {
  if (!format) format = "B";
  if (*format == '@' || *format == '=' || (*format == '<' && __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)) ++format;
  if (format[0] == 'Z' && (format[1] == 'f' || format[1] == 'd') && !format[2]) {  // NumPy's for complex numbers
    *dtype = format[1] == 'f' ? DType::complex64 : DType::complex128;
    return true;
  }
  if (!*format || format[1]) return false;
  switch (*format) {
    case 'e':
      *dtype = DType::float16;
      return true;
    case 'f':
      *dtype = DType::float32;
      return true;
    case 'd':
      *dtype = DType::float64;
      return true;
    case 'b':
      *dtype = DType::int8;
      return true;
    case 'h':
      *dtype = DType::int16;
      return true;
    case 'i':
      *dtype = DType::int32;
      return true;
    case 'l':
    case 'q':
      *dtype = DType::int64;
      return true;
    case 'B':
      *dtype = DType::uint8;
      return true;
    case 'H':
      *dtype = DType::uint16;
      return true;
    case 'I':
      *dtype = DType::uint32;
      return true;
    case 'L':
    case 'Q':
      *dtype = DType::uint64;
      return true;
    case '?':
      *dtype = DType::boolean;
      return true;
    default:
      return false;
  }
}

bool is_c_contiguous(const Py_buffer& buffer) {
  if (!buffer.strides) return true;  // ctypes gives none, although they were requested
  Py_ssize_t expected = buffer.itemsize;
  for (int axis = buffer.ndim; axis-- > 0;) {
    if (buffer.shape[axis] != 1 && buffer.strides[axis] != expected) return buffer.len == 0;
    expected *= buffer.shape[axis];
  }
  return true;
}

}  // namespace

void unsupported_dtype(const ArrayRules& rules, const std::string& what) {
  std::string known;
  for (const char* dtype : kDTypeNames) known += std::string(known.empty() ? "" : ", ") + dtype;
  throw Failure(ErrorCode::unsupported_dtype, std::string("argument ") + rules.argument + ": data type " + what +
                                                  " is not supported; supported are " + known);
}

bool is_array(PyObject* object) {
  return is_tensor(object) || PyObject_CheckBuffer(object) || PyObject_HasAttrString(object, "__array_interface__") ||
         PyObject_HasAttrString(object, "__cuda_array_interface__") || PyObject_HasAttrString(object, "__dlpack__");
}

void Array::release() {
  if (buffer_.obj) PyBuffer_Release(&buffer_);  // clears buffer_.obj
  Py_CLEAR(owner_);
  Py_CLEAR(hold_);
  copy_.reset();
  device_.reset();
  is_of_device_ = false;
  data_ = nullptr;
  nbytes_ = 0;
}

// How to make an array of the object, or the operation that accepts it.
static std::string hint_for(PyObject* object, const ArrayRules& rules) {
  const std::string name = rules.argument;
  if (PyList_Check(object) || PyTuple_Check(object) || PyObject_HasAttrString(object, "__array__")) {
    if (rules.access == Access::read) return "; pass numpy.asarray(" + name + ")";
    return "; the result is written into it, so call " + name + " = numpy.asarray(" + name + ") first";
  }
  if (PyNumber_Check(object)) return "; for a number use the operations on objects, such as all_reduce_object";
  return "";
}

void Array::acquire(PyObject* object, const ArrayRules& rules) {
  if (acquire_numpy(object, rules)) [[likely]]
    return;
  if (is_tensor(object)) {
    acquire_tensor(object, rules);
  } else if (PyObject_CheckBuffer(object)) {
    acquire_buffer(object, rules);
  } else if (PyObject_HasAttrString(object, "__cuda_array_interface__")) {
    acquire_cuda_interface(object, rules);
  } else if (PyObject_HasAttrString(object, "__dlpack__")) {
    acquire_dlpack(object, rules);
  } else {
    invalid_type(rules, std::string("expected a NumPy array, a torch tensor or an object with the buffer protocol, "
                                    "DLPack or the CUDA array interface, not ") +
                            Py_TYPE(object)->tp_name + hint_for(object, rules));
  }
}

void Array::acquire_buffer(PyObject* object, const ArrayRules& rules) {
  if (PyObject_GetBuffer(object, &buffer_, PyBUF_RECORDS_RO) != 0) {
    buffer_.obj = nullptr;
    nb::python_error refused;  // kept here, because looking up attributes would clear the error
    // NumPy cannot export foreign types such as ml_dtypes.bfloat16. CuPy's arrays have the protocol only to report that
    // they are not in host memory.
    if (PyObject_HasAttrString(object, "__array_interface__")) return acquire_interface(object, rules);
    if (PyObject_HasAttrString(object, "__cuda_array_interface__")) return acquire_cuda_interface(object, rules);
    throw refused;
  }
  if (!dtype_of_format(buffer_.format, &dtype_)) {
    DType swapped;
    if (*buffer_.format == '>' && dtype_of_format(buffer_.format + 1, &swapped))
      unsupported_dtype(rules, std::string("big-endian ") + name(swapped) + ", which astype('" + name(swapped) +
                                   "') converts to this machine's,");
    const std::string format(buffer_.format);
    if (PyObject_HasAttrString(object, "dtype") && format.find_first_of("wsO") != std::string::npos)
      unsupported_dtype(rules, nb::cast<std::string>(nb::str(nb::object(nb::handle(object).attr("dtype")))) +
                                   ", which needs the operations on objects, such as all_gather_object,");
    unsupported_dtype(rules, "with buffer format '" + format + "'");
  }
  if (buffer_.readonly && rules.access == Access::write) {
    if (PyObject_HasAttrString(object, "dtype") && !PyObject_HasAttrString(object, "__setitem__"))  // NumPy's scalars
      invalid_type(rules, std::string("the result cannot be written into a scalar (") + Py_TYPE(object)->tp_name +
                              "); pass an array without axes, e.g. numpy.array(x)");
    invalid_type(rules, "the array is read-only, but the result is written into it");
  }
  data_ = static_cast<std::byte*>(buffer_.buf);
  nbytes_ = static_cast<size_t>(buffer_.len);
  if (is_c_contiguous(buffer_)) [[likely]]
    return;
  set_strided({data_,
               itemsize(dtype_),
               {buffer_.shape, buffer_.shape + buffer_.ndim},
               {buffer_.strides, buffer_.strides + buffer_.ndim}},
              rules);
}

void Array::acquire_interface(PyObject* object, const ArrayRules& rules) {
  const auto numbers = [](const nb::object& sequence) {
    std::vector<int64_t> values;
    for (nb::handle value : nb::iter(sequence)) values.push_back(nb::cast<int64_t>(value));
    return values;
  };
  const nb::handle array(object);
  const nb::object dtype = array.attr("dtype");
  const std::string name = nb::str(dtype).c_str();
  if (name != "bfloat16") unsupported_dtype(rules, name);
  const nb::object interface = array.attr("__array_interface__");
  const nb::object data = interface["data"];
  const nb::object address = data[0];
  const nb::object is_read_only = data[1];
  if (is_read_only.ptr() == Py_True && rules.access == Access::write)
    invalid_type(rules, "the array is read-only, but the result is written into it");
  owner_ = Py_NewRef(object);
  dtype_ = DType::bfloat16;
  set_strided({reinterpret_cast<std::byte*>(nb::cast<uintptr_t>(address)), itemsize(dtype_),
               numbers(array.attr("shape")), numbers(array.attr("strides"))},
              rules);
}

void Array::acquire_tensor(PyObject* object, const ArrayRules& rules) {
  TensorFacts facts = read_tensor(object, rules);
  owner_ = Py_NewRef(object);
  dtype_ = facts.dtype;
  data_ = facts.data;
  nbytes_ = facts.nbytes;
  // A living tensor does not guarantee that its memory stays: it may be exchanged (x.data = y).
  if (facts.stream) return set_foreign(reinterpret_cast<uintptr_t>(facts.data), facts.stream, nullptr);
  if (facts.is_contiguous) [[likely]]
    return;
  set_strided({facts.data, itemsize(dtype_), std::move(facts.shape), std::move(facts.strides)}, rules);
}

void Array::set_strided(StridedArray array, const ArrayRules& rules) {
  size_t count = 1;
  for (int64_t extent : array.shape) count *= static_cast<size_t>(extent);
  data_ = array.data;
  nbytes_ = count * array.itemsize;
  if (array.is_contiguous()) return;
  if (rules.access == Access::write && array.has_overlapping_items())
    throw Failure(ErrorCode::invalid_argument, std::string("argument ") + rules.argument +
                                                   ": several items of the array share memory (a stride of zero), so a "
                                                   "result cannot be written into it; pass a copy");
  copy_ = std::make_unique_for_overwrite<std::byte[]>(nbytes_);
  array.gather_into(copy_.get());
  strided_ = std::move(array);
  data_ = copy_.get();
}

void Array::hold_memory() {
  if (hold_) return;
  if (owner_ && is_tensor(owner_)) {
    hold_ = storage_of(owner_, &storage_nbytes_);
  } else if (PyObject* array = find_numpy_owner(buffer_.obj ? buffer_.obj : owner_)) {
    hold_ = PyWeakref_NewRef(array, nullptr);
    if (!hold_) throw PythonError();
  }
}

Shape Array::shape() const {
  if (buffer_.obj) return buffer_.shape ? Shape::of(buffer_.shape, buffer_.ndim) : Shape{};
  if (!owner_) return {};
  return is_tensor(owner_) ? shape_of_tensor(owner_) : numpy_shape();
}

bool Array::has_changed() const {
  if (!owner_) return false;
  if (!is_tensor(owner_)) return has_numpy_changed();
  const bool is_strided = copy_ && !device_;
  return !is_same_tensor(owner_, {const_cast<std::byte*>(address()), nbytes_, dtype_, !is_strided, strided_.shape,
                                  strided_.strides, std::nullopt}) ||
         (hold_ && storage_nbytes(hold_) != storage_nbytes_);
}

void Array::extent(const std::byte** begin, const std::byte** end) const {
  *begin = data_;
  *end = data_ + nbytes_;
  if (device_) {
    *begin = reinterpret_cast<const std::byte*>(device_->address);  // NOLINT
    *end = *begin + nbytes_;
  } else if (copy_) {
    strided_.extent(begin, end);
  }
}

bool Array::overlaps(const Array& other) const {
  const std::byte *begin, *end, *other_begin, *other_end;
  extent(&begin, &end);
  other.extent(&other_begin, &other_end);
  if (begin >= other_end || other_begin >= end) [[likely]]
    return false;
  return share_bytes(as_given(), other.as_given());
}

StridedArray Array::as_given() const {
  if (copy_ && !device_) return strided_;
  const std::byte *begin, *end;
  extent(&begin, &end);
  return {const_cast<std::byte*>(begin), 1, {end - begin}, {1}};
}

}  // namespace hocket
