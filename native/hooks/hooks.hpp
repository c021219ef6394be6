// What hooks share: functions of this library that take the place of others, by LD_PRELOAD.
#pragma once

#include <dlfcn.h>

#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "recorder/recorder.hpp"

#define HOCKET_HOOK extern "C" __attribute__((visibility("default")))

namespace hocket::hooks {

// True while this thread is inside a hook: what the hook or the recorder calls is not recorded again.
inline thread_local bool t_is_inside = false;

class Inside {
 public:
  Inside() : was_inside_(t_is_inside) { t_is_inside = true; }
  ~Inside() { t_is_inside = was_inside_; }
  Inside(const Inside&) = delete;
  Inside& operator=(const Inside&) = delete;
  bool is_nested() const { return was_inside_; }

 private:
  bool was_inside_;
};

// True while this thread makes groups of torch for hocket's own use: nothing of them is recorded, because hocket has an
// event for each of its operations.
inline thread_local bool t_makes_groups_of_hocket = false;

// Environment variable: the layers to record, separated by commas.
inline constexpr const char* kObserveVariable = "HOCKET_OBSERVE";

// The function that a hook of the C library replaces.
template <typename Function>
Function* next_in_order(const char* name) {
  return reinterpret_cast<Function*>(dlsym(RTLD_NEXT, name));
}

// A handle of the library, or of the program itself, in which an address is.
inline void* library_of_caller(const void* caller) {
  Dl_info info{};
  if (dladdr(caller, &info) == 0) return nullptr;
  void* library = dlopen(info.dli_fname, RTLD_NOLOAD | RTLD_NOW);
  // The dynamic linker does not know the program by its path.
  return library ? library : dlopen(nullptr, RTLD_NOW);
}

// Whether two addresses are in one library.
inline bool are_in_one_library(const void* one, const void* other) {
  Dl_info first{};
  Dl_info second{};
  return dladdr(one, &first) != 0 && dladdr(other, &second) != 0 && first.dli_fbase == second.dli_fbase;
}

// The function that a hook replaces, from the library that calls the hook or one that it needs. RTLD_NEXT does not see
// libraries that Python loads for one module only; but the program itself sees the hook first.
template <typename Function>
Function* next_of_caller(const char* name, const void* caller) {
  void* library = library_of_caller(caller);
  void* found = library ? dlsym(library, name) : nullptr;
  if (!found || are_in_one_library(found, &kObserveVariable)) found = dlsym(RTLD_NEXT, name);
  return reinterpret_cast<Function*>(found);
}

using hocket::thread_number;

// Whether the variable names this layer, "comm" or "io".
inline bool observes(std::string_view layer) {
  const char* value = std::getenv(kObserveVariable);
  std::string_view rest = value ? value : "";
  while (!rest.empty()) {
    const size_t end = std::min(rest.find(','), rest.size());
    if (rest.substr(0, end) == layer) return true;
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return false;
}

}  // namespace hocket::hooks
