#include "bind/lossless.hpp"

#include <nanobind/ndarray.h>
#include <nanobind/stl/string.h>

#include <cstdint>
#include <string>

#include "bind/columns.hpp"
#include "bind/names.hpp"
#include "lossless/lossless.hpp"

namespace hocket {

namespace {

using Bytes = Column<uint8_t>;
using WrittenBytes = nb::ndarray<uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

DType dtype_of(const std::string& name) { return static_cast<DType>(index_of(kDTypeNames, name, "type of elements")); }

// The number of elements that so many bytes are.
uint64_t elements_in(uint64_t nbytes, DType dtype) {
  need(nbytes % itemsize(dtype) == 0, "the bytes must be those of whole elements");
  return nbytes / itemsize(dtype);
}

uint64_t pack(const Bytes& elements, const std::string& dtype, const WrittenBytes& out) {
  const DType type = dtype_of(dtype);
  const uint64_t n = elements_in(elements.shape(0), type);
  need(out.shape(0) >= most_packed_nbytes(type, n), "the array for what is packed is too small");
  const nb::gil_scoped_release released;
  return pack_lossless(active_isa_kind(), type, elements.data(), n, out.data());
}

bool unpack(const Bytes& packed, const std::string& dtype, const WrittenBytes& elements) {
  const DType type = dtype_of(dtype);
  const uint64_t n = elements_in(elements.shape(0), type);
  const nb::gil_scoped_release released;
  return unpack_lossless(active_isa_kind(), type, packed.data(), packed.shape(0), elements.data(), n);
}

}  // namespace

void bind_lossless(nb::module_& module) {
  module.def(
      "most_packed_nbytes",
      [](const std::string& dtype, uint64_t nbytes) {
        return most_packed_nbytes(dtype_of(dtype), elements_in(nbytes, dtype_of(dtype)));
      },
      nb::arg("dtype"), nb::arg("nbytes"));
  module.def("pack_lossless", &pack, nb::arg("elements"), nb::arg("dtype"), nb::arg("out"));
  module.def("unpack_lossless", &unpack, nb::arg("packed"), nb::arg("dtype"), nb::arg("elements"));
}

}  // namespace hocket
