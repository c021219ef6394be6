// Copies between a strided array and a contiguous buffer; needs no Python.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hocket {

struct StridedArray {
  std::byte* data = nullptr;
  size_t itemsize = 1;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  // bytes; may be negative

  void gather_into(std::byte* buffer) const;
  void scatter_from(const std::byte* buffer) const;
  bool is_contiguous() const;          // C order
  bool has_overlapping_items() const;  // a stride of zero: one item has several places
  // First and one past the last byte that any item touches.
  void extent(const std::byte** begin, const std::byte** end) const;
};

// Whether two arrays have a byte in common. Two columns of one array have none, although each spans most of it. The
// answer is exact, except for arrays of millions of rows that interleave with different steps: there it is true.
bool share_bytes(const StridedArray& a, const StridedArray& b);

}  // namespace hocket
