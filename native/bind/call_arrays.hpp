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
  nb::object communicator;  // lives as long as its operations: it has to tell of those that fail
  // Of a coalesced operation: its arrays, which travel one behind the other in a buffer, and the tensors among those
  // that are written.
  std::vector<std::unique_ptr<Array>> parts;
  std::unique_ptr<std::byte[]> buffer;
  std::vector<nb::object> written_parts;
  bool writes_parts = false;
  std::shared_ptr<const Blocks> blocks;  // of an operation with counts
  DeviceArrays device;                   // of an operation that has any

  bool is_on_device() const { return in.is_on_device() || out.is_on_device(); }
  // Tells the operation of its arrays in the memory of one device, or stages those that others do not go with.
  void set_device(Operation& op);
  void note_buffers();  // the allocations in which they lie
  // Hands the operation copies of them on the host.
  void stage(Operation& op);

  // Whether the operation works on a copy of what the caller gave, which has to be filled before and brought home after
  // it. Neither needs the GIL.
  bool has_copies() const { return in.is_copy() || out.is_copy() || buffer; }
  void read_in() const;
  void look_again();  // where others may have worked on the arrays since, or exchanged their memory; with the GIL
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

// Keeps the arrays, and the memory that they have now, until the operation is over, on whatever thread that is seen.
std::shared_ptr<void> pin(std::unique_ptr<Arrays> arrays, PyObject* communicator);
// Lets go of them at once; with the GIL, and without the progress lock, which what they hold may take at its end.
void release_pins(std::shared_ptr<void>& pins);
// Releases those of operations that ended otherwise, e.g. under that lock; called by the next one with the GIL.
void release_finished_arrays();

}  // namespace hocket
