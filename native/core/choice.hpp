// Which backend and which algorithm carry an operation that names no backend: a table over facts that are equal on all
// members (rule R8).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/operation.hpp"

namespace hocket {

// Operations that libraries handle alike: those that only move data, reductions of 16-bit floats, other reductions.
enum class DTypeClass : uint8_t { moved, half, full };
inline constexpr std::array kDTypeClassNames = {"moved", "half", "full"};
constexpr DTypeClass dtype_class(const Operation& op) {
  if (!reduces(op.kind)) return DTypeClass::moved;
  return is_half(op.dtype) ? DTypeClass::half : DTypeClass::full;
}

struct Carrier {
  uint8_t backend = 0;               // index among the communicator's backends
  const Program* program = nullptr;  // null: the library's own algorithm
};

class ChoiceTable {
 public:
  // For operations of at most most_nbytes: carriers from best to worst.
  struct Range {
    uint64_t most_nbytes;
    std::vector<Carrier> ranking;
  };

  // `ranges` in order of size; the last one must have most_nbytes = UINT64_MAX.
  void set(OpKind kind, DTypeClass dtypes, std::vector<Range> ranges) {
    is_empty_ &= ranges.empty();
    cell(kind, dtypes) = std::move(ranges);
  }
  bool is_empty() const { return is_empty_; }
  // Null if no choice was made: then the order of the communicator's backends counts.
  const std::vector<Carrier>* ranking(const Operation& op) const {
    const std::vector<Range>& ranges = cells_[index(op.kind, dtype_class(op))];
    const auto range =
        std::find_if(ranges.begin(), ranges.end(), [&](const Range& each) { return op.nbytes <= each.most_nbytes; });
    return range == ranges.end() ? nullptr : &range->ranking;
  }

 private:
  static constexpr size_t index(OpKind kind, DTypeClass dtypes) {
    return static_cast<size_t>(kind) * kDTypeClassNames.size() + static_cast<size_t>(dtypes);
  }
  std::vector<Range>& cell(OpKind kind, DTypeClass dtypes) { return cells_[index(kind, dtypes)]; }

  bool is_empty_ = true;  // no choice was ever made
  std::array<std::vector<Range>, kOpNames.size() * kDTypeClassNames.size()> cells_;
};

}  // namespace hocket
