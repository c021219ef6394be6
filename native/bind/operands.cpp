#include "bind/operands.hpp"

#include <algorithm>

#include "bind/tensor.hpp"

namespace hocket {

void check_reducible(const Operation& op) {
  if (reducible(op.dtype, op.reduce)) return;
  std::string known;
  for (size_t i = 0; i < kNumReduceOps; ++i)
    if (reducible(op.dtype, static_cast<ReduceOp>(i)))
      known += std::string(known.empty() ? "" : ", ") + kReduceNames[i];
  throw Failure(ErrorCode::unsupported_dtype, std::string(name(op.reduce)) + " of " + name(op.dtype) +
                                                  " is not defined; " + name(op.dtype) + " supports " + known);
}

void take_in_place(const Entry& entry, PyObject* x, Access access, Operation& op, Arrays& arrays) {
  arrays.in.acquire(x, {"x", access, entry.communicator().check_grad});
  if (access == Access::write) {
    arrays.written = &arrays.in;
    arrays.written_object = nb::borrow(nb::handle(x));
  }
  op.dtype = arrays.in.dtype();
  op.nbytes = arrays.in.nbytes();
  op.in = op.out = arrays.in.data();
}

void take_in_and_out(const Entry& entry, PyObject* out, PyObject* x, Operation& op, Arrays& arrays) {
  arrays.in.acquire(x, {"x", Access::read, false});
  arrays.out.acquire(out, {"out", Access::write, entry.communicator().check_grad});
  arrays.written = &arrays.out;
  arrays.written_object = nb::borrow(nb::handle(out));
  op.dtype = arrays.in.dtype();
  op.in = arrays.in.data();
  op.out = arrays.out.data();
  if (arrays.out.dtype() != op.dtype)
    throw Failure(ErrorCode::invalid_argument,
                  std::string("out has type ") + name(arrays.out.dtype()) + ", but x has " + name(op.dtype));
}

namespace {

void check_parts(const std::vector<std::unique_ptr<Array>>& parts, Access access) {
  std::vector<std::pair<ByteRange, const Array*>> ranges;
  for (size_t i = 0; i < parts.size(); ++i) {
    if (parts[i]->dtype() != parts[0]->dtype())
      throw Failure(ErrorCode::invalid_argument, "xs must be arrays of one type, but number 0 has " +
                                                     std::string(name(parts[0]->dtype())) + " and number " +
                                                     std::to_string(i) + " has " + name(parts[i]->dtype()));
    ByteRange range;
    parts[i]->extent(&range.begin, &range.end);
    if (parts[i]->nbytes()) ranges.emplace_back(range, parts[i].get());
  }
  if (access == Access::read) return;
  std::sort(ranges.begin(), ranges.end(), [](const auto& a, const auto& b) { return a.first.begin < b.first.begin; });
  for (size_t i = 0; i < ranges.size(); ++i)
    for (size_t j = i + 1; j < ranges.size() && ranges[i].first.overlaps(ranges[j].first); ++j)
      if (ranges[i].second->overlaps(*ranges[j].second))
        throw Failure(ErrorCode::invalid_argument, "xs: two of the arrays overlap in memory; pass a copy of one");
}

}  // namespace

void take_parts(const Entry& entry, PyObject* xs, Access access, Operation& op, Arrays& arrays) {
  PyObject* items = PySequence_Fast(xs, "");
  if (!items || is_array(xs)) {
    PyErr_Clear();
    Py_XDECREF(items);
    throw Failure(ErrorCode::invalid_type, std::string("xs must be a sequence of arrays, not ") + Py_TYPE(xs)->tp_name);
  }
  const nb::object held = nb::steal(items);
  size_t nbytes = 0;
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i) {
    PyObject* x = PySequence_Fast_GET_ITEM(items, i);
    const std::string argument = "xs[" + std::to_string(i) + "]";
    arrays.parts.push_back(std::make_unique<Array>());
    arrays.parts.back()->acquire(x, {argument.c_str(), access, entry.communicator().check_grad});
    arrays.parts.back()->stage();
    nbytes += arrays.parts.back()->nbytes();
    if (access == Access::write && is_tensor(x)) arrays.written_parts.push_back(nb::borrow(nb::handle(x)));
  }
  if (arrays.parts.empty()) throw Failure(ErrorCode::invalid_argument, "xs is empty; pass at least one array");
  check_parts(arrays.parts, access);
  arrays.writes_parts = access == Access::write;
  arrays.buffer = std::make_unique_for_overwrite<std::byte[]>(std::max<size_t>(nbytes, 1));
  arrays.read_in();
  op.dtype = arrays.parts[0]->dtype();
  op.nbytes = nbytes;
  op.in = op.out = arrays.buffer.get();
}

BlockOffsets read_counts(PyObject* object, const char* argument, int size, size_t itemsize) {
  const std::string what = std::string(argument) + " must be a sequence of " + std::to_string(size) +
                           " numbers of items, one for every rank";
  PyObject* items = PySequence_Fast(object, "");
  if (!items) {
    PyErr_Clear();
    throw Failure(ErrorCode::invalid_type, what + ", not " + Py_TYPE(object)->tp_name);
  }
  const nb::object held = nb::steal(items);
  if (PySequence_Fast_GET_SIZE(items) != size)
    throw Failure(ErrorCode::invalid_argument,
                  what + ", but it has " + std::to_string(PySequence_Fast_GET_SIZE(items)));
  BlockOffsets offsets{0};
  for (Py_ssize_t i = 0; i < size; ++i) {
    PyObject* item = PySequence_Fast_GET_ITEM(items, i);
    const Py_ssize_t count = PyNumber_AsSsize_t(item, PyExc_OverflowError);
    if (count == -1 && PyErr_Occurred()) {
      PyErr_Clear();
      throw Failure(ErrorCode::invalid_type, what + "; number " + std::to_string(i) + " is " +
                                                 nb::cast<std::string>(nb::repr(nb::handle(item))));
    }
    if (count < 0)
      throw Failure(ErrorCode::invalid_argument,
                    what + "; number " + std::to_string(i) + " is " + std::to_string(count));
    uint64_t nbytes;
    uint64_t end;
    if (__builtin_mul_overflow(static_cast<uint64_t>(count), itemsize, &nbytes) ||
        __builtin_add_overflow(offsets.back(), nbytes, &end))
      throw Failure(ErrorCode::invalid_argument, what + "; their sum exceeds 2^64 bytes");
    offsets.push_back(end);
  }
  return offsets;
}

}  // namespace hocket
