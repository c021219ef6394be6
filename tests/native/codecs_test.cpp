// Messages of elements: what is read is what was written; bytes that are not such a message are refused. Sums of parts
// and sorted magnitudes, against the standard library.
#include "sparse/codecs.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <vector>

#include "check.hpp"
#include "sparse/sort.hpp"
#include "tier.hpp"

namespace {

using namespace hocket;

struct Owned {
  std::vector<uint32_t> places;
  std::vector<float> values;
  Elements view() const { return {places.data(), values.data(), places.size()}; }
};

Owned elements(uint64_t n, uint32_t first, uint64_t last, std::mt19937& random) {
  std::vector<uint32_t> places;
  std::uniform_int_distribution<uint64_t> place(first, last - 1);
  for (uint64_t i = 0; i < n; ++i) places.push_back(static_cast<uint32_t>(place(random)));
  std::sort(places.begin(), places.end());
  places.erase(std::unique(places.begin(), places.end()), places.end());
  Owned found{places, std::vector<float>(places.size())};
  std::normal_distribution<float> normal;
  for (float& each : found.values) each = std::pow(normal(random), 3.0F);
  return found;
}

template <typename Call>
void for_codecs(const Call& call) {
  for (const PlaceCodec places : {PlaceCodec::words, PlaceCodec::halves, PlaceCodec::packed})
    for (const ValueCodec values : {ValueCodec::float32, ValueCodec::bfloat16, ValueCodec::int8})
      call(Codec{places, values});
}

void check_error(ValueCodec codec, const std::vector<float>& values, const std::vector<float>& carried) {
  for (size_t begin = 0; begin < values.size(); begin += 128) {
    const size_t end = std::min(begin + 128, values.size());
    float largest = 0.0F;
    for (size_t i = begin; i < end; ++i) largest = std::max(largest, std::fabs(values[i]));
    for (size_t i = begin; i < end; ++i) {
      const float error = std::fabs(values[i] - carried[i]);
      if (codec == ValueCodec::float32) CHECK(error == 0.0F);
      // The largest floats are cut, and subnormal ones have fewer bits.
      const float part = std::fabs(values[i]) > 3.38e38F ? 128.0F : 256.0F;
      if (codec == ValueCodec::bfloat16) CHECK(error <= std::fabs(values[i]) / part + 1e-40F);
      if (codec == ValueCodec::int8) CHECK(error <= largest / 253.0F + 1e-40F);
    }
  }
}

void check_round_trip(Codec codec, const Owned& given, uint32_t first, uint64_t last) {
  std::vector<uint8_t> message{1, 2, 3};  // is appended to
  std::vector<float> carried(given.places.size());
  encode(codec, given.view(), first, message, carried.data());
  std::vector<uint32_t> places{9};
  std::vector<float> values{9.0F};
  CHECK(decode(codec, message.data() + 3, message.size() - 3, first, last, places, values));
  CHECK(places == given.places);
  CHECK(values.size() == carried.size());
  for (size_t i = 0; i < values.size(); ++i) CHECK(values[i] == carried[i]);
  check_error(codec.values, given.values, carried);
  if (codec.places == PlaceCodec::words && codec.values == ValueCodec::float32)
    CHECK(message.size() - 3 == 4 + 8 * given.places.size());
}

// Whatever the bytes are: an answer, and if it is yes, places that ascend within the region.
void check_bytes(Codec codec, const std::vector<uint8_t>& message, uint32_t first, uint64_t last) {
  std::vector<uint32_t> places;
  std::vector<float> values;
  if (!decode(codec, message.data(), message.size(), first, last, places, values)) return;
  CHECK(places.size() == values.size());
  for (size_t i = 0; i < places.size(); ++i)
    CHECK(places[i] >= first && places[i] < last && (i == 0 || places[i] > places[i - 1]));
}

void check_damage(Codec codec, const Owned& given, uint32_t first, uint64_t last, std::mt19937& random) {
  std::vector<uint8_t> message;
  std::vector<float> carried(given.places.size());
  encode(codec, given.view(), first, message, carried.data());
  std::vector<uint32_t> places;
  std::vector<float> values;
  for (int round = 0; round < sampled_rounds(500); ++round) {
    std::vector<uint8_t> changed = message;
    const int how = static_cast<int>(random() % 3);
    if (how == 0) {
      changed.resize(random() % message.size());
      CHECK(!decode(codec, changed.data(), changed.size(), first, last, places, values));
    } else if (how == 1) {
      changed.resize(message.size() + 1 + random() % 9);
      CHECK(!decode(codec, changed.data(), changed.size(), first, last, places, values));
    } else {
      for (uint64_t i = 0; i <= random() % 4; ++i) changed[random() % changed.size()] ^= static_cast<uint8_t>(random());
    }
    check_bytes(codec, changed, first, last);
    for (uint8_t& each : changed) each = static_cast<uint8_t>(random());
    check_bytes(codec, changed, first, last);
  }
}

void check_sums(std::mt19937& random) {
  for (const uint64_t num_parts : {1, 2, 3, 7, 64}) {
    std::vector<Owned> parts;
    for (uint64_t part = 0; part < num_parts; ++part) parts.push_back(elements(random() % 300, 0, 1000, random));
    std::map<uint32_t, float> wanted;
    std::vector<Elements> views;
    for (const Owned& part : parts) {
      for (size_t i = 0; i < part.places.size(); ++i) {
        const auto [at, is_new] = wanted.try_emplace(part.places[i], part.values[i]);
        if (!is_new) at->second += part.values[i];
      }
      views.push_back(part.view());
    }
    std::vector<uint32_t> places;
    std::vector<float> values;
    add_elements(views, places, values);
    CHECK(places.size() == wanted.size() && values.size() == wanted.size());
    size_t i = 0;
    for (const auto& [place, value] : wanted) {
      CHECK(places[i] == place && values[i] == value);
      ++i;
    }
    std::vector<float> x(1000, 1.0F), left = x;
    for (size_t part = 0; part < parts[0].places.size(); ++part)
      if (std::binary_search(places.begin(), places.begin() + static_cast<std::ptrdiff_t>(places.size() / 2),
                             parts[0].places[part]))
        left[parts[0].places[part]] -= parts[0].values[part];
    subtract_kept(x.data(), views[0], places.data(), places.size() / 2);
    CHECK(x == left);
  }
}

void check_sorted(std::mt19937& random) {
  for (const uint64_t n : {0, 1, 17, 2047, 2048, 50'000}) {
    std::vector<float> values(n);
    for (float& each : values) {
      uint32_t bits = static_cast<uint32_t>(random());
      if ((bits & 0x7F800000) == 0x7F800000) bits ^= 0x40000000;  // finite
      each = std::bit_cast<float>(bits);
    }
    const std::vector<uint32_t> found = sorted_magnitudes(values.data(), n);
    for (float& each : values) each = std::fabs(each);
    std::sort(values.begin(), values.end());
    CHECK(found.size() == n);
    for (uint64_t i = 0; i < n; ++i) CHECK(std::bit_cast<float>(found[i]) == values[i]);
  }
}

}  // namespace

int main() {
  std::mt19937 random(1);
  struct Region {
    uint32_t first;
    uint64_t last;
  };
  for (const Region region : {Region{0, 1}, Region{0, 1000}, Region{77, 300'000}, Region{5, uint64_t{1} << 32},
                              Region{4'294'900'000, uint64_t{1} << 32}}) {
    for (const uint64_t n : {0, 1, 2, 63, 64, 65, 129, 5000}) {
      const Owned given = elements(n, region.first, region.last, random);
      for_codecs([&](Codec codec) { check_round_trip(codec, given, region.first, region.last); });
    }
  }
  Owned ends{{0, 1, 0xFFFFFFFE, 0xFFFFFFFF},
             {std::numeric_limits<float>::max(), -std::numeric_limits<float>::denorm_min(), 0.0F,
              std::numeric_limits<float>::lowest()}};
  for_codecs([&](Codec codec) { check_round_trip(codec, ends, 0, uint64_t{1} << 32); });
  for_codecs([&](Codec codec) { check_damage(codec, elements(200, 10, 5000, random), 10, 5000, random); });
  check_sums(random);
  check_sorted(random);
}
