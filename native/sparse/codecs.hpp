// Elements of arrays as bytes of a message.
//
// A message has the number of its elements (32 bits), their places relative to the first one of a region, and their
// values. Places are
//  - words: 32 bits each;
//  - halves: 16 bits each, in blocks of 65,536 places: the number of blocks that hold elements, then number, count and
//    low halves of each;
//  - packed: the gaps between them, in groups of 64: the number of bits that the widest gap of a group needs (8 bits),
//    then all gaps with so many.
// Values are float32; bfloat16, rounded to nearest; or int8, in groups of 128 with a float32 scale each.
#pragma once

#include <cstdint>
#include <vector>

#include "sparse/merge.hpp"

namespace hocket {

enum class PlaceCodec : uint8_t { words, halves, packed };
enum class ValueCodec : uint8_t { float32, bfloat16, int8 };

struct Codec {
  PlaceCodec places;
  ValueCodec values;
};

// Appends the message of elements whose places are `first` or more. `carried` gets the values that its receiver reads.
void encode(Codec codec, const Elements& elements, uint32_t first, std::vector<uint8_t>& message, float* carried);

// Replaces places and values by those of a message. Returns false for bytes that no call of `encode` has written with
// places from `first` to below `last`; then they are undefined.
bool decode(Codec codec, const uint8_t* message, uint64_t nbytes, uint32_t first, uint64_t last,
            std::vector<uint32_t>& places, std::vector<float>& values);

}  // namespace hocket
