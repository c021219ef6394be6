#include "select/select.hpp"

#include <cstdint>
#include <limits>
#include <utility>
#include <vector>

#include "bind/columns.hpp"
#include "bind/select.hpp"

namespace hocket {

namespace {

nb::object select(const Column<float>& x, uint64_t k) {
  const uint64_t n = x.shape(0);
  need(n <= std::numeric_limits<uint32_t>::max(), "an array has more than 4,294,967,295 elements");
  need(k > 0 && k <= n, "the number of elements to select must be from 1 to that of the array");
  std::vector<uint32_t> places;
  std::vector<float> values;
  Selected found;
  {
    const nb::gil_scoped_release released;
    found = select_largest(x.data(), n, k, places, values);
  }
  if (!found.is_finite) return nb::none();
  return nb::make_tuple(as_array(std::move(places)), as_array(std::move(values)), found.threshold, found.num_above,
                        found.num_equal);
}

}  // namespace

void bind_select(nb::module_& module) { module.def("select_largest", &select, nb::arg("x"), nb::arg("k")); }

}  // namespace hocket
