// The arrays of one call, from the call until the operation is over.
#pragma once

#include <memory>

#include "bind/arrays.hpp"
#include "bind/errors.hpp"

namespace hocket {

// The arrays of one call. On the heap, because a Py_buffer may point into itself and a pending operation keeps them;
// one spare is kept, so that a short operation allocates nothing.
struct Arrays {
  Array in;
  Array out;
  Array* written = nullptr;
  nb::object written_object;
};
class ArraysPool {
 public:
  std::unique_ptr<Arrays> take() { return spare_ ? std::move(spare_) : std::make_unique<Arrays>(); }
  void give_back(std::unique_ptr<Arrays> arrays) {
    arrays->in.release();
    arrays->out.release();
    arrays->written = nullptr;
    arrays->written_object.reset();
    spare_ = std::move(arrays);
  }

 private:
  std::unique_ptr<Arrays> spare_;
};

ArraysPool& arrays_pool();

// Keeps the arrays until the operation is over, on whatever thread that is seen.
std::shared_ptr<void> pin(std::unique_ptr<Arrays> arrays);
// Releases those of operations that ended on a thread without the GIL; called by the next one with it.
void release_finished_arrays();

}  // namespace hocket
