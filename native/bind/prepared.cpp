#include "bind/prepared.hpp"

#include <nanobind/stl/optional.h>

#include "bind/gil.hpp"

namespace hocket {

namespace {

struct PyPrepared {
  nb::object communicator;
  Operation op;
  Arrays* arrays;              // belong to pins
  std::shared_ptr<void> pins;  // shared with the works
  double timeout_s;
  WorkPtr work;  // of a start that was not waited for yet
};

PyPrepared& prepared_of(PyObject* self) { return *nb::inst_ptr<PyPrepared>(nb::handle(self)); }

// Whether it is over meanwhile does not matter: that may differ between the ranks.
void check_not_started(const PyPrepared& prepared) {
  if (prepared.work)
    throw Failure(ErrorCode::invalid_state,
                  "this " + describe(prepared.op) + " was started; wait() for it before it is started again");
}

void start_as(PyPrepared& prepared, const Entry& entry, bool is_async) {
  check_not_started(prepared);
  note_written(*prepared.arrays);
  Operation op = prepared.op;
  Communicator::AtOnce at_once;
  prepared.arrays->look_again();
  if (prepared.arrays->has_copies()) prepared.arrays->read_in();
  if (!is_async && try_at_once(entry.core(), op, at_once)) [[likely]] {
    if (prepared.arrays->has_copies()) prepared.arrays->write_back();
    return;
  }
  release_finished_arrays();
  prepared.work = make_work(entry, op, *prepared.arrays, prepared.timeout_s);
  prepared.work->pins = prepared.pins;
  issue(prepared.communicator.ptr(), entry.core(), prepared.work, at_once, is_async);
}

PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  return guarded([&]() -> PyObject* {
    if (PyTuple_GET_SIZE(args) != 0 || (kwargs && PyDict_GET_SIZE(kwargs) != 0))
      throw Failure(ErrorCode::invalid_type, "a prepared operation takes no arguments; it has those of prepare()");
    PyPrepared& prepared = prepared_of(self);
    const Entry entry = enter_for_collective(prepared.communicator.ptr());
    start_as(prepared, entry, false);
    if (const WorkPtr work = std::exchange(prepared.work, nullptr))
      wait_for_work(prepared.communicator, work, prepared.timeout_s);
    Py_RETURN_NONE;
  });
}

PyObject* start(PyObject* self, PyObject*) {
  return guarded([&]() -> PyObject* {
    PyPrepared& prepared = prepared_of(self);
    const Entry entry = enter_for_collective(prepared.communicator.ptr());
    start_as(prepared, entry, true);
    Py_RETURN_NONE;
  });
}

// Calls a method of the started work, which is done with if it is over.
template <typename... Arguments>
nb::object ask_work(PyPrepared& prepared, const char* method, const Arguments&... arguments) {
  const WorkPtr work = prepared.work;
  if (!work) throw Failure(ErrorCode::invalid_state, "this " + describe(prepared.op) + " was not started");
  const auto forget_finished = [&] {
    if (work->finished()) prepared.work = nullptr;
  };
  try {
    nb::object result = nb::cast(PyWork{work, prepared.communicator}).attr(method)(arguments...);
    forget_finished();
    return result;
  } catch (...) {
    forget_finished();
    throw;
  }
}

}  // namespace

PyObject* prepare(PyObject* self, const Operation& op, std::unique_ptr<Arrays> arrays, const Options& options) {
  if (options.is_async || (options.deps && options.deps != Py_None))
    throw Failure(
        ErrorCode::invalid_argument,
        "prepare() takes no async_op and no deps: start() is asynchronous, and follows what was issued before "
        "it");
  Arrays* borrowed = arrays.get();
  PyPrepared prepared{nb::borrow(nb::handle(self)), op, borrowed, pin(std::move(arrays)), options.timeout_s, nullptr};
  prepared.op.site = nullptr;
  prepared.op.is_named = true;
  return nb::cast(std::move(prepared)).release().ptr();
}

void bind_prepared(nb::module_& module) {
  static PyMethodDef methods[] = {{"start", start, METH_NOARGS, "Issue it; returns at once."}, {}};
  PyType_Slot slots[] = {{Py_tp_methods, methods}, {Py_tp_call, reinterpret_cast<void*>(call)}, {0, nullptr}};
  nb::class_<PyPrepared>(module, "Prepared", nb::type_slots(slots),
                         "An operation whose arguments were read once, to be issued again and again.")
      .def(
          "wait", [](PyPrepared& self, std::optional<double> timeout) { ask_work(self, "wait", timeout); },
          nb::arg("timeout").none() = nb::none())
      .def("test", [](PyPrepared& self) { return ask_work(self, "test"); })
      .def("__repr__", [](const PyPrepared& self) { return "<hocket.Prepared " + describe(self.op) + ">"; });
}

}  // namespace hocket
