#include "bind/shared_memory.hpp"

namespace hocket {

namespace {

int get_buffer(PyObject* self, Py_buffer* view, int flags) {
  const auto* memory = nb::inst_ptr<PySharedMemory>(nb::handle(self));
  return PyBuffer_FillInfo(view, self, memory->data, static_cast<Py_ssize_t>(memory->nbytes), 0, flags);
}

}  // namespace

void bind_shared_memory(nb::module_& module) {
  PyType_Slot slots[] = {{Py_bf_getbuffer, reinterpret_cast<void*>(get_buffer)}, {0, nullptr}};
  nb::class_<PySharedMemory>(module, "SharedMemory", nb::type_slots(slots),
                             "Bytes that all ranks of the host can access; freed with the last reference.");
}

}  // namespace hocket
