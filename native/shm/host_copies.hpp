// Copies on the host of an operation's device arrays, so that the host can carry the operation.
#pragma once

#include <cstddef>
#include <memory>

#include "core/operation.hpp"
#include "memory/driver.hpp"

namespace hocket {

class HostCopies {
 public:
  HostCopies(const Operation& op, int size) : device_(*op.device), out_(op.out), out_nbytes_(op.out_nbytes(size)) {
    if (op.in) {
      const uint64_t nbytes = op.in_nbytes(size);
      in_copy_ = std::make_unique_for_overwrite<std::byte[]>(nbytes);
      device_.driver->copy_to_host(in_copy_.get(), reinterpret_cast<uintptr_t>(op.in), nbytes, device_.device);
    }
    // Operations with two arrays overwrite the whole output, so it needs no initial copy.
    if (op.out && op.out != op.in) out_copy_ = std::make_unique_for_overwrite<std::byte[]>(out_nbytes_);
  }
  // The same operation on the copies.
  Operation on_host(Operation op) const {
    if (op.out) op.out = op.out == op.in ? in_copy_.get() : out_copy_.get();
    if (op.in) op.in = in_copy_.get();
    op.device = nullptr;
    return op;
  }
  void write_back() const {
    if (!device_.is_written || !out_ || out_nbytes_ == 0) return;
    const std::byte* const result = out_copy_ ? out_copy_.get() : in_copy_.get();
    device_.driver->copy_to_device(reinterpret_cast<uintptr_t>(out_), result, out_nbytes_, device_.device);
  }

 private:
  const DeviceArrays device_;
  std::byte* const out_;
  const uint64_t out_nbytes_;
  std::unique_ptr<std::byte[]> in_copy_;
  std::unique_ptr<std::byte[]> out_copy_;  // null: input and output are one array
};

}  // namespace hocket
