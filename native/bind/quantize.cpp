#include "bind/quantize.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <array>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "bind/columns.hpp"
#include "bind/names.hpp"
#include "quantize/quantize.hpp"

namespace hocket {

namespace {

using Values = Column<float>;
using WrittenValues = nb::ndarray<float, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

constexpr std::array kWays = {"set", "add", "subtract"};  // as in Applied

uint64_t checked(uint64_t group) {
  need(group > 0, "a group must have an element or more");
  return group;
}

void need_levels(int levels) { need(levels >= 1 && levels <= 127, "there must be from 1 to 127 levels"); }

// A message begins with a float for each group. It may be at any address.
std::vector<float> floats_of(const Column<uint8_t>& message, uint64_t count) {
  std::vector<float> found(count);
  if (count > 0) std::memcpy(found.data(), message.data(), count * sizeof(float));
  return found;
}

nb::object qsgd(const Values& x, uint64_t group, int levels, uint64_t seed) {
  const uint64_t n = x.shape(0), groups = num_groups(n, checked(group));
  need_levels(levels);
  std::vector<uint8_t> message(4 * groups + n);
  {
    const nb::gil_scoped_release released;
    std::vector<float> norms(groups);
    quantizers(active_isa_kind())
        .qsgd(x.data(), n, group, levels, seed, norms.data(), reinterpret_cast<int8_t*>(message.data() + 4 * groups));
    if (groups > 0) std::memcpy(message.data(), norms.data(), 4 * groups);
  }
  return as_array(std::move(message));
}

bool apply_qsgd(const Column<uint8_t>& message, uint64_t group, int levels, const WrittenValues& x,
                const std::string& how) {
  const uint64_t n = x.shape(0), groups = num_groups(n, checked(group));
  need_levels(levels);
  const auto way = static_cast<Applied>(index_of(kWays, how, "way to apply values"));
  if (message.shape(0) != 4 * groups + n) return false;
  const nb::gil_scoped_release released;
  quantizers(active_isa_kind())
      .apply_qsgd(floats_of(message, groups).data(), reinterpret_cast<const int8_t*>(message.data() + 4 * groups), n,
                  group, levels, way, x.data());
  return true;
}

nb::object one_bit(const Values& x, uint64_t group) {
  need(group % 8 == 0, "a group must have a multiple of 8 elements");
  const uint64_t n = x.shape(0), groups = num_groups(n, checked(group));
  std::vector<uint8_t> message(4 * groups + (n + 7) / 8);
  {
    const nb::gil_scoped_release released;
    std::vector<float> means(groups);
    quantizers(active_isa_kind()).one_bit(x.data(), n, group, means.data(), message.data() + 4 * groups);
    if (groups > 0) std::memcpy(message.data(), means.data(), 4 * groups);
  }
  return as_array(std::move(message));
}

bool apply_one_bit(const Column<uint8_t>& message, uint64_t group, const WrittenValues& x, const std::string& how) {
  need(group % 8 == 0, "a group must have a multiple of 8 elements");
  const uint64_t n = x.shape(0), groups = num_groups(n, checked(group));
  const auto way = static_cast<Applied>(index_of(kWays, how, "way to apply values"));
  if (message.shape(0) != 4 * groups + (n + 7) / 8) return false;
  const nb::gil_scoped_release released;
  quantizers(active_isa_kind())
      .apply_one_bit(floats_of(message, groups).data(), message.data() + 4 * groups, n, group, way, x.data());
  return true;
}

nb::object bfloat16(const Values& x) {
  const uint64_t n = x.shape(0);
  std::vector<uint16_t> out(n);
  {
    const nb::gil_scoped_release released;
    quantizers(active_isa_kind()).bfloat16(x.data(), n, out.data());
  }
  return as_array(std::move(out));
}

bool apply_bfloat16(const Column<uint16_t>& message, const WrittenValues& x, const std::string& how) {
  const auto way = static_cast<Applied>(index_of(kWays, how, "way to apply values"));
  if (message.shape(0) != x.shape(0)) return false;
  const nb::gil_scoped_release released;
  quantizers(active_isa_kind()).apply_bfloat16(message.data(), x.shape(0), way, x.data());
  return true;
}

}  // namespace

void bind_quantize(nb::module_& module) {
  module.def("qsgd", &qsgd, nb::arg("x"), nb::arg("group"), nb::arg("levels"), nb::arg("seed"));
  module.def("apply_qsgd", &apply_qsgd, nb::arg("message"), nb::arg("group"), nb::arg("levels"), nb::arg("x"),
             nb::arg("how"));
  module.def("one_bit", &one_bit, nb::arg("x"), nb::arg("group"));
  module.def("apply_one_bit", &apply_one_bit, nb::arg("message"), nb::arg("group"), nb::arg("x"), nb::arg("how"));
  module.def("bfloat16", &bfloat16, nb::arg("x"));
  module.def("apply_bfloat16", &apply_bfloat16, nb::arg("message"), nb::arg("x"), nb::arg("how"));
}

}  // namespace hocket
