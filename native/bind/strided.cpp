#include "bind/strided.hpp"

#include <cstring>

namespace hocket {

namespace {

// Calls visit(item, position in the buffer) for every run of the innermost axis.
template <typename Visit>
void for_each_row(const StridedArray& array, size_t axis, std::byte* at, size_t& position, Visit&& visit) {
  if (axis + 1 >= array.shape.size()) {
    visit(at, position);
    position += static_cast<size_t>(array.shape.empty() ? 1 : array.shape.back()) * array.itemsize;
    return;
  }
  for (int64_t i = 0; i < array.shape[axis]; ++i)
    for_each_row(array, axis + 1, at + i * array.strides[axis], position, visit);
}

template <typename CopyItem>
void for_each_item(const StridedArray& array, CopyItem&& copy_item) {
  for (int64_t extent : array.shape)
    if (extent == 0) return;
  const int64_t count = array.shape.empty() ? 1 : array.shape.back();
  const int64_t stride = array.shape.empty() ? 0 : array.strides.back();
  size_t position = 0;
  for_each_row(array, 0, array.data, position, [&](std::byte* row, size_t offset) {
    for (int64_t i = 0; i < count; ++i) copy_item(row + i * stride, offset + static_cast<size_t>(i) * array.itemsize);
  });
}

}  // namespace

void StridedArray::gather_into(std::byte* buffer) const {
  for_each_item(*this, [&](std::byte* item, size_t offset) { std::memcpy(buffer + offset, item, itemsize); });
}

void StridedArray::scatter_from(const std::byte* buffer) const {
  for_each_item(*this, [&](std::byte* item, size_t offset) { std::memcpy(item, buffer + offset, itemsize); });
}

bool StridedArray::is_contiguous() const {
  int64_t expected = static_cast<int64_t>(itemsize);
  bool contiguous = true;
  for (size_t axis = shape.size(); axis-- > 0;) {
    if (shape[axis] == 0) return true;
    if (shape[axis] != 1 && strides[axis] != expected) contiguous = false;
    expected *= shape[axis];
  }
  return contiguous;
}

bool StridedArray::has_overlapping_items() const {
  for (size_t axis = 0; axis < shape.size(); ++axis)
    if (shape[axis] > 1 && strides[axis] == 0) return true;
  return false;
}

void StridedArray::extent(const std::byte** begin, const std::byte** end) const {
  *begin = *end = data;
  for (int64_t n : shape)
    if (n == 0) return;
  *end = data + itemsize;
  for (size_t axis = 0; axis < shape.size(); ++axis) {
    const int64_t reach = (shape[axis] - 1) * strides[axis];
    (reach < 0 ? *begin : *end) += reach;
  }
}

}  // namespace hocket
