// The selection of the elements of largest magnitude: a sample, a pass, and what is between the two magnitudes.
#include "sparse/select.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <functional>

#include "sparse/pass.hpp"

namespace hocket {
namespace {

constexpr uint64_t kMostSampled = 1 << 15, kLeastSampled = 1 << 12;
constexpr double kMargin = 5.0;  // standard deviations of a rank in the sample
constexpr uint64_t kSlack = 1 << 12;

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

// Brings the elements that are selected, of those noted by a pass, to the front; adds the first equal ones if they are
// not among them. Returns their number.
uint64_t keep(const float* x, uint64_t n, uint32_t threshold, uint64_t num_equal, uint32_t low,
              Buffer<uint32_t>& places, Buffer<float>& values, uint64_t num_noted) {
  uint64_t num_kept = 0;
  if (threshold > low) {
    uint64_t left = num_equal;
    for (uint64_t i = 0; i < num_noted; ++i) {
      const uint32_t bits = magnitude_at(values.data(), i);
      const bool is_equal = bits == threshold && left > 0;
      places[num_kept] = places[i];
      values[num_kept] = values[i];
      num_kept += static_cast<uint64_t>((bits > threshold) | is_equal);
      left -= is_equal;
    }
    return num_kept;
  }
  if (num_equal == 0) return num_noted;
  // All noted elements are above the threshold. The equal ones are merged into them from behind.
  std::vector<uint32_t> equal;
  equal.reserve(num_equal);
  for (uint64_t i = 0; i < n && equal.size() < num_equal; ++i) {
    if (magnitude_at(x, i) == threshold) equal.push_back(static_cast<uint32_t>(i));
  }
  const size_t size = std::max<size_t>(places.size(), num_noted + num_equal);
  places.resize(size);
  values.resize(size);
  uint64_t to = num_noted + num_equal, from = num_noted, of_equal = num_equal;
  while (of_equal > 0) {
    --to;
    if (from > 0 && places[from - 1] > equal[of_equal - 1]) {
      places[to] = places[--from];
      values[to] = values[from];
    } else {
      places[to] = equal[--of_equal];
      values[to] = x[places[to]];
    }
  }
  return num_noted + num_equal;
}

SelectPass pass_of(Isa isa) {
#if defined(__x86_64__)
  if (isa == Isa::avx512) return avx512::select_pass;
  if (isa == Isa::avx2) return avx2::select_pass;
#endif
  static_cast<void>(isa);
  return scalar::select_pass;
}

}  // namespace

Selected select_largest(const Input& in, uint64_t k, Buffer<uint32_t>& places, Buffer<float>& values) {
  return select_largest(in, k, places, values, active_isa_kind());
}

Selected select_largest(const Input& in, uint64_t k, Buffer<uint32_t>& places, Buffer<float>& values, Isa isa) {
  const SelectPass pass = pass_of(isa);
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
  PassCounts counts = pass(in, bounds.low, bounds.high, noted);
  if (counts.largest >= kInfinite) {
    places.clear();
    values.clear();
    return {.is_finite = false};
  }
  const float* x = in.added != nullptr ? in.total : in.x;
  if (k > counts.from_low || k <= counts.above_high || counts.above_low > capacity) {
    bounds.low = bounds.high = threshold_by_histograms(x, n, k);
    counts = pass({x, nullptr, nullptr, n}, bounds.low, bounds.high, noted);
  }
  uint32_t threshold = bounds.low;
  uint64_t num_above = counts.above_low;
  if (k <= counts.from_high) {
    threshold = bounds.high;
    num_above = counts.above_high;
  } else if (k <= counts.above_low) {
    std::vector<uint32_t> between;
    between.reserve(counts.above_low - counts.from_high);
    for (uint64_t i = 0; i < counts.above_low; ++i) {
      const uint32_t bits = magnitude_at(values.data(), i);
      if (bits < bounds.high) between.push_back(bits);
    }
    threshold = of_rank(between, k - counts.from_high - 1);
    num_above = counts.from_high;
    for (const uint32_t bits : between) num_above += bits > threshold;
  }
  const uint64_t num_equal = threshold == 0 ? 0 : k - num_above;
  const uint64_t num_kept = keep(x, n, threshold, num_equal, bounds.low, places, values, counts.above_low);
  places.resize(num_kept);
  values.resize(num_kept);
  Selected selected{.num_above = num_above, .num_equal = num_equal};
  std::memcpy(&selected.threshold, &threshold, sizeof threshold);
  return selected;
}

}  // namespace hocket
