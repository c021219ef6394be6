#include "bind/operands.hpp"

namespace hocket {

void check_reducible(const Operation& op) {
  if (reducible(op.dtype, op.reduce)) return;
  std::string known;
  for (size_t i = 0; i < kNumReduceOps; ++i)
    if (reducible(op.dtype, static_cast<ReduceOp>(i)))
      known += std::string(known.empty() ? "" : ", ") + kReduceNames[i];
  throw Failure(ErrorCode::unsupported_dtype, std::string(name(op.reduce)) + " of " + name(op.dtype) +
                                                  " is not defined; " + name(op.dtype) + " has " + known);
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
      throw Failure(ErrorCode::invalid_argument, what + "; together they are more than 2^64 bytes");
    offsets.push_back(end);
  }
  return offsets;
}

}  // namespace hocket
