// Messages between two ranks.
#include "bind/arguments.hpp"
#include "bind/gil.hpp"
#include "bind/methods.hpp"
#include "bind/operands.hpp"

namespace hocket {

namespace {

bool expects_from_self(const Entry& entry, int tag) {
  const ProgressGuard guard;  // the progress thread may be using the lane
  // If the communicator failed or was closed meanwhile, run() raises that.
  return entry.core().failure() || entry.core().expects_from_self(tag);
}

// A message with checked arguments, not issued yet.
struct Message {
  Operation op;
  std::unique_ptr<Arrays> arrays;
};

int read_peer(PyObject* object, const char* argument, int size) {
  int overflow;
  if (PyLong_AsLongAndOverflow(object, &overflow) == kProcNull) return kProcNull;
  if (PyErr_Occurred()) PyErr_Clear();  // read_rank reports a value that is not a number
  return read_rank(object, argument, size);
}

Message read_message(const Entry& entry, OpKind kind, PyObject* x, PyObject* peer, PyObject* tag) {
  const bool is_send = kind == OpKind::send;
  Message message{
      {.kind = kind, .root = read_peer(peer, is_send ? "dst" : "src", entry.core().size), .tag = read_tag(tag)},
      arrays_pool().take()};
  take_in_place(entry, x, is_send ? Access::read : Access::write, message.op, *message.arrays);
  message.arrays->stage(message.op);  // before the first of several messages is issued
  return message;
}

// A message to or from PROC_NULL completes at once and leaves no event; a named backend must still be available.
PyObject* run_message(PyObject* self, const Entry& entry, Message& message, const Options& options) {
  if (message.op.root != kProcNull) return run(self, entry, message.op, std::move(message.arrays), options);
  if (entry.communicator().mode == PyCommunicator::Mode::prepare)
    throw Failure(ErrorCode::invalid_argument,
                  "a message to or from PROC_NULL cannot be prepared, because nothing is sent");
  entry.communicator().choose(options.backend, message.op, false);
  if (!options.is_async) Py_RETURN_NONE;
  const WorkPtr work = make_work(entry, message.op, *message.arrays, options.timeout_s);
  work->read_in = work->write_back = nullptr;
  work->state.store(Work::State::done, std::memory_order_release);
  return nb::cast(PyWork{work, nb::borrow(nb::handle(self))}).release().ptr();
}

PyObject* send_as(PyObject* self, bool is_async, PyObject* x, PyObject* dst, PyObject* tag, PyObject* backend,
                  PyObject* timeout) {
  const Entry entry(self);
  Message message = read_message(entry, OpKind::send, x, dst, tag);
  const Operation& op = message.op;
  if (!is_async && op.root == entry.core().rank && !expects_from_self(entry, op.tag))
    throw Failure(ErrorCode::invalid_argument,
                  "send to this rank itself would never complete, because no receive with tag " +
                      std::to_string(op.tag) + " was issued; issue irecv first");
  return run_message(self, entry, message, {is_async, read_timeout(timeout, entry.communicator()), backend, nullptr});
}

PyObject* recv_as(PyObject* self, bool is_async, PyObject* x, PyObject* src, PyObject* tag, PyObject* backend,
                  PyObject* timeout) {
  const Entry entry(self);
  Message message = read_message(entry, OpKind::recv, x, src, tag);
  return run_message(self, entry, message, {is_async, read_timeout(timeout, entry.communicator()), backend, nullptr});
}

// Issues messages with checked arguments; returns their Work objects.
std::vector<nb::object> issue_all(PyObject* self, const Entry& entry, std::vector<Message>& messages, double timeout_s,
                                  PyObject* backend) {
  std::vector<nb::object> works;
  for (Message& message : messages)
    works.push_back(nb::steal(run_message(self, entry, message, {true, timeout_s, backend, nullptr})));
  return works;
}

}  // namespace

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

PyObject* find_sender(PyObject* self, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  static constexpr Signature<1> signature{"_find_sender", {"tag"}, 1, 1};
  return guarded([&]() -> PyObject* {
    const auto v = signature.read(args, nargs, kwnames);
    const Entry entry(self);
    const int tag = read_tag(v[0]);
    std::optional<int> sender;
    {
      const ProgressGuard guard;
      if (entry.core().failure()) throw Failure(*entry.core().failure());
      sender = entry.core().find_sender(tag);
      Engine::instance().poll();
    }
    if (!sender) Py_RETURN_NONE;
    return PyLong_FromLong(*sender);
  });
}

}  // namespace hocket
