#include "bind/program_events.hpp"

#include <bit>
#include <cstdint>

#include "bind/gil.hpp"
#include "core/clock.hpp"
#include "recorder/recorder.hpp"

namespace nb = nanobind;

namespace hocket {

namespace {

constexpr int64_t kNoStep = -1;
constexpr Py_ssize_t kMostNames = 4096;  // of each kind; what comes later is recorded under one name

// Numbers of the names of one kind of event. Used with the GIL held.
class Names {
 public:
  explicit Names(DefinitionKind kind) : kind_(kind) {}

  // The number of a name; 0 with a Python error.
  uint32_t number_of(PyObject* name) {
    Recorder& recorder = Recorder::instance();
    if (!numbers_ || num_forks_ != recorder.num_forks()) {  // a forked child has a recorder without names
      num_forks_ = recorder.num_forks();
      Py_XDECREF(numbers_);
      numbers_ = PyDict_New();
      rest_ = 0;
      if (!numbers_) return 0;
    }
    if (PyObject* known = PyDict_GetItemWithError(numbers_, name))
      return static_cast<uint32_t>(PyLong_AsUnsignedLong(known));
    if (PyErr_Occurred()) return 0;
    if (PyDict_GET_SIZE(numbers_) >= kMostNames) {
      if (rest_ == 0) rest_ = recorder.define(kind_, "(names beyond the first 4096)");
      return rest_;
    }
    Py_ssize_t length = 0;
    const char* text = PyUnicode_AsUTF8AndSize(name, &length);
    if (!text) return 0;
    const uint32_t number = recorder.define(kind_, std::string_view(text, static_cast<size_t>(length)));
    PyObject* value = PyLong_FromUnsignedLong(number);
    const bool is_kept = value && PyDict_SetItem(numbers_, name, value) == 0;
    Py_XDECREF(value);
    return is_kept ? number : 0;
  }

 private:
  DefinitionKind kind_;
  PyObject* numbers_ = nullptr;
  uint32_t num_forks_ = 0;
  uint32_t rest_ = 0;
};

Names g_regions(DefinitionKind::region);
Names g_counters(DefinitionKind::counter);
Names g_messages(DefinitionKind::region);  // of control; they take none of the program's names

Event named_event(Layer layer, uint8_t kind, uint32_t name, uint64_t value) {
  Event event{};
  event.comm = name;
  event.aux = value;
  event.peer = -1;
  event.thread = thread_number();
  event.kind = kind;
  event.reduce = 0xff;
  event.layer = layer;
  event.state = EventState::completed;
  event.t_begin = ticks();
  return event;
}

Event program_event(ProgramKind kind, uint32_t name, uint64_t value) {
  return named_event(Layer::program, static_cast<uint8_t>(kind), name, value);
}

SharedRing program_ring() {
  static const SharedRing ring = Recorder::instance().ring(RingId::program);
  return ring;
}

SharedRing process_ring() {
  static const SharedRing ring = Recorder::instance().ring(RingId::process);
  return ring;
}

struct RegionObject {
  PyObject ob_base;
  uint64_t index;
  uint32_t name;
  bool is_control;  // of hocket itself, and not of the program
  int64_t step;
  uint64_t nbytes;
};

SharedRing ring_of(const RegionObject& region) { return region.is_control ? process_ring() : program_ring(); }

PyObject* enter(PyObject* self, PyObject*) {
  auto* region = reinterpret_cast<RegionObject*>(self);
  SharedRing ring = ring_of(*region);
  if (ring) {
    const auto step = static_cast<uint64_t>(region->step);
    Event event = region->is_control
                      ? named_event(Layer::process, static_cast<uint8_t>(ProcessKind::control), region->name, step)
                      : program_event(ProgramKind::region, region->name, step);
    event.nbytes = region->nbytes;
    event.state = EventState::started;
    region->index = ring.add(event);
  }
  return Py_NewRef(self);
}

PyObject* leave(PyObject* self, PyObject* const* args, Py_ssize_t nargs) {
  auto* region = reinterpret_cast<RegionObject*>(self);
  const bool has_failed = nargs > 0 && args[0] != Py_None;
  if (SharedRing ring = ring_of(*region))
    ring.update(region->index, [has_failed](Event& event) {
      event.t_end = ticks();
      event.state = has_failed ? EventState::failed : EventState::completed;
    });
  region->index = SharedRing::kNone;
  Py_RETURN_NONE;
}

PyMethodDef g_region_methods[] = {
    {"__enter__", enter, METH_NOARGS, "Begin the region."},
    {"__exit__", reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(&leave)), METH_FASTCALL, "End the region."},
    {nullptr, nullptr, 0, nullptr},
};
PyType_Slot g_region_slots[] = {
    {Py_tp_methods, g_region_methods},
    {Py_tp_doc, const_cast<char*>("A part of the program; use it as a context manager.")},
    {0, nullptr},
};
PyType_Spec g_region_spec = {"hocket._native.Region", sizeof(RegionObject), 0,
                             Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION, g_region_slots};
PyTypeObject* g_region_type = nullptr;

// Reads (name, step) of `function`; false with a Python error.
bool read_name_and_step(const char* function, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames,
                        PyObject** name, int64_t* step) {
  *name = nargs > 0 ? args[0] : nullptr;
  PyObject* step_given = nargs > 1 ? args[1] : Py_None;
  const Py_ssize_t num_keywords = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
  for (Py_ssize_t i = 0; i < num_keywords; ++i) {
    PyObject* keyword = PyTuple_GET_ITEM(kwnames, i);
    if (PyUnicode_CompareWithASCIIString(keyword, "step") == 0 && nargs < 2)
      step_given = args[nargs + i];
    else if (PyUnicode_CompareWithASCIIString(keyword, "name") == 0 && nargs < 1)
      *name = args[nargs + i];
    else {
      PyErr_Format(PyExc_TypeError, "%s(name, step=None) got the argument %R twice or does not have it", function,
                   keyword);
      return false;
    }
  }
  if (nargs > 2 || !*name) {
    PyErr_Format(PyExc_TypeError, "%s() takes a name and an optional step", function);
    return false;
  }
  if (!PyUnicode_Check(*name) || PyUnicode_GET_LENGTH(*name) == 0) {
    PyErr_Format(PyExc_TypeError, "the name of a %s must be a string with at least one character, not %R", function,
                 *name);
    return false;
  }
  *step = kNoStep;
  if (step_given == Py_None) return true;
  int overflows = 0;
  const long long value = PyLong_Check(step_given) ? PyLong_AsLongLongAndOverflow(step_given, &overflows) : -1;
  if (!PyLong_Check(step_given) || overflows != 0 || value < 0) {
    PyErr_Format(PyExc_ValueError, "the step of a %s must be an integer from 0 to 2**63 - 1, not %R", function,
                 step_given);
    return false;
  }
  *step = value;
  return true;
}

// A region that has not begun; null with a Python error.
PyObject* make_region(PyObject* name, int64_t step, bool is_control, uint64_t nbytes) {
  const uint32_t number = (is_control ? g_messages : g_regions).number_of(name);
  if (number == 0) return nullptr;
  auto* made = PyObject_New(RegionObject, g_region_type);
  if (!made) return nullptr;
  made->index = SharedRing::kNone;
  made->name = number;
  made->is_control = is_control;
  made->step = step;
  made->nbytes = nbytes;
  return reinterpret_cast<PyObject*>(made);
}

PyObject* region(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* name = nullptr;
  int64_t step = kNoStep;
  if (!read_name_and_step("region", args, nargs, kwnames, &name, &step)) return nullptr;
  return make_region(name, step, false, 0);
}

PyObject* control_event(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 || !PyUnicode_Check(args[0]) || !PyLong_Check(args[1])) {
    PyErr_SetString(PyExc_TypeError, "control_event() takes a name and a number of bytes");
    return nullptr;
  }
  const size_t nbytes = PyLong_AsSize_t(args[1]);
  if (PyErr_Occurred()) return nullptr;
  return make_region(args[0], kNoStep, true, nbytes);
}

PyObject* mark(PyObject*, PyObject* const* args, Py_ssize_t nargs, PyObject* kwnames) {
  PyObject* name = nullptr;
  int64_t step = kNoStep;
  if (!read_name_and_step("mark", args, nargs, kwnames, &name, &step)) return nullptr;
  const uint32_t number = g_regions.number_of(name);
  if (number == 0) return nullptr;
  if (SharedRing ring = program_ring()) {
    Event event = program_event(ProgramKind::mark, number, static_cast<uint64_t>(step));
    event.t_end = event.t_begin;
    ring.add(event);
  }
  Py_RETURN_NONE;
}

PyObject* counter(PyObject*, PyObject* const* args, Py_ssize_t nargs) {
  if (nargs != 2 || !PyUnicode_Check(args[0]) || PyUnicode_GET_LENGTH(args[0]) == 0) {
    PyErr_SetString(PyExc_TypeError, "counter() takes a name, a string with at least one character, and a number");
    return nullptr;
  }
  const double value = PyFloat_AsDouble(args[1]);
  if (value == -1.0 && PyErr_Occurred()) return nullptr;
  const uint32_t number = g_counters.number_of(args[0]);
  if (number == 0) return nullptr;
  if (SharedRing ring = program_ring()) {
    Event event = program_event(ProgramKind::counter, number, std::bit_cast<uint64_t>(value));
    event.t_end = event.t_begin;
    ring.add(event);
  }
  Py_RETURN_NONE;
}

// Seconds that `num_events` events take, each begun and ended.
double time_events(int num_events) {
  SharedRing ring = program_ring();
  const int64_t begin_ns = now_ns();
  for (int i = 0; i < num_events && ring; ++i) {
    const uint64_t index = ring.add(program_event(ProgramKind::mark, 0, 0));
    ring.update(index, [](Event& event) { event.t_end = ticks(); });
  }
  return static_cast<double>(now_ns() - begin_ns) * 1e-9;
}

template <typename Function>
PyCFunction as_c_function(Function* function) {
  return reinterpret_cast<PyCFunction>(reinterpret_cast<void*>(function));
}

PyMethodDef g_functions[] = {
    {"region", as_c_function(&region), METH_FASTCALL | METH_KEYWORDS, "See hocket.observe.region."},
    {"control_event", as_c_function(&control_event), METH_FASTCALL, "A message between a rank and the job's server."},
    {"mark", as_c_function(&mark), METH_FASTCALL | METH_KEYWORDS, "See hocket.observe.mark."},
    {"counter", as_c_function(&counter), METH_FASTCALL, "See hocket.observe.counter."},
    {nullptr, nullptr, 0, nullptr},
};

}  // namespace

void bind_program_events(nb::module_& module) {
  g_region_type = reinterpret_cast<PyTypeObject*>(PyType_FromSpec(&g_region_spec));
  module.def("time_events", &time_events, nb::arg("num_events"));
  module.def(
      "set_records_operations",
      [](bool wanted) {
        const ProgressGuard guard;
        Recorder::instance().set_records_operations(wanted);
      },
      nb::arg("wanted"));
  if (!g_region_type || PyModule_AddFunctions(module.ptr(), g_functions) != 0) throw nb::python_error();
}

}  // namespace hocket
