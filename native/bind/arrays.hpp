// Arrays from Python: NumPy arrays and other objects with the buffer protocol, ml_dtypes' bfloat16, torch tensors, and
// objects with DLPack or the CUDA array interface.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>
#include <optional>

#include "bind/device_memory.hpp"
#include "bind/strided.hpp"
#include "core/shape.hpp"
#include "core/types.hpp"

namespace hocket {

enum class Access : uint8_t { read, write };

struct ArrayRules {
  const char* argument = "x";  // its name, for messages
  Access access = Access::write;
  bool check_grad = true;  // whether a tensor that requires grad may not be written (with grad mode on)
};

[[noreturn]] void unsupported_dtype(const ArrayRules& rules, const std::string& what);  // throws Failure

// The NumPy array that owns the memory of a NumPy array, or of a view of it with the buffer protocol; null: none.
PyObject* find_numpy_owner(PyObject* object);

// Whether an object is one array, as far as can be determined without acquiring its memory.
bool is_array(PyObject* object);

// Keeps its array's memory valid while it lives. All methods except data(), nbytes() and dtype() need the GIL.
class Array {
 public:
  Array() = default;
  ~Array() { release(); }
  Array(const Array&) = delete;
  Array& operator=(const Array&) = delete;

  // Throws Failure (InvalidType, UnsupportedDtype) or PythonError.
  void acquire(PyObject* object, const ArrayRules& rules);
  void release();

  std::byte* data() const { return data_; }
  size_t nbytes() const { return nbytes_; }
  DType dtype() const { return dtype_; }
  // The owner's current shape; needs the GIL. Unknown for arrays that are known by an address alone.
  Shape shape() const;

  bool is_given() const { return owner_ || buffer_.obj; }
  // Whether the array is in device memory and has no copy on the host; also true for a device array without bytes.
  bool is_on_device() const { return is_of_device_ && !copy_; }
  const DeviceMemory* device() const { return device_.get(); }
  // Makes the copy on the host.
  void stage();

  // Operations work on a copy of a non-contiguous or staged array; write_back() copies it back and may run without the
  // GIL. Both throw Failure if a device fails.
  bool is_copy() const { return copy_ != nullptr; }
  void write_back() const {
    if (device_)
      device_->write(copy_.get(), nbytes_);
    else
      strided_.scatter_from(copy_.get());
  }
  // Waits for pending work on a device's memory, and notes if the memory now belongs to another allocation; with the
  // GIL.
  void refresh_device();
  void read_in() const {  // fills the copy again
    if (device_)
      device_->read_into(copy_.get(), nbytes_);
    else
      strided_.gather_into(copy_.get());
  }

  // Keeps the array's present memory while this object lives, if its owner could exchange or free it: a tensor may get
  // another storage (x.data = y); a NumPy array could be resized (x.resize(n, refcheck=False)), which NumPy then
  // refuses. Memory that is freed within a storage (resize_) is not protected.
  void hold_memory();
  // Whether its owner now has another memory, size, type or layout; false for owners that cannot change.
  bool has_changed() const;

  // First and one past the last byte of the array as given.
  void extent(const std::byte** begin, const std::byte** end) const;

  // Whether the two arrays, as given, have a byte in common.
  bool overlaps(const Array& other) const;
  bool is_same_range(const std::byte* begin, size_t nbytes) const {
    return !copy_ && data_ == begin && nbytes_ == nbytes;
  }

 private:
  bool acquire_numpy(PyObject* object, const ArrayRules& rules);  // false: not readable in this way
  bool has_numpy_changed() const;
  Shape numpy_shape() const;                                                   // unknown for other owners
  const std::byte* address() const {                                           // of the first item, as given
    if (device_) return reinterpret_cast<const std::byte*>(device_->address);  // NOLINT
    return copy_ ? strided_.data : data_;
  }
  void acquire_buffer(PyObject* object, const ArrayRules& rules);
  void acquire_tensor(PyObject* object, const ArrayRules& rules);
  void acquire_interface(PyObject* object, const ArrayRules& rules);
  void acquire_cuda_interface(PyObject* object, const ArrayRules& rules);
  void acquire_dlpack(PyObject* object, const ArrayRules& rules);
  // Memory that is known by its address only; it may belong to the host, to a device, or to both.
  void set_foreign(uintptr_t address, std::optional<uintptr_t> stream, PyObject* holder);
  void set_strided(StridedArray array, const ArrayRules& rules);
  StridedArray as_given() const;  // the array itself, not the copy; as bytes if it is contiguous

  std::byte* data_ = nullptr;
  size_t nbytes_ = 0;
  DType dtype_ = DType::uint8;
  Py_buffer buffer_{};         // buffer_.obj is null if it is not used
  PyObject* owner_ = nullptr;  // the owner of any other memory
  PyObject* hold_ = nullptr;   // see hold_memory(): the storage of a tensor, or a weak reference
  size_t storage_nbytes_ = 0;  // of that storage
  StridedArray strided_;       // of a non-contiguous array
  bool is_of_device_ = false;
  std::unique_ptr<DeviceMemory> device_;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace hocket
