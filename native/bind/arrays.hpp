// Arrays as they come from Python: NumPy and anything else with the buffer protocol, ml_dtypes' bfloat16, torch
// tensors, and what speaks DLPack or the CUDA array interface.
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

// The NumPy array that owns the memory of another one, or of a view of it that speaks the buffer protocol; null: none.
PyObject* find_numpy_owner(PyObject* object);

// Whether an object is one array, as far as that shows without asking for its memory.
bool is_array(PyObject* object);

// Keeps its array's memory valid while it lives. Everything but data(), nbytes() and dtype() needs the GIL.
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
  // As its owner has it now, with the GIL; unknown of arrays that are known by an address alone.
  Shape shape() const;

  bool is_given() const { return owner_ || buffer_.obj; }
  // Lies in the memory of a device, and has no copy on the host; without bytes it lies nowhere, and says so all the
  // same.
  bool is_on_device() const { return is_of_device_ && !copy_; }
  const DeviceMemory* device() const { return device_.get(); }
  // Makes the copy on the host.
  void stage();

  // A non-contiguous array, or one that was staged, is worked on in a copy; write_back() brings the copy home and may
  // run without the GIL. Both throw Failure if a device fails.
  bool is_copy() const { return copy_ != nullptr; }
  void write_back() const {
    if (device_)
      device_->write(copy_.get(), nbytes_);
    else
      strided_.scatter_from(copy_.get());
  }
  // Waits for whatever works on a device's memory, which may be that of another allocation by now; with the GIL.
  void look_again();
  void read_in() const {  // once more
    if (device_)
      device_->read_into(copy_.get(), nbytes_);
    else
      strided_.gather_into(copy_.get());
  }

  // Keeps the memory that the array has now while this object lives, where its owner could exchange or free it: a
  // tensor may get another storage (x.data = y), a NumPy array another size (x.resize(n, refcheck=False)), which NumPy
  // refuses then. What was freed within a storage (resize_) is gone all the same.
  void hold_memory();
  // Whether its owner has another memory, size, type or layout by now; false for owners that cannot change.
  bool has_changed() const;

  // First and one past the last byte of the array as given.
  void extent(const std::byte** begin, const std::byte** end) const;

  // Whether any byte of the two arrays as given is the same.
  bool overlaps(const Array& other) const;
  bool is_same_range(const std::byte* begin, size_t nbytes) const {
    return !copy_ && data_ == begin && nbytes_ == nbytes;
  }

 private:
  bool acquire_numpy(PyObject* object, const ArrayRules& rules);  // false: it is none that can be read that way
  bool has_numpy_changed() const;
  Shape numpy_shape() const;                                                   // unknown of other owners
  const std::byte* address() const {                                           // of the first item, as given
    if (device_) return reinterpret_cast<const std::byte*>(device_->address);  // NOLINT
    return copy_ ? strided_.data : data_;
  }
  void acquire_buffer(PyObject* object, const ArrayRules& rules);
  void acquire_tensor(PyObject* object, const ArrayRules& rules);
  void acquire_interface(PyObject* object, const ArrayRules& rules);
  void acquire_cuda_interface(PyObject* object, const ArrayRules& rules);
  void acquire_dlpack(PyObject* object, const ArrayRules& rules);
  // Memory of which only the address is known: of the host, of a device, or of both.
  void set_foreign(uintptr_t address, std::optional<uintptr_t> stream, PyObject* holder);
  void set_strided(StridedArray array, const ArrayRules& rules);
  StridedArray as_given() const;  // without the copy; in bytes where it is contiguous

  std::byte* data_ = nullptr;
  size_t nbytes_ = 0;
  DType dtype_ = DType::uint8;
  Py_buffer buffer_{};         // buffer_.obj is null where it is not used
  PyObject* owner_ = nullptr;  // of anything else
  PyObject* hold_ = nullptr;   // see hold_memory(): the storage of a tensor, or a weak reference
  size_t storage_nbytes_ = 0;  // of that storage
  StridedArray strided_;       // of a non-contiguous array
  bool is_of_device_ = false;
  std::unique_ptr<DeviceMemory> device_;
  std::unique_ptr<std::byte[]> copy_;
};

}  // namespace hocket
