// Arrays packed without loss: every bit comes back, by every instruction set, which all write the same bytes; and bytes
// that are not such an array are refused without reading or writing outside of them.
#include "lossless/lossless.hpp"

#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <random>
#include <vector>

#include "check.hpp"
#include "tier.hpp"

namespace {

using namespace hocket;
using Bytes = std::vector<uint8_t>;

std::vector<Isa> available() {
  std::vector<Isa> found;
  for (const Isa isa : {Isa::scalar, Isa::avx2, Isa::avx512})
    if (isa_available(isa)) found.push_back(isa);
  return found;
}

// Returns what `elements` are packed into. Memory of exactly the promised size: the sanitizer sees any byte beyond.
Bytes packed(Isa isa, DType dtype, const Bytes& elements) {
  const uint64_t n = elements.size() / itemsize(dtype);
  const uint64_t most = most_packed_nbytes(dtype, n);
  auto* out = new uint8_t[most];
  const uint64_t nbytes = pack_lossless(isa, dtype, elements.data(), n, out);
  CHECK(nbytes <= most);
  Bytes found(out, out + nbytes);
  delete[] out;
  return found;
}

bool unpacks(Isa isa, DType dtype, const Bytes& from, Bytes& elements) {
  auto* exact = new uint8_t[from.size()];
  if (!from.empty()) std::memcpy(exact, from.data(), from.size());
  const bool is_right =
      unpack_lossless(isa, dtype, exact, from.size(), elements.data(), elements.size() / itemsize(dtype));
  delete[] exact;
  return is_right;
}

void check(DType dtype, const Bytes& elements) {
  Bytes first;
  for (const Isa isa : available()) {
    const Bytes found = packed(isa, dtype, elements);
    if (first.empty()) first = found;
    CHECK(found == first);
    for (const Isa other : available()) {
      Bytes back(elements.size(), 0x55);
      CHECK(unpacks(other, dtype, found, back));
      CHECK(back == elements);
    }
  }
}

template <typename T>
Bytes bytes_of(const std::vector<T>& values) {
  Bytes found(values.size() * sizeof(T));
  if (!values.empty()) std::memcpy(found.data(), values.data(), found.size());
  return found;
}

std::vector<float> normal(uint64_t n, std::mt19937& random) {
  std::normal_distribution<float> draw;
  std::vector<float> values(n);
  for (float& each : values) each = draw(random);
  return values;
}

// The upper half of a float is a bfloat16.
Bytes upper_halves(const std::vector<float>& values) {
  std::vector<uint16_t> found;
  for (const float each : values) {
    uint32_t bits;
    std::memcpy(&bits, &each, sizeof bits);
    found.push_back(static_cast<uint16_t>(bits >> 16));
  }
  return bytes_of(found);
}

void test_every_length() {
  std::mt19937 random(1);
  for (uint64_t n = 0; n < 1100; n += n < 70 || n > 1000 ? 1 : 37) {
    auto values = normal(n, random);
    check(DType::float32, bytes_of(values));
    check(DType::bfloat16, upper_halves(values));
    for (float& each : values) each = std::max(each, 0.0F);
    check(DType::float32, bytes_of(values));
    check(DType::bfloat16, upper_halves(values));
  }
  check(DType::float32, bytes_of(normal(50'001, random)));
}

void test_every_type() {
  std::mt19937 random(2);
  for (size_t dtype = 0; dtype < kNumDTypes; ++dtype) {
    const auto type = static_cast<DType>(dtype);
    for (const uint64_t n : {uint64_t{1}, uint64_t{511}, uint64_t{513}, uint64_t{4099}, uint64_t{9000}}) {
      Bytes elements(n * itemsize(type));
      for (uint8_t& each : elements) each = static_cast<uint8_t>(random());
      check(type, elements);  // any bits
      for (uint64_t i = 0; i < elements.size(); ++i)
        if (i % itemsize(type) > itemsize(type) / 2) elements[i] = 0;
      check(type, elements);  // small numbers
      for (uint8_t& each : elements) each = 0;
      check(type, elements);
      for (uint8_t& each : elements) each = 0xFF;
      check(type, elements);
      elements[elements.size() / 2] = 3;
      check(type, elements);
    }
  }
}

void test_extreme_floats() {
  using Limits = std::numeric_limits<float>;
  const std::vector<float> extremes{0.0F,
                                    -0.0F,
                                    Limits::infinity(),
                                    -Limits::infinity(),
                                    Limits::max(),
                                    -Limits::min(),
                                    Limits::denorm_min(),
                                    Limits::quiet_NaN(),
                                    -Limits::max(),
                                    1.0F};
  std::mt19937 random(3);
  for (int share = 1; share <= 512; share *= 2) {  // one of so many is extreme
    auto values = normal(5000, random);
    for (float& each : values)
      if (random() % static_cast<unsigned>(share) == 0) each = extremes[random() % extremes.size()];
    check(DType::float32, bytes_of(values));
    check(DType::bfloat16, upper_halves(values));
    check(DType::float16, upper_halves(values));
    std::vector<double> doubles(values.begin(), values.end());
    check(DType::float64, bytes_of(doubles));
  }
}

// What a size must not exceed, in parts of the raw size: fewer bits than these would need another idea.
void test_sizes() {
  std::mt19937 random(4);
  const auto part = [](DType dtype, const Bytes& elements) {
    return static_cast<double>(packed(Isa::scalar, dtype, elements).size()) / static_cast<double>(elements.size());
  };
  auto values = normal(1 << 16, random);
  CHECK(part(DType::float32, bytes_of(values)) < 0.87);
  CHECK(part(DType::bfloat16, upper_halves(values)) < 0.73);
  for (float& each : values) each = std::max(each, 0.0F);
  CHECK(part(DType::float32, bytes_of(values)) < 0.48);
  CHECK(part(DType::bfloat16, upper_halves(values)) < 0.44);
  CHECK(part(DType::float32, Bytes(1 << 16)) < 0.001);
  std::vector<int64_t> tokens(1 << 16);
  for (int64_t& each : tokens) each = static_cast<int64_t>(random() % 50'000) - 100;
  CHECK(part(DType::int64, bytes_of(tokens)) < 0.26);
  std::vector<uint8_t> flags(1 << 16);
  for (uint8_t& each : flags) each = random() % 2;
  CHECK(part(DType::boolean, flags) < 0.14);
}

void test_forged_bytes() {
  std::mt19937 random(5);
  auto values = normal(5000, random);
  for (uint64_t i = 0; i < values.size(); ++i)
    if (i < 2500 && i % 2 == 0) values[i] = 0.0F;
  std::vector<int64_t> tokens(5000);
  for (int64_t& each : tokens) each = static_cast<int64_t>(random() % 1000);
  for (const Isa isa : available()) {
    for (const DType dtype : {DType::float32, DType::bfloat16, DType::int64, DType::boolean}) {
      const Bytes elements = dtype == DType::float32    ? bytes_of(values)
                             : dtype == DType::bfloat16 ? upper_halves(values)
                                                        : bytes_of(tokens);
      const Bytes right = packed(isa, dtype, elements);
      Bytes back(elements.size());
      for (uint64_t nbytes = 0; nbytes < right.size(); nbytes += 1 + right.size() / 300)
        CHECK(!unpacks(isa, dtype, Bytes(right.begin(), right.begin() + static_cast<std::ptrdiff_t>(nbytes)), back));
      Bytes longer = right;
      longer.push_back(0);
      CHECK(!unpacks(isa, dtype, longer, back));
      for (int round = 0; round < sampled_rounds(5000); ++round) {  // no sanitizer may complain
        Bytes forged = right;
        for (int change = 0; change <= round % 4; ++change)
          forged[random() % std::min<uint64_t>(forged.size(), round % 2 ? forged.size() : 64)] =
              static_cast<uint8_t>(random());
        unpacks(isa, dtype, forged, back);
      }
      for (int round = 0; round < 300; ++round) {
        Bytes noise(random() % 5000);
        for (uint8_t& each : noise) each = static_cast<uint8_t>(random() % (round % 2 ? 256 : 4));
        unpacks(isa, dtype, noise, back);
      }
    }
  }
}

}  // namespace

int main() {
  test_every_length();
  test_every_type();
  test_extreme_floats();
  test_sizes();
  test_forged_bytes();
}
