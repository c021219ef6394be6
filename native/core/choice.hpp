// Which backend carries an operation that names none, and by which algorithm: a table over facts that are equal on all
// members (rule R8).
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <vector>

#include "core/operation.hpp"

namespace hocket {

// Types that libraries handle alike: anything that is only moved, reductions of 16-bit floats, and other reductions.
enum class DTypeClass : uint8_t { moved, half, full };
inline constexpr std::array kDTypeClassNames = {"moved", "half", "full"};
constexpr DTypeClass dtype_class(const Operation& op) {
  if (!reduces(op.kind)) return DTypeClass::moved;
  return is_half(op.dtype) ? DTypeClass::half : DTypeClass::full;
}

struct Carrier {
  uint8_t backend = 0;               // place among those of the communicator
  const Program* program = nullptr;  // null: the library's own way
};

class ChoiceTable {
 public:
  // Up to most_nbytes, what can carry an operation from best to worst.
  struct Range {
    uint64_t most_nbytes;
    std::vector<Carrier> ranking;
  };

  // In order of size; the last one has to be open (UINT64_MAX).
  void set(OpKind kind, DTypeClass dtypes, std::vector<Range> ranges) {
    is_empty_ &= ranges.empty();
    cell(kind, dtypes) = std::move(ranges);
  }
  bool is_empty() const { return is_empty_; }
  // Null: no choice was made, the backends stand in their own order.
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
