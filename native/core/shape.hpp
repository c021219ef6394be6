// The shape of an array, for messages; unknown for arrays with more than kMostAxes axes or with longer axes.
#pragma once

#include <array>
#include <cstdint>
#include <limits>
#include <string>

namespace hocket {

struct Shape {
  static constexpr int kMostAxes = 6;
  int32_t num_axes = -1;  // unknown
  std::array<uint32_t, kMostAxes> extents;

  template <typename Extents>
  static Shape of(const Extents* extents, int num_axes) {
    Shape shape;
    if (num_axes > kMostAxes) return shape;
    for (int axis = 0; axis < num_axes; ++axis) {
      const auto extent = static_cast<uint64_t>(extents[axis]);
      if (extent > std::numeric_limits<uint32_t>::max()) return shape;
      shape.extents[static_cast<size_t>(axis)] = static_cast<uint32_t>(extent);
    }
    shape.num_axes = num_axes;
    return shape;
  }
};

// "(4, 3)", as NumPy writes it; empty if unknown.
inline std::string text(const Shape& shape) {
  if (shape.num_axes < 0) return "";
  std::string result = "(";
  for (int axis = 0; axis < shape.num_axes; ++axis) {
    if (axis > 0) result += ", ";
    result += std::to_string(shape.extents[static_cast<size_t>(axis)]);
  }
  return result + (shape.num_axes == 1 ? ",)" : ")");
}

}  // namespace hocket
