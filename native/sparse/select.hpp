// Selection of the elements of largest magnitude: what a sparse sum sends.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <utility>
#include <vector>

#include "reduce/reduce.hpp"
#include "sparse/pass.hpp"

namespace hocket {

// Memory of whole huge pages, if it is large: the first write to each small page of a new array would take longer than
// the selection that fills it.
void* new_memory(size_t nbytes);

// Leaves new elements as they are: they are written next, and zeros would cost a pass over them.
template <typename T>
struct Unset : std::allocator<T> {
  T* allocate(size_t n) { return static_cast<T*>(new_memory(n * sizeof(T))); }
  void deallocate(T* memory, size_t) noexcept { std::free(memory); }
  template <typename U>
  struct rebind {
    using other = Unset<U>;
  };
  template <typename U>
  void construct(U* place) noexcept {
    ::new (static_cast<void*>(place)) U;
  }
  template <typename U, typename... Arguments>
  void construct(U* place, Arguments&&... arguments) {
    ::new (static_cast<void*>(place)) U(std::forward<Arguments>(arguments)...);
  }
};
template <typename T>
using Buffer = std::vector<T, Unset<T>>;

// What is above and at a threshold.
struct Selected {
  float threshold = 0.0F;  // the k-th largest magnitude
  uint64_t num_above = 0;  // elements whose magnitude is larger
  uint64_t num_equal = 0;  // selected elements whose magnitude is the threshold
  bool is_finite = true;   // whether no element is NaN or infinite; if not, nothing is selected
};

// Selects the k elements whose magnitude is largest, of x or of the sums of x and `added` (which are written to `total`
// in the same pass); of those that are equal, the first ones. Zeros are never selected, so there can be fewer than k.
//
// `places` and `values` get the selected elements, ascending by place; their capacity grows as needed and is kept, for
// calls to come. 0 < k <= n < 2^32.
//
// Reads x once in all but rare cases, whatever the distribution: of a sample of x, two magnitudes are taken whose ranks
// lie on both sides of that of the k-th, by a margin that the sample's error rarely exceeds. The pass over x counts
// the elements above and at either, and notes all above the lower one. The threshold is then one of the
// two, or among those few noted elements that lie between them (as in Floyd and Rivest's SELECT, CACM 18(3), 1975). If
// the margin was too small, histograms of the bits of the magnitudes give the threshold, in three passes.
Selected select_largest(const Input& in, uint64_t k, Buffer<uint32_t>& places, Buffer<float>& values);

// The same by the pass of one instruction set, which must be available.
Selected select_largest(const Input& in, uint64_t k, Buffer<uint32_t>& places, Buffer<float>& values, Isa isa);

}  // namespace hocket
