// Hooks of what ends a program: the kernel's counters are read once more. exit() is seen by a destructor; a program
// that is killed, or replaced by a function with a list of arguments such as execl(), leaves no last counters.
#include <sys/syscall.h>

#include <array>

#include "hooks/io.hpp"

namespace hocket::hooks::io {

namespace {

constinit Original<void(int)> g_exit{"_exit"};
using Arguments = char* const*;
constinit Original<int(const char*, Arguments)> g_execv{"execv"};
constinit Original<int(const char*, Arguments, Arguments)> g_execve{"execve", SYS_execve};
constinit Original<int(const char*, Arguments)> g_execvp{"execvp"};
constinit Original<int(const char*, Arguments, Arguments)> g_execvpe{"execvpe"};
constinit Original<int(int, Arguments, Arguments)> g_fexecve{"fexecve"};
constinit Original<int(int, const char*, Arguments, Arguments, int)> g_execveat{"execveat", SYS_execveat};

bool is_counting() { return g_is_on.load(std::memory_order_relaxed) && is_own_process(); }

// A program that ends without its destructors, as children of Python's multiprocessing do, has ended normally, too.
[[noreturn]] void end_now(int code) {
  if (is_counting()) end_totals();
  Recorder::end_process();
  g_exit(code);
  while (true) call_kernel(SYS_exit_group, {code});
}

// It returns only if the program was not replaced.
template <typename Function>
int replaced(Function function) {
  if (!is_counting()) return function();
  end_totals();
  const int result = function();
  resume_totals();
  return result;
}

__attribute__((destructor)) void end() {
  if (is_counting()) end_totals();
}

}  // namespace

}  // namespace hocket::hooks::io

using namespace hocket::hooks::io;

HOCKET_IO_HOOK(void, _exit, (int code)) { end_now(code); }
HOCKET_IO_HOOK(void, _Exit, (int code)) { end_now(code); }
HOCKET_IO_HOOK(int, execv, (const char* path, Arguments arguments)) {
  return replaced([&] { return g_execv(path, arguments); });
}
HOCKET_IO_HOOK(int, execve, (const char* path, Arguments arguments, Arguments environment)) {
  return replaced([&] { return g_execve(path, arguments, environment); });
}
HOCKET_IO_HOOK(int, execvp, (const char* name, Arguments arguments)) {
  return replaced([&] { return g_execvp(name, arguments); });
}
HOCKET_IO_HOOK(int, execvpe, (const char* name, Arguments arguments, Arguments environment)) {
  return replaced([&] { return g_execvpe(name, arguments, environment); });
}
HOCKET_IO_HOOK(int, fexecve, (int fd, Arguments arguments, Arguments environment)) {
  return replaced([&] { return g_fexecve(fd, arguments, environment); });
}
HOCKET_IO_HOOK(int, execveat, (int folder, const char* path, Arguments arguments, Arguments environment, int flags)) {
  return replaced([&] { return g_execveat(folder, path, arguments, environment, flags); });
}

namespace hocket::hooks::io {

std::span<const Hook> end_hooks() {
  static const std::array hooks = {
      HOCKET_IO_ENTRY(_exit, g_exit),      HOCKET_IO_ENTRY(_Exit, g_exit),        HOCKET_IO_ENTRY(execv, g_execv),
      HOCKET_IO_ENTRY(execve, g_execve),   HOCKET_IO_ENTRY(execvp, g_execvp),     HOCKET_IO_ENTRY(execvpe, g_execvpe),
      HOCKET_IO_ENTRY(fexecve, g_fexecve), HOCKET_IO_ENTRY(execveat, g_execveat),
  };
  return hooks;
}

}  // namespace hocket::hooks::io
