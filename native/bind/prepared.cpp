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
  WorkPtr work;      // of the last start, until the program has waited for it
  nb::object again;  // prepares the operation again

  PyPrepared(nb::object its_communicator, const Operation& its_op, Arrays* its_arrays, std::shared_ptr<void> its_pins,
             double its_timeout_s)
      : communicator(std::move(its_communicator)),
        op(its_op),
        arrays(its_arrays),
        pins(std::move(its_pins)),
        timeout_s(its_timeout_s) {}
  PyPrepared(PyPrepared&&) = default;
  ~PyPrepared() { release_pins(pins); }
};

PyPrepared& prepared_of(PyObject* self) { return *nb::inst_ptr<PyPrepared>(nb::handle(self)); }

// Applies even if the operation has finished meanwhile, because that may differ between ranks.
void check_not_started(const PyPrepared& prepared) {
  if (prepared.work)
    throw Failure(ErrorCode::invalid_state,
                  "this " + describe(prepared.op) + " was started; wait() for it before it is started again");
}

// Before a start: if an array has other memory now (x.data = y), reads the arguments again; the backend stays.
void get_ready(PyPrepared& prepared) {
  check_not_started(prepared);
  if (!prepared.arrays->have_changed()) [[likely]]
    return;
  const nb::object made = prepared.again();
  PyPrepared& fresh = *nb::inst_ptr<PyPrepared>(made);
  if (fresh.op.nbytes != prepared.op.nbytes || fresh.op.dtype != prepared.op.dtype)
    throw Failure(ErrorCode::invalid_state, "this operation was prepared as " + describe(prepared.op) +
                                                "; its present arrays would make it " + describe(fresh.op) +
                                                "; prepare it again");
  fresh.op.backend = prepared.op.backend;
  fresh.op.program = prepared.op.program;
  prepared.op = fresh.op;
  prepared.arrays = fresh.arrays;
  prepared.pins = fresh.pins;
}

void start_as(PyPrepared& prepared, const Entry& entry, bool is_async) {
  note_written(*prepared.arrays);
  Operation op = prepared.op;
  Communicator::FastPathResult fast;
  prepared.arrays->refresh_device();
  if (prepared.arrays->has_copies()) prepared.arrays->read_in();
  if (!is_async && try_fast_path(entry, *prepared.arrays, op, fast)) [[likely]] {
    if (prepared.arrays->has_copies()) prepared.arrays->write_back();
    return;
  }
  release_finished_arrays();
  prepared.work = make_work(entry, op, *prepared.arrays, prepared.timeout_s);
  prepared.work->pins = prepared.pins;
  issue(prepared.communicator.ptr(), entry, *prepared.arrays, prepared.work, fast, is_async);
}

PyObject* call(PyObject* self, PyObject* args, PyObject* kwargs) {
  return guarded([&]() -> PyObject* {
    if (PyTuple_GET_SIZE(args) != 0 || (kwargs && PyDict_GET_SIZE(kwargs) != 0))
      throw Failure(ErrorCode::invalid_type, "a prepared operation takes no arguments; they were given to prepare()");
    PyPrepared& prepared = prepared_of(self);
    get_ready(prepared);
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
    get_ready(prepared);
    const Entry entry = enter_for_collective(prepared.communicator.ptr());
    start_as(prepared, entry, true);
    Py_RETURN_NONE;
  });
}

// Calls a method of the started work, and drops the work if it has finished.
template <typename... Arguments>
nb::object ask_work(PyPrepared& prepared, const char* method, const Arguments&... arguments) {
  const WorkPtr work = prepared.work;
  if (!work)
    throw Failure(ErrorCode::invalid_state, "this " + describe(prepared.op) + " was not started; call start() first");
  const auto forget_finished = [&] {
    if (work->finished()) prepared.work = nullptr;
  };
  try {
    nb::object result = nb::cast(PyWork{work, prepared.communicator}).attr(method)(arguments...);
    // The progress thread may have finished it since: a caller that got False will ask again.
    if (!result.is(nb::handle(Py_False))) forget_finished();
    return result;
  } catch (...) {
    forget_finished();
    throw;
  }
}

}  // namespace

PyObject* prepare(PyObject* self, const Operation& op, std::unique_ptr<Arrays> arrays, const Options& options) {
  if (options.is_async || (options.deps && options.deps != Py_None))
    throw Failure(ErrorCode::invalid_argument,
                  "prepare() takes no async_op and no deps: start() is asynchronous, and follows all operations issued "
                  "before it");
  Arrays* borrowed = arrays.get();
  PyPrepared prepared{nb::borrow(nb::handle(self)), op, borrowed, pin(std::move(arrays), self), options.timeout_s};
  prepared.op.site = nullptr;
  prepared.op.is_named = true;
  return nb::cast(std::move(prepared)).release().ptr();
}

void bind_prepared(nb::module_& module) {
  static PyMethodDef methods[] = {{"start", start, METH_NOARGS, "Issue the operation and return at once."}, {}};
  PyType_Slot slots[] = {{Py_tp_methods, methods}, {Py_tp_call, reinterpret_cast<void*>(call)}, {0, nullptr}};
  nb::class_<PyPrepared>(module, "Prepared", nb::type_slots(slots),
                         "An operation whose arguments were checked once, to be issued many times.")
      .def(
          "wait", [](PyPrepared& self, std::optional<double> timeout) { ask_work(self, "wait", timeout); },
          nb::arg("timeout").none() = nb::none())
      .def("_set_again", [](PyPrepared& self, nb::object again) { self.again = std::move(again); })
      .def("test", [](PyPrepared& self) { return ask_work(self, "test"); })
      .def("__repr__", [](const PyPrepared& self) { return "<hocket.Prepared " + describe(self.op) + ">"; });
}

}  // namespace hocket
