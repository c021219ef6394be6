// Arrays that are known by an address alone: the CUDA array interface (version 3 and before) and DLPack.
#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include "bind/arrays.hpp"
#include "bind/errors.hpp"
#include "bind/pointer_cache.hpp"

namespace hocket {

namespace {

constexpr uintptr_t kDefaultStream = 1;  // CUDA's, as the interface and its driver number it

[[noreturn]] void invalid(const ArrayRules& rules, const std::string& what) {
  throw Failure(ErrorCode::invalid_type, std::string("argument ") + rules.argument + ": " + what);
}

// "<f4" and the like.
bool dtype_of_typestr(const std::string& typestr, DType* dtype) {
  static constexpr std::pair<const char*, DType> kKnown[] = {
      {"f2", DType::float16},   {"f4", DType::float32},    {"f8", DType::float64}, {"i1", DType::int8},
      {"i2", DType::int16},     {"i4", DType::int32},      {"i8", DType::int64},   {"u1", DType::uint8},
      {"u2", DType::uint16},    {"u4", DType::uint32},     {"u8", DType::uint64},  {"b1", DType::boolean},
      {"c8", DType::complex64}, {"c16", DType::complex128}};
  if (typestr.size() < 3 || typestr[0] == '>') return false;
  for (const auto& [name, each] : kKnown)
    if (typestr.compare(1, std::string::npos, name) == 0) {
      *dtype = each;
      return true;
    }
  return false;
}

bool dtype_of_dlpack(nb::dlpack::dtype given, DType* dtype) {
  using Code = nb::dlpack::dtype_code;
  static constexpr std::tuple<Code, int, DType> kKnown[] = {{Code::Float, 16, DType::float16},
                                                            {Code::Bfloat, 16, DType::bfloat16},
                                                            {Code::Float, 32, DType::float32},
                                                            {Code::Float, 64, DType::float64},
                                                            {Code::Int, 8, DType::int8},
                                                            {Code::Int, 16, DType::int16},
                                                            {Code::Int, 32, DType::int32},
                                                            {Code::Int, 64, DType::int64},
                                                            {Code::UInt, 8, DType::uint8},
                                                            {Code::UInt, 16, DType::uint16},
                                                            {Code::UInt, 32, DType::uint32},
                                                            {Code::UInt, 64, DType::uint64},
                                                            {Code::Bool, 8, DType::boolean},
                                                            {Code::Complex, 64, DType::complex64},
                                                            {Code::Complex, 128, DType::complex128}};
  for (const auto& [code, bits, each] : kKnown)
    if (given.code == static_cast<uint8_t>(code) && given.bits == bits && given.lanes == 1) {
      *dtype = each;
      return true;
    }
  return false;
}

std::vector<int64_t> numbers(const nb::handle& sequence) {
  std::vector<int64_t> values;
  for (nb::handle value : nb::iter(sequence)) values.push_back(nb::cast<int64_t>(value));
  return values;
}

}  // namespace

void Array::acquire_cuda_interface(PyObject* object, const ArrayRules& rules) {
  const nb::dict interface = nb::cast<nb::dict>(nb::handle(object).attr("__cuda_array_interface__"));
  const std::string typestr = nb::cast<std::string>(interface["typestr"]);
  if (!dtype_of_typestr(typestr, &dtype_)) unsupported_dtype(rules, typestr);
  if (interface.contains("mask") && !interface["mask"].is_none()) invalid(rules, "masked arrays are not supported");
  const nb::tuple data = nb::cast<nb::tuple>(interface["data"]);
  if (rules.access == Access::write && nb::cast<bool>(data[1]))
    invalid(rules, "the array is read-only, but the result is written into it");
  StridedArray array{nullptr, itemsize(dtype_), numbers(interface["shape"]), {}};
  if (interface.contains("strides") && !interface["strides"].is_none()) {
    array.strides = numbers(interface["strides"]);
    if (!array.is_contiguous()) invalid(rules, "an array known by its address must be contiguous; pass a copy");
  }
  nbytes_ = array.itemsize;
  for (int64_t extent : array.shape) nbytes_ *= static_cast<size_t>(extent);
  std::optional<uintptr_t> stream;
  if (interface.contains("stream") && !interface["stream"].is_none())
    stream = nb::cast<uintptr_t>(interface["stream"]);
  else if (nb::cast<int>(interface["version"]) >= 3)
    // No stream means that streams of this process need not wait. But Numba exports arrays like this while the default
    // stream is still filling them, and other processes will read them.
    stream = kDefaultStream;
  owner_ = Py_NewRef(object);
  set_foreign(nb::cast<uintptr_t>(data[0]), stream, object);
}

void Array::acquire_dlpack(PyObject* object, const ArrayRules& rules) {
  nb::ndarray<nb::ro> array;
  nb::ndarray<> writable;
  const nb::handle given(object);
  if (rules.access == Access::write && nb::try_cast<nb::ndarray<>>(given, writable)) {
    array = nb::ndarray<nb::ro>(writable.handle());
  } else {
    PyErr_Clear();
    const bool is_readable = nb::try_cast<nb::ndarray<nb::ro>>(given, array);
    PyErr_Clear();
    if (!is_readable)
      invalid(rules, std::string("the object of type ") + Py_TYPE(object)->tp_name + " gave no array through DLPack");
    if (rules.access == Access::write) invalid(rules, "the array is read-only, but the result is written into it");
  }
  if (!dtype_of_dlpack(array.dtype(), &dtype_)) {
    const nb::dlpack::dtype dtype = array.dtype();
    unsupported_dtype(rules, "of DLPack's code " + std::to_string(dtype.code) + " with " + std::to_string(dtype.bits) +
                                 " bits and " + std::to_string(dtype.lanes) + " lanes");
  }
  StridedArray strided{nullptr, itemsize(dtype_), {}, {}};
  for (size_t axis = 0; axis < array.ndim(); ++axis) {
    strided.shape.push_back(static_cast<int64_t>(array.shape(axis)));
    strided.strides.push_back(array.stride(axis) * static_cast<int64_t>(itemsize(dtype_)));
  }
  // The capsule keeps the memory; this object keeps the capsule.
  auto* keeper = new nb::ndarray<nb::ro>(array);
  owner_ = nb::capsule(keeper, [](void* pointer) noexcept { delete static_cast<nb::ndarray<nb::ro>*>(pointer); })
               .release()
               .ptr();
  auto* data = static_cast<std::byte*>(const_cast<void*>(static_cast<const void*>(array.data())));
  const int device = array.device_type();
  if (device == nb::device::cpu::value || device == nb::device::cuda_host::value ||
      device == nb::device::rocm_host::value) {
    strided.data = data;
    set_strided(std::move(strided), rules);
    return;
  }
  if (!strided.is_contiguous()) invalid(rules, "an array in device memory must be contiguous; pass a copy");
  nbytes_ = array.nbytes();
  // The producer has ensured that the default stream may read it.
  set_foreign(reinterpret_cast<uintptr_t>(data), std::nullopt, object);
}

void Array::set_foreign(uintptr_t address, std::optional<uintptr_t> stream, PyObject* holder) {
  data_ = reinterpret_cast<std::byte*>(address);  // NOLINT
  is_of_device_ = nbytes_ == 0;
  if (nbytes_ == 0) return;
  const std::shared_ptr<MemoryDriver> driver = memory_driver();
  const Buffer buffer = pointer_cache().find(*driver, address, holder);
  if (address + nbytes_ > buffer.end && buffer.kind == MemoryKind::device)
    throw Failure(ErrorCode::invalid_argument,
                  "an array of " + std::to_string(nbytes_) + " bytes does not fit into its allocation of " +
                      std::to_string(buffer.end - buffer.begin) + " bytes of device memory");
  if (buffer.kind != MemoryKind::host) driver->synchronize(buffer.device, stream ? &*stream : nullptr);
  if (buffer.kind != MemoryKind::device) return;
  is_of_device_ = true;
  device_ = std::make_unique<DeviceMemory>(DeviceMemory{driver, address, buffer});
}

void Array::refresh_device() {
  if (!device_) return;
  device_->buffer = pointer_cache().find(*device_->driver, device_->address, nullptr);
  device_->driver->synchronize(device_->buffer.device, nullptr);
}

void Array::stage() {
  if (!device_ || copy_) return;
  copy_ = std::make_unique_for_overwrite<std::byte[]>(nbytes_);
  device_->read_into(copy_.get(), nbytes_);
  data_ = copy_.get();
}

}  // namespace hocket
