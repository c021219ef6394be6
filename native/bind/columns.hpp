// Columns of tables from NumPy.
#pragma once

#include <nanobind/nanobind.h>
#include <nanobind/ndarray.h>

#include "core/error.hpp"

namespace hocket {

template <typename T>
using Column = nanobind::ndarray<const T, nanobind::ndim<1>, nanobind::c_contig, nanobind::device::cpu>;
using Numbers = Column<int32_t>;

inline void need(bool is_right, const char* what) {
  if (!is_right) throw Failure(ErrorCode::invalid_argument, what);
}

}  // namespace hocket
