// The selection of the elements of largest magnitude: a sample, a pass, and what is between the two magnitudes.
#include "sparse/select.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>
#include <functional>
#include <new>

#include "sparse/pass.hpp"

namespace hocket {
namespace {

constexpr uint64_t kMostSampled = 1 << 15, kLeastSampled = 1 << 12;
constexpr double kMargin = 5.0;  // standard deviations of a rank in the sample
constexpr uint64_t kSlack = 1 << 12;
constexpr int kBinBits = 11;

// Enough for bounds that few elements lie between, and a small part of the time of the pass.
uint64_t sample_size(uint64_t n) { return std::clamp(n / 32, kLeastSampled, kMostSampled); }

uint32_t magnitude_at(const float* x, uint64_t place) {
  uint32_t bits;
  std::memcpy(&bits, x + place, sizeof bits);
  return bits & kMagnitude;
}

struct Bounds {
  uint32_t low, high;
};

// The magnitude of rank `rank` (0: the largest); reorders them.
uint32_t of_rank(std::vector<uint32_t>& magnitudes, uint64_t rank) {
  const auto at = magnitudes.begin() + static_cast<std::ptrdiff_t>(rank);
  std::nth_element(magnitudes.begin(), at, magnitudes.end(), std::greater<>());
  return *at;
}

// Two magnitudes between which, with both included, the k-th largest very probably is.
Bounds bounds_by_sample(const Input& in, uint64_t k) {
  const uint64_t n = in.n;
  const auto sampled = [&](uint64_t place) {
    const float sum = in.added != nullptr ? in.x[place] + in.added[place] : in.x[place];
    return magnitude_at(&sum, 0);
  };
  std::vector<uint32_t> sample;
  const uint64_t num_sampled = sample_size(n);
  if (n <= 2 * kLeastSampled) {
    sample.reserve(n);
    for (uint64_t i = 0; i < n; ++i) sample.push_back(sampled(i));
    const uint32_t exact = of_rank(sample, k - 1);
    return {exact, exact};
  }
  sample.reserve(num_sampled);
  // One element of each of equal parts, at a place that depends on nothing but the part's number (SplitMix64).
  for (uint64_t part = 0; part < num_sampled; ++part) {
    const uint64_t begin = n * part / num_sampled, end = n * (part + 1) / num_sampled;
    uint64_t z = (part + 1) * 0x9E3779B97F4A7C15;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EB;
    sample.push_back(sampled(begin + (z ^ (z >> 31)) % (end - begin)));
  }
  const double share = static_cast<double>(k) / static_cast<double>(n);
  const auto size = static_cast<double>(num_sampled);
  const double rank = share * size, margin = kMargin * std::sqrt(rank * (1.0 - share)) + kMargin;
  const auto limited = [&](double at) { return static_cast<uint64_t>(std::clamp(at, 0.0, size - 1.0)); };
  const bool is_top = rank - margin<0.0, is_bottom = rank + margin> size - 1.0;
  const uint32_t low = is_bottom ? 0 : of_rank(sample, limited(rank + margin));
  if (!is_bottom) sample.resize(limited(rank + margin) + 1);  // the largest ones
  const uint32_t high = is_top ? kMagnitude : of_rank(sample, limited(rank - margin));
  return {low, high};
}

// The exact k-th largest magnitude, by its bits from the highest to the lowest.
uint32_t threshold_by_histograms(const float* x, uint64_t n, uint64_t k) {
  uint32_t known = 0;  // the highest bits
  int num_left = 31;   // lower bits that are not known
  for (const int num_bits : {11, 10, 10}) {
    std::vector<uint64_t> counts(size_t{1} << num_bits, 0);
    for (uint64_t i = 0; i < n; ++i) {
      const uint32_t bits = magnitude_at(x, i);
      if ((bits >> num_left) == (known >> num_left)) ++counts[(bits >> (num_left - num_bits)) & (counts.size() - 1)];
    }
    num_left -= num_bits;
    size_t bin = counts.size() - 1;
    while (counts[bin] < k) k -= counts[bin--];
    known |= static_cast<uint32_t>(bin) << num_left;
  }
  return known;
}

Passes passes_of([[maybe_unused]] Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512::passes();
  if (isa == Isa::avx2) return avx2::passes();
#endif
  return scalar::passes();
}

// The magnitude of rank `rank` (0: the largest) of those above `low`, none of which is above `high`; reorders them.
// Bins leave few of them.
uint32_t of_rank_between(Buffer<uint32_t>& magnitudes, uint64_t rank, uint32_t low, uint32_t high) {
  const int shift = std::max(0, static_cast<int>(std::bit_width(high - low)) - kBinBits);
  std::array<uint32_t, 1 << kBinBits> counts{};
  for (const uint32_t bits : magnitudes) ++counts[(bits - low) >> shift];
  size_t bin = counts.size() - 1;
  while (counts[bin] <= rank) rank -= counts[bin--];
  std::vector<uint32_t> in_bin(counts[bin] + 1);
  size_t written = 0;
  for (const uint32_t bits : magnitudes) {
    in_bin[written] = bits;
    written += ((bits - low) >> shift) == bin;
  }
  in_bin.resize(written);
  return of_rank(in_bin, rank);
}

}  // namespace

void* new_memory(size_t nbytes) {
  constexpr size_t kHugePage = size_t{2} << 20;
  if (nbytes < kHugePage) {
    void* memory = std::malloc(nbytes);
    if (memory == nullptr) throw std::bad_alloc();
    return memory;
  }
  const size_t whole = (nbytes + kHugePage - 1) / kHugePage * kHugePage;
  void* memory = std::aligned_alloc(kHugePage, whole);
  if (memory == nullptr) throw std::bad_alloc();
#if defined(MADV_HUGEPAGE)
  madvise(memory, whole, MADV_HUGEPAGE);  // a hint; without huge pages the call fails, and the memory is as usable
#endif
  return memory;
}

Selected select_largest(const Input& in, uint64_t k, Buffer<uint32_t>& places, Buffer<float>& values) {
  return select_largest(in, k, places, values, active_isa_kind());
}

Selected select_largest(const Input& in, uint64_t k, Buffer<uint32_t>& places, Buffer<float>& values, Isa isa) {
  const Passes passes = passes_of(isa);
  const uint64_t n = in.n;
  Bounds bounds = bounds_by_sample(in, k);
  const double share = static_cast<double>(k) / static_cast<double>(n);
  const uint64_t capacity =
      std::min(n, k + kSlack +
                      static_cast<uint64_t>(2.5 * kMargin * std::sqrt(share / static_cast<double>(sample_size(n))) *
                                            static_cast<double>(n)));
  if (places.size() < capacity + 16) {
    places.resize(capacity + 16);
    values.resize(capacity + 16);
  }
  const Noted noted{places.data(), values.data(), capacity};
  PassCounts counts = passes.select(in, bounds.low, bounds.high, noted);
  if (counts.largest >= kInfinite) {
    places.clear();
    values.clear();
    return {.is_finite = false};
  }
  const float* x = in.added != nullptr ? in.total : in.x;
  if (k > counts.from_low || k <= counts.above_high || counts.above_low > capacity) {
    bounds.low = bounds.high = threshold_by_histograms(x, n, k);
    counts = passes.select({x, nullptr, nullptr, n}, bounds.low, bounds.high, noted);
  }
  uint32_t threshold = bounds.low;
  uint64_t num_above = counts.above_low;
  if (k <= counts.from_high) {
    threshold = bounds.high;
    num_above = counts.above_high;
  } else if (k <= counts.above_low) {
    Buffer<uint32_t> between(counts.above_low - counts.from_high + 16);
    between.resize(passes.below(values.data(), counts.above_low, bounds.high, between.data()));
    threshold = of_rank_between(between, k - counts.from_high - 1, bounds.low, bounds.high);
    num_above = counts.from_high;
    for (const uint32_t bits : between) num_above += bits > threshold;
  }
  const uint64_t num_equal = threshold == 0 ? 0 : k - num_above;
  uint64_t num_kept = counts.above_low;  // if none of them is too many, and none is missing
  if (threshold > bounds.low) {
    const Candidates in_noted{places.data(), values.data(), counts.above_low};
    num_kept = passes.keep(in_noted, threshold, num_equal, k, places.data(), values.data());
  } else if (num_equal > 0) {  // elements at the lower bound are not noted
    num_kept = passes.keep({nullptr, x, n}, threshold, num_equal, k, places.data(), values.data());
  }
  places.resize(num_kept);
  values.resize(num_kept);
  Selected selected{.num_above = num_above, .num_equal = num_equal};
  std::memcpy(&selected.threshold, &threshold, sizeof threshold);
  return selected;
}

}  // namespace hocket
