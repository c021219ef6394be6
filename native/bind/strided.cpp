#include "bind/strided.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <numeric>
#include <utility>

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

namespace {

// An array as runs of bytes: one run at each combination of steps from the first.
struct Runs {
  uintptr_t begin = 0;
  size_t nbytes = 0;  // length of each run; 0 if the array is empty
  std::vector<size_t> counts;
  std::vector<size_t> steps;  // each longer than a run

  explicit Runs(const StridedArray& array) : begin(reinterpret_cast<uintptr_t>(array.data)) {
    std::vector<std::pair<size_t, size_t>> axes;  // step and count, the shortest step first
    for (size_t axis = 0; axis < array.shape.size(); ++axis) {
      if (array.shape[axis] == 0) return;
      if (array.shape[axis] == 1 || array.strides[axis] == 0) continue;
      const int64_t step = array.strides[axis];
      if (step < 0) begin -= static_cast<uintptr_t>(-step * (array.shape[axis] - 1));
      axes.emplace_back(static_cast<size_t>(std::abs(step)), static_cast<size_t>(array.shape[axis]));
    }
    std::sort(axes.begin(), axes.end());
    nbytes = array.itemsize;
    for (const auto& [step, count] : axes) {
      if (counts.empty() && step <= nbytes) {
        nbytes += step * (count - 1);
      } else {
        counts.push_back(count);
        steps.push_back(step);
      }
    }
  }

  size_t num_runs() const {
    size_t product = 1;
    for (size_t count : counts) product *= count;
    return product;
  }
  uintptr_t end() const {
    uintptr_t last = begin + nbytes;
    for (size_t axis = 0; axis < counts.size(); ++axis) last += steps[axis] * (counts[axis] - 1);
    return last;
  }
  std::vector<uintptr_t> begins() const {
    std::vector<uintptr_t> all{begin};
    for (size_t axis = 0; axis < counts.size(); ++axis) {
      const size_t so_far = all.size();
      for (size_t i = 1; i < counts[axis]; ++i)
        for (size_t j = 0; j < so_far; ++j) all.push_back(all[j] + i * steps[axis]);
    }
    std::sort(all.begin(), all.end());
    return all;
  }
};

// Whether runs never overlap because all steps are multiples of one distance, and their positions modulo this distance
// are disjoint.
bool are_apart(const Runs& a, const Runs& b) {
  size_t distance = 0;
  for (const Runs* runs : {&a, &b})
    for (size_t step : runs->steps) distance = std::gcd(distance, step);
  if (distance == 0) return false;
  const size_t offset = (b.begin % distance + distance - a.begin % distance) % distance;
  return offset >= a.nbytes && distance - offset >= b.nbytes;
}

}  // namespace

bool share_bytes(const StridedArray& a, const StridedArray& b) {
  constexpr size_t kMostRuns = size_t{1} << 22;
  const Runs runs(a), others(b);
  if (runs.nbytes == 0 || others.nbytes == 0) return false;
  if (runs.begin >= others.end() || others.begin >= runs.end() || are_apart(runs, others)) return false;
  if (runs.num_runs() + others.num_runs() > kMostRuns) return true;
  const std::vector<uintptr_t> begins = runs.begins(), other_begins = others.begins();
  for (size_t i = 0, j = 0; i < begins.size() && j < other_begins.size();) {
    if (begins[i] + runs.nbytes <= other_begins[j])
      ++i;
    else if (other_begins[j] + others.nbytes <= begins[i])
      ++j;
    else
      return true;
  }
  return false;
}

}  // namespace hocket
