// The arrays of one call, from the call until the operation is over.
#pragma once

#include <memory>
#include <vector>

#include "bind/arrays.hpp"
#include "bind/errors.hpp"
#include "core/blocks.hpp"
#include "core/work.hpp"

namespace hocket {

// The arrays of one call. On the heap, because a Py_buffer may point into itself and a pending operation keeps them;
// one spare is kept, so that a short operation allocates nothing.
struct Arrays {
  Array in;
  Array out;
  Array* written = nullptr;
  nb::object written_object;
  nb::object communicator;  // must outlive its operations, because it reports those that fail
  // For a coalesced operation: its arrays, which are sent one after another in a buffer, and the tensors among the
  // arrays that are written.
  std::vector<std::unique_ptr<Array>> parts;
  std::unique_ptr<std::byte[]> buffer;
  std::vector<nb::object> written_parts;
  bool writes_parts = false;
  std::shared_ptr<const Blocks> blocks;  // for an operation with counts
  DeviceArrays device;                   // for an operation on device arrays

  bool is_on_device() const { return in.is_on_device() || out.is_on_device(); }
  // Gives the operation its arrays if all are in the memory of one device; otherwise stages them on the host.
  void set_device(Operation& op);
  void note_buffers();  // notes the allocations that contain them
  // Gives the operation copies on the host.
  void stage(Operation& op);

  // Whether the operation works on a copy of the caller's arrays, which must be filled before it and written back after
  // it. Neither step needs the GIL.
  bool has_copies() const { return in.is_copy() || out.is_copy() || buffer; }
  void read_in() const;
  void refresh_device();  // for arrays that may have been changed, or got other memory, since; with the GIL
  void write_back() const;
  void hold_memory();
  bool have_changed() const;
  ByteRange reads() const;
  ByteRange writes() const;
};
class ArraysPool {
 public:
  std::unique_ptr<Arrays> take() { return spare_ ? std::move(spare_) : std::make_unique<Arrays>(); }
  void give_back(std::unique_ptr<Arrays> arrays) {
    arrays->in.release();
    arrays->out.release();
    arrays->written = nullptr;
    arrays->written_object.reset();
    arrays->communicator.reset();
    arrays->blocks.reset();
    if (arrays->device.driver) [[unlikely]]
      arrays->device = {};
    if (!arrays->parts.empty()) return;  // rare, and large
    spare_ = std::move(arrays);
  }

 private:
  std::unique_ptr<Arrays> spare_;
};

ArraysPool& arrays_pool();

// Keeps the arrays and their present memory until the operation is finished, on any thread.
std::shared_ptr<void> pin(std::unique_ptr<Arrays> arrays, PyObject* communicator);
// Releases them at once; with the GIL, and without the progress lock, because their destructors may take it.
void release_pins(std::shared_ptr<void>& pins);
// Releases the arrays of operations that finished elsewhere, e.g. under that lock; called by the next call with the
// GIL.
void release_finished_arrays();

}  // namespace hocket
