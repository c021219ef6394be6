// Memory of the host's heap as Python objects.
#pragma once

#include <nanobind/nanobind.h>

#include <memory>

#include "shm/heap.hpp"

namespace nb = nanobind;

namespace hocket {

struct PySharedMemory {
  PySharedMemory(std::shared_ptr<Heap> heap, uint64_t nbytes)
      : heap(std::move(heap)), data(this->heap->allocate(nbytes)), nbytes(nbytes) {}
  ~PySharedMemory() { heap->free(data); }
  PySharedMemory(const PySharedMemory&) = delete;
  PySharedMemory& operator=(const PySharedMemory&) = delete;

  const std::shared_ptr<Heap> heap;
  std::byte* const data;
  const uint64_t nbytes;
};

void bind_shared_memory(nb::module_& module);

}  // namespace hocket
