// Columns of tables from NumPy, and to it.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include <utility>
#include <vector>

#include "core/error.hpp"

namespace hocket {

template <typename T>
using Column = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Numbers = Column<int32_t>;

inline void need(bool is_right, const char* what) {
  if (!is_right) throw Failure(ErrorCode::invalid_argument, what);
}

template <typename T, typename Allocator>
nanobind::object as_array(std::vector<T, Allocator> values) {
  using Owned = std::vector<T, Allocator>;
  auto* owned = new Owned(std::move(values));
  nanobind::capsule owner(owned, [](void* pointer) noexcept { delete static_cast<Owned*>(pointer); });
  return nanobind::cast(
      nanobind::ndarray<nanobind::numpy, T, nanobind::ndim<1>>(owned->data(), {owned->size()}, owner));
}

}  // namespace hocket
