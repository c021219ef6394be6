#include "sparse/merge.hpp"

#include <algorithm>
#include <functional>

namespace hocket {
namespace {

// The sum of two parts: most jobs have two ranks on a link, and this takes a third of the time of the heap.
void add_two(const Elements& a, const Elements& b, std::vector<uint32_t>& places, std::vector<float>& values) {
  places.resize(a.n + b.n);
  values.resize(a.n + b.n);
  uint64_t i = 0, j = 0, to = 0;
  while (i < a.n && j < b.n) {
    // Without branches: which part has the next place is not predictable.
    const uint32_t here = a.places[i], there = b.places[j];
    const bool takes_a = here <= there, takes_b = there <= here;
    places[to] = takes_a ? here : there;
    const float both = a.values[i] + b.values[j];
    const float one = takes_a ? a.values[i] : b.values[j];
    values[to++] = takes_a && takes_b ? both : one;
    i += takes_a;
    j += takes_b;
  }
  for (; i < a.n; ++i, ++to) places[to] = a.places[i], values[to] = a.values[i];
  for (; j < b.n; ++j, ++to) places[to] = b.places[j], values[to] = b.values[j];
  places.resize(to);
  values.resize(to);
}

}  // namespace

void add_elements(const std::vector<Elements>& parts, std::vector<uint32_t>& places, std::vector<float>& values) {
  if (parts.size() == 2) return add_two(parts[0], parts[1], places, values);
  uint64_t most = 0;
  // The next element of each part, as its place and the number of the part: so the smallest has the first place, and
  // of equal places the first part.
  std::vector<uint64_t> next, at(parts.size(), 0);
  const auto key = [&](uint64_t part) { return (uint64_t{parts[part].places[at[part]]} << 32) | part; };
  for (uint64_t part = 0; part < parts.size(); ++part) {
    most += parts[part].n;
    if (parts[part].n > 0) next.push_back(key(part));
  }
  std::make_heap(next.begin(), next.end(), std::greater<>());
  places.resize(most);
  values.resize(most);
  uint64_t to = 0;
  while (!next.empty()) {
    const uint64_t part = next.front() & 0xFFFFFFFF;
    const auto place = static_cast<uint32_t>(next.front() >> 32);
    const float value = parts[part].values[at[part]];
    if (to > 0 && places[to - 1] == place) {
      values[to - 1] += value;
    } else {
      places[to] = place;
      values[to++] = value;
    }
    std::pop_heap(next.begin(), next.end(), std::greater<>());
    if (++at[part] < parts[part].n) {
      next.back() = key(part);
      std::push_heap(next.begin(), next.end(), std::greater<>());
    } else {
      next.pop_back();
    }
  }
  places.resize(to);
  values.resize(to);
}

void subtract_kept(float* x, const Elements& elements, const uint32_t* kept, uint64_t num_kept) {
  for (uint64_t i = 0, j = 0; i < elements.n && j < num_kept;) {
    const uint32_t here = elements.places[i], there = kept[j];
    if (here == there) x[here] -= elements.values[i];
    i += here <= there;
    j += there <= here;
  }
}

}  // namespace hocket
