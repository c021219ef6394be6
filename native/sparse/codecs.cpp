#include "sparse/codecs.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace hocket {
namespace {

constexpr uint64_t kGaps = 64;     // in a group
constexpr uint64_t kScaled = 128;  // values that share a scale
constexpr float kLargestInt8 = 127.0F;

class Writer {
 public:
  explicit Writer(std::vector<uint8_t>& bytes) : bytes_(bytes) {}

  template <typename T>
  void add(const T& value) {
    add_all(&value, 1);
  }
  template <typename T>
  void add_all(const T* values, uint64_t n) {
    const size_t begin = bytes_.size();
    bytes_.resize(begin + n * sizeof(T));
    if (n > 0) std::memcpy(bytes_.data() + begin, values, n * sizeof(T));
  }
  // Room for n bytes, zeroed.
  uint8_t* room(uint64_t n) {
    bytes_.resize(bytes_.size() + n);
    return bytes_.data() + bytes_.size() - n;
  }

 private:
  std::vector<uint8_t>& bytes_;
};

class Reader {
 public:
  Reader(const uint8_t* bytes, uint64_t nbytes) : at_(bytes), left_(nbytes) {}

  // The next n values' bytes; nullptr if there are fewer.
  template <typename T>
  const uint8_t* take(uint64_t n) {
    if (n > left_ / sizeof(T)) return nullptr;
    const uint8_t* found = at_;
    at_ += n * sizeof(T);
    left_ -= n * sizeof(T);
    return found;
  }
  template <typename T>
  bool read(T& value) {
    const uint8_t* found = take<T>(1);
    if (found != nullptr) std::memcpy(&value, found, sizeof(T));
    return found != nullptr;
  }
  uint64_t left() const { return left_; }

 private:
  const uint8_t* at_;
  uint64_t left_;
};

uint64_t packed_nbytes(uint64_t num_gaps, uint32_t width) { return (num_gaps * width + 7) / 8; }

void write_halves(const Elements& elements, uint32_t first, Writer& writer) {
  std::vector<uint16_t> low(elements.n);
  std::vector<uint32_t> blocks;  // number and end of each
  for (uint64_t i = 0; i < elements.n; ++i) {
    const uint32_t place = elements.places[i] - first;
    low[i] = static_cast<uint16_t>(place);
    if (blocks.empty() || blocks[blocks.size() - 2] != place >> 16) blocks.insert(blocks.end(), {place >> 16, 0});
    blocks.back() = static_cast<uint32_t>(i) + 1;
  }
  writer.add(static_cast<uint32_t>(blocks.size() / 2));
  uint32_t begin = 0;
  for (size_t block = 0; block < blocks.size(); block += 2) {
    const uint32_t count = blocks[block + 1] - begin;
    writer.add(blocks[block]);
    writer.add(count);
    writer.add_all(low.data() + begin, count);
    begin = blocks[block + 1];
  }
}

bool read_halves(Reader& reader, uint32_t first, std::vector<uint32_t>& places) {
  uint32_t num_blocks = 0;
  if (!reader.read(num_blocks)) return false;
  uint64_t to = 0;
  for (uint32_t block = 0; block < num_blocks; ++block) {
    uint32_t number = 0, count = 0;
    if (!reader.read(number) || !reader.read(count) || number > 0xFFFF || count > places.size() - to) return false;
    const uint8_t* low = reader.take<uint16_t>(count);
    if (low == nullptr) return false;
    for (uint32_t i = 0; i < count; ++i) {
      uint16_t half;
      std::memcpy(&half, low + 2 * i, sizeof half);
      places[to++] = first + ((number << 16) | half);
    }
  }
  return to == places.size();
}

void write_packed(const Elements& elements, uint32_t first, Writer& writer) {
  uint32_t expected = first;  // the smallest place that may come
  uint32_t gaps[kGaps];
  for (uint64_t begin = 0; begin < elements.n; begin += kGaps) {
    const uint64_t count = std::min(kGaps, elements.n - begin);
    uint32_t all = 0;
    for (uint64_t i = 0; i < count; ++i) {
      gaps[i] = elements.places[begin + i] - expected;
      expected = elements.places[begin + i] + 1;
      all |= gaps[i];
    }
    const auto width = static_cast<uint32_t>(std::bit_width(all));
    writer.add(static_cast<uint8_t>(width));
    uint8_t* out = writer.room(packed_nbytes(count, width));
    uint64_t held = 0;
    uint32_t num_held = 0;
    for (uint64_t i = 0; i < count; ++i) {
      held |= uint64_t{gaps[i]} << num_held;
      for (num_held += width; num_held >= 8; num_held -= 8, held >>= 8) *out++ = static_cast<uint8_t>(held);
    }
    if (num_held > 0) *out = static_cast<uint8_t>(held);
  }
}

bool read_packed(Reader& reader, uint32_t first, std::vector<uint32_t>& places) {
  uint64_t expected = first;
  for (uint64_t begin = 0; begin < places.size(); begin += kGaps) {
    const uint64_t count = std::min<uint64_t>(kGaps, places.size() - begin);
    uint8_t width = 0;
    if (!reader.read(width) || width > 32) return false;
    const uint8_t* in = reader.take<uint8_t>(packed_nbytes(count, width));
    if (in == nullptr) return false;
    const uint64_t mask = (uint64_t{1} << width) - 1;
    uint64_t held = 0;
    uint32_t num_held = 0;
    for (uint64_t i = 0; i < count; ++i) {
      for (; num_held < width; num_held += 8) held |= uint64_t{*in++} << num_held;
      expected += held & mask;
      if (expected > 0xFFFFFFFF) return false;
      places[begin + i] = static_cast<uint32_t>(expected++);
      held >>= width;
      num_held -= width;
    }
  }
  return true;
}

uint16_t to_bfloat16(float value) {
  const auto bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7F800000) == 0x7F800000) return static_cast<uint16_t>(bits >> 16);
  const uint32_t rounded = bits + 0x7FFF + ((bits >> 16) & 1);
  // What would round to infinity is cut: an error that the residual takes is better than a value that is lost.
  return static_cast<uint16_t>(((rounded & 0x7F800000) == 0x7F800000 ? bits : rounded) >> 16);
}

float from_bfloat16(uint16_t bits) { return std::bit_cast<float>(uint32_t{bits} << 16); }

void write_values(ValueCodec codec, const Elements& elements, Writer& writer, float* carried) {
  const float* values = elements.values;
  if (codec == ValueCodec::float32) {
    writer.add_all(values, elements.n);
    std::copy(values, values + elements.n, carried);
    return;
  }
  if (codec == ValueCodec::bfloat16) {
    std::vector<uint16_t> rounded(elements.n);
    for (uint64_t i = 0; i < elements.n; ++i) {
      rounded[i] = to_bfloat16(values[i]);
      carried[i] = from_bfloat16(rounded[i]);
    }
    writer.add_all(rounded.data(), elements.n);
    return;
  }
  int8_t whole[kScaled];
  for (uint64_t begin = 0; begin < elements.n; begin += kScaled) {
    const uint64_t count = std::min(kScaled, elements.n - begin);
    float largest = 0.0F;
    for (uint64_t i = 0; i < count; ++i) largest = std::max(largest, std::fabs(values[begin + i]));
    float scale = largest / kLargestInt8;
    if (std::isinf(scale * kLargestInt8)) scale = std::nextafter(scale, 0.0F);
    writer.add(scale);
    for (uint64_t i = 0; i < count; ++i) {
      // The scale of subnormal values may be 0, or so coarse that a quotient is over 127.
      const float quotient = scale > 0.0F ? std::nearbyint(values[begin + i] / scale) : 0.0F;
      whole[i] = static_cast<int8_t>(std::clamp(quotient, -kLargestInt8, kLargestInt8));
      carried[begin + i] = scale * static_cast<float>(whole[i]);
    }
    writer.add_all(whole, count);
  }
}

bool read_values(ValueCodec codec, Reader& reader, std::vector<float>& values) {
  if (codec == ValueCodec::float32) {
    const uint8_t* found = reader.take<float>(values.size());
    if (found != nullptr && !values.empty()) std::memcpy(values.data(), found, values.size() * sizeof(float));
    return found != nullptr;
  }
  if (codec == ValueCodec::bfloat16) {
    const uint8_t* found = reader.take<uint16_t>(values.size());
    for (size_t i = 0; found != nullptr && i < values.size(); ++i) {
      uint16_t bits;
      std::memcpy(&bits, found + 2 * i, sizeof bits);
      values[i] = from_bfloat16(bits);
    }
    return found != nullptr;
  }
  for (size_t begin = 0; begin < values.size(); begin += kScaled) {
    const uint64_t count = std::min<uint64_t>(kScaled, values.size() - begin);
    float scale = 0.0F;
    if (!reader.read(scale)) return false;
    const uint8_t* found = reader.take<int8_t>(count);
    if (found == nullptr) return false;
    for (uint64_t i = 0; i < count; ++i) values[begin + i] = scale * static_cast<float>(static_cast<int8_t>(found[i]));
  }
  return true;
}

}  // namespace

void encode(Codec codec, const Elements& elements, uint32_t first, std::vector<uint8_t>& message, float* carried) {
  Writer writer(message);
  writer.add(static_cast<uint32_t>(elements.n));
  if (codec.places == PlaceCodec::halves) {
    write_halves(elements, first, writer);
  } else if (codec.places == PlaceCodec::packed) {
    write_packed(elements, first, writer);
  } else {
    auto* out = writer.room(4 * elements.n);
    for (uint64_t i = 0; i < elements.n; ++i) {
      const uint32_t place = elements.places[i] - first;
      std::memcpy(out + 4 * i, &place, sizeof place);
    }
  }
  write_values(codec.values, elements, writer, carried);
}

bool decode(Codec codec, const uint8_t* message, uint64_t nbytes, uint32_t first, uint64_t last,
            std::vector<uint32_t>& places, std::vector<float>& values) {
  Reader reader(message, nbytes);
  uint32_t n = 0;
  if (!reader.read(n) || n > last - first || n > nbytes) return false;  // every element takes a byte or more
  places.resize(n);
  values.resize(n);
  if (codec.places == PlaceCodec::halves) {
    if (!read_halves(reader, first, places)) return false;
  } else if (codec.places == PlaceCodec::packed) {
    if (!read_packed(reader, first, places)) return false;
  } else {
    const uint8_t* found = reader.take<uint32_t>(n);
    if (found == nullptr) return false;
    for (uint32_t i = 0; i < n; ++i) {
      uint32_t place;
      std::memcpy(&place, found + 4 * uint64_t{i}, sizeof place);
      if (place >= last - first) return false;
      places[i] = first + place;
    }
  }
  for (uint32_t i = 0; i < n; ++i)
    if (places[i] < first || places[i] >= last || (i > 0 && places[i] <= places[i - 1])) return false;
  return read_values(codec.values, reader, values) && reader.left() == 0;
}

}  // namespace hocket
