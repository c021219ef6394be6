#include "bind/methods.hpp"

#include "bind/arguments.hpp"
#include "bind/call.hpp"
#include "bind/gil.hpp"

namespace hocket {

namespace {

void check_reducible(const Operation& op) {
  if (reducible(op.dtype, op.reduce)) return;
  const std::string what = std::string(name(op.reduce)) + " of " + name(op.dtype);
  throw Failure(ErrorCode::unsupported_dtype, op.dtype == DType::boolean
                                                  ? what + " is not defined; bool has min (and) and max (or)"
                                                  : what + " is not defined; avg needs a floating-point type");
}
// Takes the array that the operation reads and writes in place.
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

void check_nbytes(const char* method, const Array& out, const Array& x, size_t expected_out, const char* rule) {
  if (out.nbytes() == expected_out) return;
  throw Failure(ErrorCode::invalid_argument, std::string(method) + ": out has " + std::to_string(out.nbytes()) +
                                                 " bytes and x has " + std::to_string(x.nbytes()) + ", but " + rule);
}

// `aliased` is the one block that may be the same memory, or null.
void check_overlap(const char* method, const Arrays& arrays, bool is_allowed_alias) {
  if (!arrays.out.overlaps(arrays.in) || is_allowed_alias) return;
  throw Failure(ErrorCode::invalid_argument, std::string(method) + ": out and x overlap in memory; pass a copy of x");
}

PyObject* all_reduce(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<6> signature{"all_reduce", {"x", "op", "backend", "async_op", "deps", "timeout"}, 1, 2};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const Options options = read_options(entry, v[2], v[3], v[4], v[5]);
    auto arrays = arrays_pool().take();
    Operation op{.kind = OpKind::all_reduce, .reduce = read_reduce(v[1])};
    take_in_place(entry, v[0], Access::write, op, *arrays);
    check_reducible(op);
    return run(self, entry, op, std::move(arrays), options);
  });
}

PyObject* reduce(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "reduce", {"x", "root", "op", "backend", "async_op", "deps", "timeout"}, 2, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const Options options = read_options(entry, v[3], v[4], v[5], v[6]);
    auto arrays = arrays_pool().take();
    Operation op{
        .kind = OpKind::reduce, .reduce = read_reduce(v[2]), .root = read_rank(v[1], "root", entry.core().size)};
    take_in_place(entry, v[0], op.root == entry.core().rank ? Access::write : Access::read, op, *arrays);
    check_reducible(op);
    return run(self, entry, op, std::move(arrays), options);
  });
}

PyObject* broadcast(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<6> signature{"broadcast", {"x", "root", "backend", "async_op", "deps", "timeout"}, 2, 2};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const Options options = read_options(entry, v[2], v[3], v[4], v[5]);
    auto arrays = arrays_pool().take();
    Operation op{.kind = OpKind::broadcast, .root = read_rank(v[1], "root", entry.core().size)};
    take_in_place(entry, v[0], op.root == entry.core().rank ? Access::read : Access::write, op, *arrays);
    return run(self, entry, op, std::move(arrays), options);
  });
}

PyObject* barrier(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<4> signature{"barrier", {"backend", "async_op", "deps", "timeout"}, 0, 0};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const Options options = read_options(entry, v[0], v[1], v[2], v[3]);
    return run(self, entry, Operation{.kind = OpKind::barrier}, arrays_pool().take(), options);
  });
}

PyObject* gather_as(PyObject* self, OpKind kind, PyObject* out, PyObject* x, const Entry& entry,
                    const Options& options) {
  auto arrays = arrays_pool().take();
  Operation op{.kind = kind};
  take_in_and_out(entry, out, x, op, *arrays);
  op.nbytes = arrays->in.nbytes();
  const auto size = static_cast<size_t>(entry.core().size);
  check_nbytes(name(kind), arrays->out, arrays->in, size * op.nbytes, "out must hold the x of every rank");
  // FSDP gathers into a buffer of which x is this rank's own block.
  const std::byte* own = op.out + static_cast<size_t>(entry.core().rank) * op.nbytes;
  check_overlap(name(kind), *arrays, arrays->in.is_same_range(own, op.nbytes));
  return run(self, entry, op, std::move(arrays), options);
}

PyObject* all_gather(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<6> signature{"all_gather", {"out", "x", "backend", "async_op", "deps", "timeout"}, 2, 2};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    return gather_as(self, OpKind::all_gather, v[0], v[1], entry, read_options(entry, v[2], v[3], v[4], v[5]));
  });
}

void check_on_root_only(const char* method, const char* argument, PyObject* object, bool is_root) {
  const bool is_given = object && object != Py_None;
  if (is_given == is_root) return;
  throw Failure(ErrorCode::invalid_argument,
                std::string(method) + ": " + (is_root ? "the root needs " : "only the root has ") + argument +
                    (is_root ? ", with a block for every rank" : "; pass None on the other ranks"));
}

PyObject* gather(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "gather", {"out", "x", "root", "backend", "async_op", "deps", "timeout"}, 3, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const Options options = read_options(entry, v[3], v[4], v[5], v[6]);
    const int size = entry.core().size;
    const int rank = entry.core().rank;
    auto arrays = arrays_pool().take();
    Operation op{.kind = OpKind::gather, .root = read_rank(v[2], "root", size)};
    check_on_root_only("gather", "out", v[0], op.root == rank);
    if (op.root == rank) {
      take_in_and_out(entry, v[0], v[1], op, *arrays);
      op.nbytes = arrays->in.nbytes();
      check_nbytes("gather", arrays->out, arrays->in, static_cast<size_t>(size) * op.nbytes,
                   "out must hold the x of every rank");
      const std::byte* own = op.out + static_cast<size_t>(rank) * op.nbytes;
      check_overlap("gather", *arrays, arrays->in.is_same_range(own, op.nbytes));
    } else {
      take_in_place(entry, v[1], Access::read, op, *arrays);
      op.out = nullptr;
    }
    return run(self, entry, op, std::move(arrays), options);
  });
}

PyObject* scatter(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "scatter", {"out", "x", "root", "backend", "async_op", "deps", "timeout"}, 3, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const Options options = read_options(entry, v[3], v[4], v[5], v[6]);
    const int size = entry.core().size;
    const int rank = entry.core().rank;
    auto arrays = arrays_pool().take();
    Operation op{.kind = OpKind::scatter, .root = read_rank(v[2], "root", size)};
    check_on_root_only("scatter", "x", v[1], op.root == rank);
    if (op.root == rank) {
      take_in_and_out(entry, v[0], v[1], op, *arrays);
      op.nbytes = arrays->out.nbytes();
      if (arrays->in.nbytes() != static_cast<size_t>(size) * op.nbytes)
        check_nbytes("scatter", arrays->out, arrays->in, SIZE_MAX, "x must hold one block like out for every rank");
      const std::byte* own = op.in + static_cast<size_t>(rank) * op.nbytes;
      check_overlap("scatter", *arrays, arrays->out.is_same_range(own, op.nbytes) && !arrays->in.is_copy());
    } else {
      take_in_place(entry, v[0], Access::write, op, *arrays);
      op.in = nullptr;
    }
    return run(self, entry, op, std::move(arrays), options);
  });
}

// all_gather under the name of what it is done for, so that a mismatch names that.
PyObject* gather_for(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<3> signature{"_gather_for", {"kind", "out", "x"}, 3, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const bool is_split = PyUnicode_CompareWithASCIIString(v[0], "split") == 0;
    return gather_as(self, is_split ? OpKind::split : OpKind::dup, v[1], v[2], entry,
                     {.timeout_s = entry.communicator().timeout_s, .is_internal = true});
  });
}

PyObject* reduce_scatter(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<7> signature{
      "reduce_scatter", {"out", "x", "op", "backend", "async_op", "deps", "timeout"}, 2, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const Options options = read_options(entry, v[3], v[4], v[5], v[6]);
    auto arrays = arrays_pool().take();
    Operation op{.kind = OpKind::reduce_scatter, .reduce = read_reduce(v[2])};
    take_in_and_out(entry, v[0], v[1], op, *arrays);
    check_reducible(op);
    op.nbytes = arrays->out.nbytes();
    const auto size = static_cast<size_t>(entry.core().size);
    if (arrays->in.nbytes() != size * op.nbytes)
      check_nbytes("reduce_scatter", arrays->out, arrays->in, SIZE_MAX,
                   "x must hold one block like out for every rank");
    const std::byte* own = op.in + static_cast<size_t>(entry.core().rank) * op.nbytes;
    check_overlap("reduce_scatter", *arrays, arrays->out.is_same_range(own, op.nbytes) && !arrays->in.is_copy());
    return run(self, entry, op, std::move(arrays), options);
  });
}

PyObject* all_to_all(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<6> signature{"all_to_all", {"out", "x", "backend", "async_op", "deps", "timeout"}, 2, 2};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const Options options = read_options(entry, v[2], v[3], v[4], v[5]);
    auto arrays = arrays_pool().take();
    Operation op{.kind = OpKind::all_to_all};
    take_in_and_out(entry, v[0], v[1], op, *arrays);
    const auto size = static_cast<size_t>(entry.core().size);
    check_nbytes("all_to_all", arrays->out, arrays->in, arrays->in.nbytes(), "both must have the same size");
    if (arrays->in.nbytes() % (size * itemsize(op.dtype)) != 0)
      throw Failure(ErrorCode::invalid_argument,
                    "all_to_all: x has " + std::to_string(arrays->in.nbytes() / itemsize(op.dtype)) +
                        " items, which cannot be split into " + std::to_string(size) + " equal blocks");
    op.nbytes = arrays->in.nbytes() / size;
    check_overlap("all_to_all", *arrays, false);
    return run(self, entry, op, std::move(arrays), options);
  });
}

bool expects_from_self(const Entry& entry, int tag) {
  const ProgressGuard guard;  // the progress thread may be at the lane
  // If it failed or was closed meanwhile, that is what run() says.
  return entry.core().failure() || entry.core().expects_from_self(tag);
}

// A message whose arguments are good, not issued yet.
struct Message {
  Operation op;
  std::unique_ptr<Arrays> arrays;
};

Message read_message(const Entry& entry, OpKind kind, PyObject* x, PyObject* peer, PyObject* tag) {
  const bool is_send = kind == OpKind::send;
  Message message{
      {.kind = kind, .root = read_rank(peer, is_send ? "dst" : "src", entry.core().size), .tag = read_tag(tag)},
      arrays_pool().take()};
  take_in_place(entry, x, is_send ? Access::read : Access::write, message.op, *message.arrays);
  return message;
}

PyObject* send_as(PyObject* self, bool is_async, PyObject* x, PyObject* dst, PyObject* tag, PyObject* backend,
                  PyObject* timeout) {
  const Entry entry(self);
  Message message = read_message(entry, OpKind::send, x, dst, tag);
  const Operation& op = message.op;
  if (!is_async && op.root == entry.core().rank && !expects_from_self(entry, op.tag))
    throw Failure(ErrorCode::invalid_argument, "send to this rank itself would never end, as no receive with tag " +
                                                   std::to_string(op.tag) + " was issued; issue irecv first");
  return run(self, entry, op, std::move(message.arrays),
             {is_async, read_timeout(timeout, entry.communicator()), backend, nullptr});
}

PyObject* recv_as(PyObject* self, bool is_async, PyObject* x, PyObject* src, PyObject* tag, PyObject* backend,
                  PyObject* timeout) {
  const Entry entry(self);
  Message message = read_message(entry, OpKind::recv, x, src, tag);
  return run(self, entry, message.op, std::move(message.arrays),
             {is_async, read_timeout(timeout, entry.communicator()), backend, nullptr});
}

// Issues messages whose arguments are all good; returns their Work objects.
std::vector<nb::object> issue_all(PyObject* self, const Entry& entry, std::vector<Message>& messages, double timeout_s,
                                  PyObject* backend) {
  std::vector<nb::object> works;
  for (Message& message : messages)
    works.push_back(
        nb::steal(run(self, entry, message.op, std::move(message.arrays), {true, timeout_s, backend, nullptr})));
  return works;
}

PyObject* sendrecv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<8> signature{
      "sendrecv", {"x", "dst", "out", "src", "tag", "out_tag", "backend", "timeout"}, 4, 6};
  return guarded([&]() -> PyObject* {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const double timeout_s = read_timeout(v[7], entry.communicator());
    std::vector<Message> messages;
    messages.push_back(read_message(entry, OpKind::recv, v[2], v[3], v[5] && v[5] != Py_None ? v[5] : v[4]));
    messages.push_back(read_message(entry, OpKind::send, v[0], v[1], v[4]));
    if (messages[0].arrays->in.overlaps(messages[1].arrays->in))
      throw Failure(ErrorCode::invalid_argument, "sendrecv: out and x overlap in memory; pass a copy of x");
    for (const nb::object& work : issue_all(self, entry, messages, timeout_s, v[6]))
      wait_for_work(nb::handle(self), nb::inst_ptr<PyWork>(work)->work, timeout_s);
    Py_RETURN_NONE;
  });
}

// messages: tuples ("send" or "recv", x, peer, tag).
PyObject* batch(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<3> signature{"_batch", {"messages", "backend", "timeout"}, 1, 1};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    std::vector<Message> messages;
    for (nb::handle item : nb::handle(v[0])) {
      const auto given = nb::cast<nb::tuple>(item);
      const bool is_send = nb::cast<std::string>(given[0]) == "send";
      messages.push_back(read_message(entry, is_send ? OpKind::send : OpKind::recv, nb::handle(given[1]).ptr(),
                                      nb::handle(given[2]).ptr(), nb::handle(given[3]).ptr()));
    }
    nb::list works;
    for (nb::object& work : issue_all(self, entry, messages, read_timeout(v[2], entry.communicator()), v[1]))
      works.append(std::move(work));
    return works.release().ptr();
  });
}

PyObject* send(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<5> signature{"send", {"x", "dst", "tag", "backend", "timeout"}, 2, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    return send_as(self, false, v[0], v[1], v[2], v[3], v[4]);
  });
}

PyObject* isend(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<5> signature{"isend", {"x", "dst", "tag", "backend", "timeout"}, 2, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    return send_as(self, true, v[0], v[1], v[2], v[3], v[4]);
  });
}

PyObject* recv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<5> signature{"recv", {"x", "src", "tag", "backend", "timeout"}, 2, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    return recv_as(self, false, v[0], v[1], v[2], v[3], v[4]);
  });
}

PyObject* irecv(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<5> signature{"irecv", {"x", "src", "tag", "backend", "timeout"}, 2, 3};
  return guarded([&] {
    const auto v = signature.read(args, nargs, kwnames);
    return recv_as(self, true, v[0], v[1], v[2], v[3], v[4]);
  });
}

template <auto Function>
PyMethodDef method(const char* name, const char* doc) {
  return {name, reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(Function)), METH_FASTCALL | METH_KEYWORDS, doc};
}

}  // namespace

PyMethodDef* operation_methods() {
  static PyMethodDef methods[] = {
      method<all_reduce>("all_reduce", "Reduce x over all ranks, in place on every rank."),
      method<reduce>("reduce", "Reduce x over all ranks, in place on the root; x of the others stays as it is."),
      method<broadcast>("broadcast", "Copy x of the root into x of every rank."),
      method<barrier>("barrier", "Return when all ranks have entered."),
      method<all_gather>("all_gather", "Put x of rank r into block r of out, on every rank."),
      method<reduce_scatter>("reduce_scatter",
                             "Reduce x over all ranks and put block r of the result into out of rank r."),
      method<all_to_all>("all_to_all", "Put block r of x into block (own rank) of out on rank r."),
      method<gather>("gather", "Put x of rank r into block r of out on the root; out is None on the others."),
      method<scatter>("scatter", "Put block r of the root's x into out of rank r; x is None on the others."),
      method<send>("send", "Send x to rank dst."),
      method<recv>("recv", "Receive from rank src into x."),
      method<isend>("isend", "Send x to rank dst; returns a Work."),
      method<irecv>("irecv", "Receive from rank src into x; returns a Work."),
      method<sendrecv>("sendrecv", "Send x to rank dst while receiving from rank src into out."),
      method<batch>("_batch", nullptr),
      method<gather_for>("_gather_for", nullptr),
      {nullptr, nullptr, 0, nullptr}};
  return methods;
}

}  // namespace hocket
