#include "bind/sparse.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/vector.h>

#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

#include "bind/columns.hpp"
#include "sparse/codecs.hpp"
#include "sparse/merge.hpp"
#include "sparse/select.hpp"
#include "sparse/sort.hpp"

namespace hocket {

namespace {

using Written = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;
using Places = Column<uint32_t>;
using Values = Column<float>;

Elements elements_of(const Places& places, const Values& values) {
  need(places.shape(0) == values.shape(0), "there must be as many places as values");
  return {places.data(), values.data(), places.shape(0)};
}

nb::object select(const Values& x, uint64_t k, const std::optional<Values>& added,
                  const std::optional<Written>& total) {
  const uint64_t n = x.shape(0);
  need(n <= std::numeric_limits<uint32_t>::max(), "an array has more than 4,294,967,295 elements");
  need(k > 0 && k <= n, "the number of elements to select must be from 1 to that of the array");
  need(added.has_value() == total.has_value(), "an array that is added needs one for the total");
  need(!added || (added->shape(0) == n && total->shape(0) == n), "the arrays have different sizes");
  const Input in{x.data(), added ? added->data() : nullptr, total ? total->data() : nullptr, n};
  Buffer<uint32_t> places;
  Buffer<float> values;
  Selected found;
  {
    const nb::gil_scoped_release released;
    found = select_largest(in, k, places, values);
  }
  if (!found.is_finite) return nb::none();
  return nb::make_tuple(as_array(std::move(places)), as_array(std::move(values)), found.threshold, found.num_above,
                        found.num_equal);
}

nb::tuple add(const std::vector<std::pair<Places, Values>>& parts) {
  std::vector<Elements> all;
  all.reserve(parts.size());
  for (const auto& [places, values] : parts) all.push_back(elements_of(places, values));
  std::vector<uint32_t> places;
  std::vector<float> values;
  {
    const nb::gil_scoped_release released;
    add_elements(all, places, values);
  }
  return nb::make_tuple(as_array(std::move(places)), as_array(std::move(values)));
}

nb::object sort(const Values& values) {
  std::vector<uint32_t> bits;
  {
    const nb::gil_scoped_release released;
    bits = sorted_magnitudes(values.data(), values.shape(0));
  }
  return as_array(std::move(bits));
}

void subtract(const Written& x, const Places& places, const Values& values, const Places& kept) {
  const Elements elements = elements_of(places, values);
  need(elements.n == 0 || elements.places[elements.n - 1] < x.shape(0), "a place is outside of the array");
  const nb::gil_scoped_release released;
  subtract_kept(x.data(), elements, kept.data(), kept.shape(0));
}

Codec codec_of(int places, int values) {
  need(places >= 0 && places <= static_cast<int>(PlaceCodec::packed), "there is no such codec of places");
  need(values >= 0 && values <= static_cast<int>(ValueCodec::int8), "there is no such codec of values");
  return {static_cast<PlaceCodec>(places), static_cast<ValueCodec>(values)};
}

nb::tuple encode_parts(const Places& places, const Values& values, const Column<int64_t>& ends,
                       const Column<int64_t>& firsts, int place_codec, int value_codec) {
  const Elements all = elements_of(places, values);
  const Codec codec = codec_of(place_codec, value_codec);
  const uint64_t num_parts = ends.shape(0);
  need(firsts.shape(0) == num_parts, "there must be a first place for each part");
  int64_t previous = 0;
  for (uint64_t part = 0; part < num_parts; previous = ends(part++))
    need(ends(part) >= previous && ends(part) <= static_cast<int64_t>(all.n) && firsts(part) >= 0 &&
             (ends(part) == previous || firsts(part) <= static_cast<int64_t>(all.places[previous])),
         "a part is not within the elements, or has a place before its first one");
  std::vector<uint8_t> message;
  std::vector<int64_t> nbytes(num_parts);
  std::vector<float> carried(all.n);
  {
    const nb::gil_scoped_release released;
    uint64_t begin = 0;
    for (uint64_t part = 0; part < num_parts; ++part) {
      const auto end = static_cast<uint64_t>(ends(part));
      const size_t before = message.size();
      encode(codec, {all.places + begin, all.values + begin, end - begin}, static_cast<uint32_t>(firsts(part)), message,
             carried.data() + begin);
      nbytes[part] = static_cast<int64_t>(message.size() - before);
      begin = end;
    }
  }
  return nb::make_tuple(as_array(std::move(message)), as_array(std::move(nbytes)), as_array(std::move(carried)));
}

nb::object decode_part(const Column<uint8_t>& message, uint32_t first, uint64_t last, int place_codec,
                       int value_codec) {
  const Codec codec = codec_of(place_codec, value_codec);
  need(first <= last && last <= uint64_t{1} << 32, "a region must have its end behind its begin, and below 2^32");
  std::vector<uint32_t> places;
  std::vector<float> values;
  {
    const nb::gil_scoped_release released;
    if (!decode(codec, message.data(), message.shape(0), first, last, places, values)) return nb::none();
  }
  return nb::make_tuple(as_array(std::move(places)), as_array(std::move(values)));
}

}  // namespace

void bind_sparse(nb::module_& module) {
  module.def("select_largest", &select, nb::arg("x"), nb::arg("k"), nb::arg("added").none() = nb::none(),
             nb::arg("total").none() = nb::none());
  module.def("add_elements", &add, nb::arg("parts"));
  module.def("sorted_magnitudes", &sort, nb::arg("values"));
  module.def("subtract_kept", &subtract, nb::arg("x"), nb::arg("places"), nb::arg("values"), nb::arg("kept"));
  module.def("encode_elements", &encode_parts, nb::arg("places"), nb::arg("values"), nb::arg("ends"), nb::arg("firsts"),
             nb::arg("place_codec"), nb::arg("value_codec"));
  module.def("decode_elements", &decode_part, nb::arg("message"), nb::arg("first"), nb::arg("last"),
             nb::arg("place_codec"), nb::arg("value_codec"));
}

}  // namespace hocket
