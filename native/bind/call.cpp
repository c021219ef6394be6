#include "bind/call.hpp"

#include <mutex>

#include "bind/call_site.hpp"
#include "bind/gil.hpp"
#include "bind/prepared.hpp"
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
  throw UnknownReduction();
}

PyObject* reduce_by_function(const char* method, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                             PyObject* kwnames) {
  const Py_ssize_t given = PyVectorcall_NARGS(static_cast<size_t>(nargs));
  const Py_ssize_t named = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  const nb::str kind(method);
  const nb::str name("_reduce_by_function");
  std::vector<PyObject*> all{self, kind.ptr()};
  all.insert(all.end(), args, args + given + named);
  PyObject* result = PyObject_VectorcallMethod(name.ptr(), all.data(), static_cast<size_t>(given + 2), kwnames);
  if (!result) throw PythonError();
  return result;
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
    throw Failure(ErrorCode::invalid_argument, "tag must be an int from 0 to 2147483647, not " + repr_of(object));
  }
  return static_cast<int>(value);
}

double read_timeout(PyObject* object, const PyCommunicator& communicator) {
  if (!object || object == Py_None) return communicator.timeout_s;
  const double value = PyFloat_AsDouble(object);
  if (PyErr_Occurred() || !(value > 0)) {
    PyErr_Clear();
    throw Failure(ErrorCode::invalid_argument,
                  "timeout must be a number of seconds above zero, not " + repr_of(object));
  }
  return value;
}

namespace {

// Explicit dependencies must be earlier collectives of the same communicator: only these have a place in the issue
// order that all members share (rule R5).
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

}  // namespace

bool try_fast_path(const Entry& entry, const Arrays& arrays, Operation& op, Communicator::FastPathResult& fast) {
  if (is_point_to_point(op.kind)) op.site = call_site();  // sent with the message
  Engine& engine = Engine::instance();
  if (!engine.lock().try_lock()) return false;
  const std::lock_guard guard(engine.lock(), std::adopt_lock);
  entry.refresh(arrays);
  const bool is_done = entry.core().try_short(op, fast);
  if (is_done) engine.progress_others();
  return is_done;
}

WorkPtr make_work(const Entry& entry, const Operation& op, Arrays& arrays, double timeout_s) {
  auto work = std::make_shared<Work>();
  work->op = op;
  if (!op.site) work->op.site = call_site();
  work->op.shape = arrays.in.shape();
  work->communicator = entry.communicator().shared_core();
  work->timeout_s = timeout_s;
  work->issued_ns = caller_ns();
  work->reads = arrays.reads();
  work->writes = arrays.writes();
  if (arrays.has_copies()) {
    work->read_in = [&arrays] { arrays.read_in(); };
    work->write_back = [&arrays] { arrays.write_back(); };
  }
  work->blocks = arrays.blocks;
  return work;
}

void issue(PyObject* self, const Entry& entry, const Arrays& arrays, const WorkPtr& work,
           const Communicator::FastPathResult& fast, bool is_async) {
  Communicator& core = entry.core();
  std::optional<Failure> failure;
  Engine& engine = Engine::instance();
  work->is_async = is_async;
  {
    const ProgressGuard guard;
    if (fast.posted)
      core.adopt(work, fast);
    else if (core.failure())
      failure = Failure(*core.failure());
    else {
      entry.refresh(arrays);
      core.issue(work, is_async ? kEventAsync : 0);
    }
    engine.progress();  // every entry drives all lanes
    if (!core.events().has_clock()) engine.drive_due_libraries(work->issued_ns);
    if (is_async && !failure && !core.events().has_clock())
      core.events().add_blocked(work->event, now_ns() - work->issued_ns);
  }
  if (failure) {
    raise_operation_error(nb::handle(self), failure->error());
    throw PythonError();
  }
  engine.run_pump();
  if (is_async && engine.has_thread()) engine.wake_thread();
  if (is_async && raise_interruption()) throw PythonError();  // otherwise the wait that follows raises it
}

void note_written(const Arrays& arrays) {
  if (arrays.written_object.is_valid() && is_tensor(arrays.written_object.ptr()))
    mark_written(arrays.written_object.ptr());
  for (const nb::object& tensor : arrays.written_parts) mark_written(tensor.ptr());
}

namespace {

// Returns the schedule that a call names; Python looks it up or builds it.
const Program* read_algorithm(PyObject* self, Communicator& core, PyObject* algorithm, const Operation& op) {
  static const nb::object find = nb::str("_find_program");
  const nb::object kind = nb::str(name(op.kind));
  const nb::object nbytes = nb::int_(op.nbytes);
  PyObject* arguments[] = {self, kind.ptr(), algorithm, nbytes.ptr()};
  PyObject* number = PyObject_VectorcallMethod(find.ptr(), arguments, 4, nullptr);
  if (!number) throw PythonError();
  const auto index = nb::cast<uint16_t>(nb::steal(number));
  const ProgressGuard guard;
  return core.program(index);
}

void set_carrier(PyObject* self, PyCommunicator& communicator, const Options& options, Operation& op, Arrays& arrays) {
  const bool has_algorithm = options.algorithm && options.algorithm != Py_None;
  if (has_algorithm) [[unlikely]]
    op.program = read_algorithm(self, communicator.core(), options.algorithm, op);
  op.is_named = has_algorithm || (options.backend && options.backend != Py_None);
  const bool is_on_device = arrays.is_on_device();
  if (is_on_device) [[unlikely]] {
    arrays.set_device(op);
    op.is_named = true;  // its time must not be used for choices about arrays on the host
  }
  const Carrier carrier = communicator.choose(options.backend, op, has_algorithm);
  op.backend = carrier.backend;
  op.program = carrier.program;
  if (is_on_device && op.device && !communicator.takes_memory(op)) [[unlikely]]
    arrays.stage(op);
}

}  // namespace

PyObject* run(PyObject* self, const Entry& entry, Operation op, std::unique_ptr<Arrays> arrays,
              const Options& options) {
  Communicator& core = entry.core();
  PyCommunicator& communicator = entry.communicator();
  op.is_of_object = communicator.carries_object;
  if (!options.is_internal) set_carrier(self, communicator, options, op, *arrays);
  std::vector<WorkPtr> deps = read_deps(options.deps, core);
  if (communicator.mode == PyCommunicator::Mode::prepare) [[unlikely]]
    return prepare(self, op, std::move(arrays), options);
  note_written(*arrays);
  const bool is_coalesced =
      communicator.mode == PyCommunicator::Mode::coalesce && !options.is_async && !options.is_internal;
  const bool is_async = options.is_async || is_coalesced;
  Communicator::FastPathResult fast;
  if (!is_async && deps.empty() && try_fast_path(entry, *arrays, op, fast)) [[likely]] {
    if (arrays->has_copies()) arrays->write_back();
    arrays_pool().give_back(std::move(arrays));
    Py_RETURN_NONE;
  }
  release_finished_arrays();
  const WorkPtr work = make_work(entry, op, *arrays, options.timeout_s);
  work->deps = std::move(deps);
  const Arrays& held = *arrays;
  work->pins = pin(std::move(arrays), self);
  issue(self, entry, held, work, fast, is_async);
  if (!is_async) {
    wait_for_work(nb::handle(self), work, options.timeout_s);
    release_pins(work->pins);
    Py_RETURN_NONE;
  }
  nb::object handle = nb::cast(PyWork{work, nb::borrow(nb::handle(self))});
  if (!is_coalesced) return handle.release().ptr();
  communicator.coalesced.append(handle);
  Py_RETURN_NONE;
}

Options read_options(const Entry& entry, PyObject* backend, PyObject* algorithm, PyObject* async_op, PyObject* deps,
                     PyObject* timeout) {
  return {read_flag(async_op, "async_op"), read_timeout(timeout, entry.communicator()), backend, algorithm, deps};
}

}  // namespace hocket
