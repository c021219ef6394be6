// Shared steps of all operations' methods: entering the communicator, reading options, issuing and waiting.
#pragma once

#include "bind/arguments.hpp"
#include "bind/call_arrays.hpp"
#include "bind/communicator.hpp"
#include "core/process.hpp"

namespace hocket {

// A call is inside the communicator while this lives (docs/decisions/one-thread-at-a-time-in-a-communicator.md).
class Entry {
 public:
  explicit Entry(PyObject* self) : self_(*nb::inst_ptr<PyCommunicator>(nb::handle(self))) {
    Communicator& core = self_.core();
    check_not_forked();
    if (core.entered.exchange(true, std::memory_order_acquire)) [[unlikely]]
      throw Failure(ErrorCode::invalid_state, "two threads use " + core.label +
                                                  " at the same time, so its operations have no order; use one "
                                                  "communicator per thread (comm.dup()) or a lock");
    if (core.closed) [[unlikely]] {
      leave();
      throw Failure(core.closed_error());
    }
    if (core.events().has_clock() && !VirtualThread::current()) [[unlikely]] {
      leave();
      throw not_its_thread(core);
    }
    num_finished_ = core.num_finished();
  }
  ~Entry() { leave(); }
  Entry(const Entry&) = delete;
  Entry& operator=(const Entry&) = delete;
  PyCommunicator& communicator() const { return self_; }
  Communicator& core() const { return self_.core(); }
  // Called with the progress lock, before an operation is issued. Copies of arrays are made without the lock, and an
  // operation that was in flight then may have written into these arrays since. If it is finished now, no dependency
  // orders this operation after it, so the copies are made again.
  void refresh(const Arrays& arrays) const {
    if (arrays.has_copies() && core().num_finished() != num_finished_) arrays.read_in();
  }

 private:
  void leave() { self_.core().entered.store(false, std::memory_order_release); }
  PyCommunicator& self_;
  uint64_t num_finished_ = 0;  // finished operations of the communicator when this call began
};

inline Entry enter_for_collective(PyObject* communicator) {
  nb::inst_ptr<PyCommunicator>(nb::handle(communicator))->take_turn_if_due(communicator);
  return Entry(communicator);
}

// Calls Communicator._reduce_by_function with the arguments of a vectorcall method.
PyObject* reduce_by_function(const char* method, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                             PyObject* kwnames);

struct Options {
  bool is_async = false;
  double timeout_s = 0;
  PyObject* backend = nullptr;    // as given; null or None: the best one
  PyObject* algorithm = nullptr;  // likewise
  PyObject* deps = nullptr;
  bool is_internal = false;  // internal operation: uses the first backend, even if operations may not
};

// `op` is not a built-in reduction.
class UnknownReduction {};

ReduceOp read_reduce(PyObject* object);  // throws UnknownReduction

int read_rank(PyObject* object, const char* argument, int size);
int read_tag(PyObject* object);
double read_timeout(PyObject* object, const PyCommunicator& communicator);
Options read_options(const Entry& entry, PyObject* backend, PyObject* algorithm, PyObject* async_op, PyObject* deps,
                     PyObject* timeout);

// Runs a collective's method. Its last five arguments are backend, algorithm, async_op, deps and timeout; `body` gets
// the values, the entry, and these five as options. If `op` is not a built-in reduction, the call is passed unchanged
// to the Python method for registered reductions.
template <size_t N, typename Body>
PyObject* collective(const Signature<N>& signature, PyObject* self, PyObject* const* args, Py_ssize_t nargs,
                     PyObject* kwnames, Body&& body) {
  return guarded([&]() -> PyObject* {
    try {
      const auto v = signature.read(args, nargs, kwnames);
      const Entry entry = enter_for_collective(self);
      return body(v, entry, read_options(entry, v[N - 5], v[N - 4], v[N - 3], v[N - 2], v[N - 1]));
    } catch (const UnknownReduction&) {
      return reduce_by_function(signature.method, self, args, nargs, kwnames);
    }
  });
}

// The steps of run(), for operations that are issued many times.
bool try_fast_path(const Entry& entry, const Arrays& arrays, Operation& op, Communicator::FastPathResult& fast);
WorkPtr make_work(const Entry& entry, const Operation& op, Arrays& arrays, double timeout_s);  // without deps and pins
void issue(PyObject* self, const Entry& entry, const Arrays& arrays, const WorkPtr& work,
           const Communicator::FastPathResult& fast, bool is_async);
void note_written(const Arrays& arrays);

// Issues the operation and, unless it is asynchronous, waits for it. Returns None or a Work.
PyObject* run(PyObject* self, const Entry& entry, Operation op, std::unique_ptr<Arrays> arrays, const Options& options);

}  // namespace hocket
