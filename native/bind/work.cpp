#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>

#include "bind/call_arrays.hpp"
#include "bind/communicator.hpp"
#include "bind/errors.hpp"
#include "bind/gil.hpp"
#include "bind/work_docs.hpp"
#include "core/process.hpp"

namespace hocket {

void raise_operation_error(nb::handle communicator, const Error& error) {
  set_error(error);
  auto* self = nb::inst_ptr<PyCommunicator>(communicator);
  self->core().is_failure_seen = true;
  if (!self->on_failure.is_valid() || self->on_failure.is_none()) return;
  PyObject *type, *value, *traceback;
  PyErr_Fetch(&type, &value, &traceback);
  PyErr_NormalizeException(&type, &value, &traceback);
  PyObject* result = PyObject_CallFunctionObjArgs(self->on_failure.ptr(), communicator.ptr(), value, nullptr);
  if (!result && !PyErr_ExceptionMatches(PyExc_Exception)) {  // Ctrl-C meanwhile
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
    return;
  }
  // A record that cannot be written must not hide the original error.
  if (!result) PyErr_WriteUnraisable(self->on_failure.ptr());
  Py_XDECREF(result);
  PyErr_Restore(type, value, traceback);
}

Failure not_its_thread(const Communicator& core) {
  const char* what = core.events().has_clock()
                         ? " belongs to a virtual rank, and can be used only in that rank's thread"
                         : " has no virtual ranks, so a virtual rank cannot wait for it";
  return {ErrorCode::invalid_state, core.label + what};
}

void wait_for_work(nb::handle communicator, const WorkPtr& work, double timeout_s) {
  WaitResult result = WaitResult::finished;
  if (!work->finished()) {
    if (work->communicator->events().has_clock() != (VirtualThread::current() != nullptr))
      throw not_its_thread(*work->communicator);
    const int64_t begin_ns = caller_ns();
    {
      ReleasedGil hooks;
      result = Engine::instance().wait(*work, timeout_s, hooks);
    }
    if (work->is_async) {
      const ProgressGuard guard;
      work->communicator->events().add_blocked(work->event, caller_ns() - begin_ns);
    }
  }
  if (result == WaitResult::interrupted) throw PythonError();
  if (work->error) {
    Engine::instance().run_pump();  // libraries release given-up operations before the program continues
    raise_operation_error(communicator, *work->error);
    throw PythonError();
  }
  if (raise_interruption()) throw PythonError();  // from a handler that ran while the operation was being issued
}

namespace {

void wait(nb::handle self, nb::handle given) {
  std::optional<double> timeout;
  if (!given.is_none()) {
    timeout = PyFloat_AsDouble(given.ptr());
    if (PyErr_Occurred()) {
      if (!PyErr_ExceptionMatches(PyExc_TypeError)) throw PythonError();
      PyErr_Clear();
    }
    if (!(*timeout >= 0))  // also true for a value that is not a number, where PyFloat_AsDouble returns -1
      throw Failure(ErrorCode::invalid_argument,
                    "timeout must be a number of seconds, zero or more, not " + repr_of(given.ptr()));
  }
  PyWork& handle = *nb::inst_ptr<PyWork>(self);
  check_not_forked();
  wait_for_work(handle.communicator, handle.work, timeout.value_or(handle.work->timeout_s));
  release_pins(handle.work->pins);
}

// Makes progress on an unfinished operation; returns whether it is finished.
bool drive(nb::handle self) {
  PyWork& handle = *nb::inst_ptr<PyWork>(self);
  check_not_forked();
  if (!handle.work->finished()) {
    ProgressLock& lock = Engine::instance().lock();
    if (lock.try_lock()) {
      Engine::instance().poll();
      lock.unlock();
    }
    const bool moved = Engine::instance().run_pump();
    if (raise_interruption()) throw PythonError();
    if (moved && lock.try_lock()) {
      Engine::instance().poll();
      lock.unlock();
    }
  }
  if (VirtualThread* thread = VirtualThread::current(); thread && !handle.work->finished()) {
    const ReleasedGil released;
    Engine::instance().test_virtual(*handle.work, *thread);
  }
  return handle.work->finished();
}

bool test(nb::handle self) {
  if (!drive(self)) return false;
  PyWork& handle = *nb::inst_ptr<PyWork>(self);
  release_pins(handle.work->pins);
  if (handle.work->error) {
    raise_operation_error(handle.communicator, *handle.work->error);
    throw PythonError();
  }
  return true;
}

// marks_seen: whether the failure counts as seen by the program.
nb::object exception(nb::handle self, bool marks_seen) {
  const Work& work = *nb::inst_ptr<PyWork>(self)->work;
  if (!work.finished() || !work.error) return nb::none();
  if (marks_seen) work.communicator->is_failure_seen = true;
  return nb::steal(make_exception(*work.error));
}

void on_finished(nb::handle self, nb::callable callback) {
  // Runs on the progress thread, which takes the GIL for it and holds no lock then.
  auto* held = new nb::object(std::move(callback));  // NOLINT: freed by the callback itself, with the GIL
  const WorkPtr work = nb::inst_ptr<PyWork>(self)->work;
  const nb::gil_scoped_release released;  // a thread that stops the progress thread waits for callbacks, which need it
  Engine::instance().on_finished(work, [held] {
    const nb::gil_scoped_acquire gil;
    PyObject* result = PyObject_CallNoArgs(held->ptr());
    if (!result) PyErr_WriteUnraisable(held->ptr());
    Py_XDECREF(result);
    delete held;
  });
}

}  // namespace

void bind_work(nb::module_& module) {
  nb::class_<PyWork>(module, "Work", docs::kWork)
      .def(
          "wait", [](nb::handle self, nb::handle timeout) { wait(self, timeout); },
          nb::arg("timeout").none() = nb::none(), nb::sig("def wait(self, timeout: float | None = None) -> None"),
          docs::kWait)
      .def("__await__",
           [](nb::handle self) {
             return nb::module_::import_("hocket.comm.awaiting").attr("wait_for")(self).attr("__await__")();
           })
      .def(
          "test", [](nb::handle self) { return test(self); }, docs::kTest)
      .def("_set_background",
           [](nb::handle self) {
             const ProgressGuard guard;
             nb::inst_ptr<PyWork>(self)->work->is_background = true;
           })
      .def(
          "exception", [](nb::handle self) { return exception(self, true); }, docs::kException)
      .def("_drive", [](nb::handle self) { return drive(self); })
      .def("_peek", [](nb::handle self) { return exception(self, false); })
      .def_prop_ro(
          "done", [](const PyWork& self) { return self.work->finished(); }, docs::kDone)
      .def_prop_ro(
          "seq", [](const PyWork& self) { return self.work->op.seq; }, docs::kSeq)
      .def("_on_finished", [](nb::handle self, nb::callable callback) { on_finished(self, std::move(callback)); })
      .def("__repr__", [](const PyWork& self) {
        const char* state = !self.work->finished() ? "in flight" : self.work->error ? "failed" : "done";
        return "<hocket.Work " + describe(self.work->op) + ", number " + std::to_string(self.work->op.seq) + ": " +
               state + ">";
      });
}

}  // namespace hocket
