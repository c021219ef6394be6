#include "bind/call_site.hpp"

#include <nanobind/nanobind.h>
#include <nanobind/stl/string.h>

#include <cstring>
#include <string>
#include <string_view>
#include <unordered_map>
#include <unordered_set>

namespace nb = nanobind;

namespace hocket {

namespace {

struct Key {
  PyCodeObject* code;
  int instruction;
  bool operator==(const Key&) const = default;
};
struct KeyHash {
  size_t operator()(const Key& key) const {
    return reinterpret_cast<size_t>(key.code) / 16 * 31 + static_cast<size_t>(key.instruction);
  }
};

// The folder of a loaded package with a final slash; empty if it is not loaded.
std::string folder_of(const char* package_module) {
  nb::object name = nb::str(package_module);
  nb::object module = nb::steal(PyImport_GetModule(name.ptr()));
  if (!module.is_valid()) return {};
  const std::string file = nb::cast<std::string>(nb::getattr(module, "__file__", nb::str("")));
  return file.substr(0, file.rfind('/') + 1);
}

bool is_library_file(const char* file) {
  static const std::string hocket = folder_of("hocket.errors");
  static std::string torch;
  if (torch.empty()) torch = folder_of("torch");
  const auto starts_with = [&](const std::string& prefix) {
    return !prefix.empty() && std::strncmp(file, prefix.c_str(), prefix.size()) == 0;
  };
  if (starts_with(hocket) || starts_with(torch) || starts_with("<frozen ")) return true;
  // their frames are between a decorated function of torch and its caller
  const std::string_view name = file;
  return name.ends_with("/typing_extensions.py") || name.ends_with("/contextlib.py") || name.ends_with("/functools.py");
}

// Code objects are kept alive, so that a pointer is never reused for another one; programs have few of them.
bool is_library_code(PyCodeObject* code) {
  static std::unordered_map<PyCodeObject*, bool> known;
  const auto found = known.find(code);
  if (found != known.end()) return found->second;
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) PyErr_Clear();
  Py_INCREF(code);
  return known[code] = file && is_library_file(file);
}

std::string describe_site(PyCodeObject* code, int instruction) {
  const char* file = PyUnicode_AsUTF8(code->co_filename);
  if (!file) {
    PyErr_Clear();
    file = "?";
  }
  return std::string(file) + ":" + std::to_string(PyCode_Addr2Line(code, instruction));
}

}  // namespace

const char* call_site() {
  constexpr size_t kMostSites = 1 << 16;
  static std::unordered_map<Key, const char*, KeyHash> known;
  static std::unordered_set<std::string> texts;  // never erased: nodes keep their addresses
  PyFrameObject* frame = PyThreadState_GetFrame(PyThreadState_Get());
  PyCodeObject* code = nullptr;
  while (frame) {
    PyCodeObject* candidate = PyFrame_GetCode(frame);
    Py_DECREF(candidate);  // the frame holds it, and is_library_code() does
    if (!is_library_code(candidate)) {
      code = candidate;
      break;
    }
    PyFrameObject* back = PyFrame_GetBack(frame);
    Py_DECREF(frame);
    frame = back;
  }
  if (!code) return "?";
  const Key key{code, PyFrame_GetLasti(frame)};
  Py_DECREF(frame);
  const auto found = known.find(key);
  if (found != known.end()) return found->second;
  if (known.size() >= kMostSites) return "a call site beyond the limit of recorded ones";
  const char* text = texts.insert(describe_site(key.code, key.instruction)).first->c_str();
  known.emplace(key, text);
  return text;
}

}  // namespace hocket
