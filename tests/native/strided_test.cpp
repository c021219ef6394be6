// Copies between strided arrays and buffers, checked against a loop over all indices.
#include "bind/strided.cpp"  // needs no Python, but belongs to the extension module only

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <random>
#include <vector>

#include "check.hpp"

namespace {

using hocket::StridedArray;

// The offsets of all items, in C order.
std::vector<int64_t> places(const StridedArray& array) {
  std::vector<int64_t> result{0};
  for (size_t axis = 0; axis < array.shape.size(); ++axis) {
    std::vector<int64_t> next;
    for (int64_t place : result)
      for (int64_t i = 0; i < array.shape[axis]; ++i) next.push_back(place + i * array.strides[axis]);
    result = next;
  }
  return result;
}

// A random view of a C-contiguous block: axes permuted, with steps, and some reversed.
void test_view(std::mt19937& random) {
  const size_t itemsizes[] = {1, 2, 4, 8};
  const size_t itemsize = itemsizes[random() % 4];
  const size_t num_axes = random() % 5;
  StridedArray view;
  view.itemsize = itemsize;
  int64_t total = static_cast<int64_t>(itemsize);
  int64_t first = 0;
  for (size_t axis = 0; axis < num_axes; ++axis) {
    const int64_t extent = 1 + static_cast<int64_t>(random() % 5);
    const int64_t step = 1 + static_cast<int64_t>(random() % 2);
    const bool backwards = random() % 3 == 0;
    const int64_t shape = random() % 16 == 0 ? 0 : (extent + step - 1) / step;
    const int64_t stride = total * step;
    if (backwards && shape > 0) first += (shape - 1) * stride;
    const auto at = static_cast<std::ptrdiff_t>(random() % (axis + 1));
    view.shape.insert(view.shape.begin() + at, shape);
    view.strides.insert(view.strides.begin() + at, backwards ? -stride : stride);
    total *= extent;
  }
  std::vector<std::byte> block(static_cast<size_t>(total));
  for (std::byte& byte : block) byte = static_cast<std::byte>(random());
  view.data = block.data() + first;

  const std::vector<int64_t> items = places(view);
  std::vector<std::byte> expected;
  for (int64_t place : items) expected.insert(expected.end(), view.data + place, view.data + place + itemsize);
  std::vector<std::byte> gathered(items.size() * itemsize);
  view.gather_into(gathered.data());
  CHECK(gathered == expected);

  bool contiguous = true;
  for (size_t i = 0; i < items.size(); ++i) contiguous &= items[i] == static_cast<int64_t>(i * itemsize);
  CHECK(view.is_contiguous() == contiguous);
  CHECK(!view.has_overlapping_items());

  const std::byte *begin, *end;
  view.extent(&begin, &end);
  if (items.empty()) {
    CHECK(begin == end);
  } else {
    CHECK(begin == view.data + *std::min_element(items.begin(), items.end()));
    CHECK(end == view.data + *std::max_element(items.begin(), items.end()) + itemsize);
  }

  // Scatter other values: only the items of the view change.
  for (std::byte& byte : gathered) byte = static_cast<std::byte>(random());
  std::vector<std::byte> scattered = block;
  for (size_t i = 0; i < items.size(); ++i)
    std::memcpy(scattered.data() + first + items[i], gathered.data() + i * itemsize, itemsize);
  view.scatter_from(gathered.data());
  CHECK(block == scattered);
}

}  // namespace

int main() {
  std::mt19937 random(7);
  for (int i = 0; i < 5000; ++i) test_view(random);

  std::byte item[8]{};
  const StridedArray repeated{item, 8, {3}, {0}};
  CHECK(repeated.has_overlapping_items());
  const StridedArray one{item, 8, {1}, {0}};
  CHECK(!one.has_overlapping_items() && one.is_contiguous());
  std::puts("strided: ok");
  return 0;
}
