#include "bind/call.hpp"

#include <mutex>

#include "bind/call_site.hpp"
#include "bind/gil.hpp"
#include "bind/tensor.hpp"

namespace hocket {

namespace {

bool read_flag(PyObject* object, const char* argument) {
  if (!object || object == Py_False) return false;
  const int truth = PyObject_IsTrue(object);
  if (truth >= 0) return truth == 1;
  PyErr_Clear();
  throw Failure(ErrorCode::invalid_argument,
                std::string(argument) + " must be True or False, not " + Py_TYPE(object)->tp_name);
}

}  // namespace

ReduceOp read_reduce(PyObject* object) {
  static PyObject* const sum = PyUnicode_InternFromString("sum");
  if (!object || object == sum) return ReduceOp::sum;
  if (PyUnicode_Check(object))
    for (size_t i = 0; i < kNumReduceOps; ++i)
      if (PyUnicode_CompareWithASCIIString(object, kReduceNames[i]) == 0) return static_cast<ReduceOp>(i);
  std::string known;
  for (const char* each : kReduceNames) known += std::string(known.empty() ? "'" : ", '") + each + "'";
  throw Failure(ErrorCode::invalid_argument,
                "op must be one of " + known + ", not " + nb::cast<std::string>(nb::repr(nb::handle(object))));
}

int read_rank(PyObject* object, const char* argument, int size) {
  int overflow;
  const long value = PyLong_AsLongAndOverflow(object, &overflow);
  if (value == -1 && PyErr_Occurred()) {
    PyErr_Clear();
    throw Failure(ErrorCode::invalid_type,
                  std::string(argument) + " must be a rank (an int), not " + Py_TYPE(object)->tp_name);
  }
  if (overflow || value < 0 || value >= size)
    throw Failure(ErrorCode::invalid_argument,
                  std::string(argument) + " is " + nb::cast<std::string>(nb::str(nb::handle(object))) +
                      ", but the ranks of this communicator are 0 to " + std::to_string(size - 1));
  return static_cast<int>(value);
}

int read_tag(PyObject* object) {
  if (!object) return 0;
  const long value = PyLong_AsLong(object);
  if ((value == -1 && PyErr_Occurred()) || value < 0 || value > INT32_MAX) {
    PyErr_Clear();
    throw Failure(ErrorCode::invalid_argument, "tag must be an int from 0 to 2147483647");
  }
  return static_cast<int>(value);
}

double read_timeout(PyObject* object, const PyCommunicator& communicator) {
  if (!object || object == Py_None) return communicator.timeout_s;
  const double value = PyFloat_AsDouble(object);
  if (PyErr_Occurred() || !(value > 0)) {
    PyErr_Clear();
    throw Failure(ErrorCode::invalid_argument, "timeout must be a number of seconds above zero");
  }
  return value;
}

namespace {

// Explicit dependencies have to be earlier collectives of the same communicator: they alone have a place in the order
// that all members share (rule R5).
std::vector<WorkPtr> read_deps(PyObject* object, const Communicator& core) {
  std::vector<WorkPtr> deps;
  if (!object || object == Py_None) return deps;
  PyObject* items = PySequence_Fast(object, "");
  if (!items) {
    PyErr_Clear();
    throw Failure(ErrorCode::invalid_type,
                  std::string("deps must be a sequence of Work, not ") + Py_TYPE(object)->tp_name);
  }
  const nb::object held = nb::steal(items);
  for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(items); ++i) {
    const nb::handle item = PySequence_Fast_GET_ITEM(items, i);
    if (!nb::isinstance<PyWork>(item))
      throw Failure(ErrorCode::invalid_type,
                    "deps must hold Work only, not " + std::string(Py_TYPE(item.ptr())->tp_name));
    const WorkPtr& work = nb::inst_ptr<PyWork>(item)->work;
    if (work->communicator.get() != &core)
      throw Failure(ErrorCode::invalid_argument,
                    "deps: " + describe(work->op) + ", number " + std::to_string(work->op.seq) + ", belongs to " +
                        work->communicator->label + ", not to " + core.label + "; wait for it instead");
    if (is_point_to_point(work->op.kind))
      throw Failure(ErrorCode::invalid_argument,
                    "deps: " + describe(work->op) + " has no place in the issue order; wait for it instead");
    if (!work->finished()) deps.push_back(work);
  }
  return deps;
}

ByteRange range_of(const Array& array) {
  ByteRange range;
  if (array.nbytes()) array.extent(&range.begin, &range.end);
  return range;
}

}  // namespace

PyObject* run(PyObject* self, const Entry& entry, Operation op, std::unique_ptr<Arrays> arrays,
              const Options& options) {
  Communicator& core = entry.core();
  Engine& engine = Engine::instance();
  if (!options.is_internal) op.backend = entry.communicator().choose(options.backend, op);
  std::vector<WorkPtr> deps = read_deps(options.deps, core);
  if (arrays->written_object.is_valid() && is_tensor(arrays->written_object.ptr()))
    mark_written(arrays->written_object.ptr());
  uint64_t event = 0;
  bool posted = false;
  if (!options.is_async && deps.empty() && !is_point_to_point(op.kind) && engine.lock().try_lock()) {
    bool done;
    {
      const std::lock_guard guard(engine.lock(), std::adopt_lock);
      done = core.try_short(op, posted, event);
    }
    if (done) [[likely]] {
      if (arrays->written && arrays->written->is_copy()) arrays->written->write_back();
      arrays_pool().give_back(std::move(arrays));
      Py_RETURN_NONE;
    }
  }
  release_finished_arrays();
  op.site = call_site();
  auto work = std::make_shared<Work>();
  work->op = op;
  work->communicator = entry.communicator().shared_core();
  work->timeout_s = options.timeout_s;
  work->issued_ns = now_ns();
  work->deps = std::move(deps);
  work->reads = range_of(arrays->in);
  if (Array* written = arrays->written) {
    work->writes = range_of(*written);
    if (written->is_copy()) work->write_back = [written] { written->write_back(); };
  }
  if (Array* in = &arrays->in; in->is_copy()) work->read_in = [in] { in->read_in(); };
  work->pins = pin(std::move(arrays));
  std::optional<Failure> failure;
  {
    const ProgressGuard guard;
    if (posted)
      core.adopt(work, event);
    else if (core.failure())
      failure = Failure(*core.failure());
    else
      core.issue(work, options.is_async ? kEventAsync : 0);
    engine.progress();  // every entry drives all lanes
  }
  if (failure) {
    raise_operation_error(nb::handle(self), failure->error());
    throw PythonError();
  }
  engine.attend();
  if (!options.is_async) {
    wait_for_work(nb::handle(self), work, options.timeout_s);
    Py_RETURN_NONE;
  }
  if (engine.has_thread()) engine.wake_own_process();
  return nb::cast(PyWork{std::move(work), nb::borrow(nb::handle(self))}).release().ptr();
}

Options read_options(const Entry& entry, PyObject* backend, PyObject* async_op, PyObject* deps, PyObject* timeout) {
  return {read_flag(async_op, "async_op"), read_timeout(timeout, entry.communicator()), backend, deps};
}

}  // namespace hocket
