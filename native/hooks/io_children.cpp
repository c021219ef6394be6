// Hooks of what waits for children: at that moment the kernel adds all I/O of the child to that of its parent. The
// child has a recorder of its own, so the parent's figure must be without it. What the child has done is read while it
// is a zombie: first a wait that leaves it one, then the program's own for this child.
//
// system() and pclose() wait inside the C library, and are not seen: the bytes of their children stay in the figure.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <climits>
#include <cstring>

#include "hooks/io.hpp"

namespace hocket::hooks::io {

namespace {

constinit Original<pid_t(int*)> g_wait{"wait"};
constinit Original<pid_t(pid_t, int*, int)> g_waitpid{"waitpid"};
constinit Original<pid_t(int*, int, rusage*)> g_wait3{"wait3"};
constinit Original<pid_t(pid_t, int*, int, rusage*)> g_wait4{"wait4"};
constinit Original<int(idtype_t, id_t, siginfo_t*, int)> g_waitid{"waitid"};

constexpr int kOptionsOfWho = __WALL | __WCLONE | __WNOTHREAD;

KernelCounters counters_of(pid_t child) {
  std::array<char, 32> path{"/proc/"};
  char* const begin = path.data() + std::strlen(path.data());
  constexpr char kEnd[] = "/io";
  char* const end = std::to_chars(begin, path.data() + path.size() - sizeof kEnd, child).ptr;
  std::memcpy(end, kEnd, sizeof kEnd);
  return kernel_counters(path.data());
}

struct Waited {
  pid_t child = 0;  // 0: no child has changed its state; -1: the call failed, see errno
  KernelCounters counters{};
};

// Waits as the program wants to, but leaves the child as it is.
Waited look(idtype_t type, id_t id, int options) {
  siginfo_t info{};
  if (g_waitid(type, id, &info, options | WNOWAIT) != 0) return {.child = -1};
  Waited waited{.child = info.si_pid};
  if (info.si_code != CLD_EXITED && info.si_code != CLD_KILLED && info.si_code != CLD_DUMPED) return waited;
  waited.counters = counters_of(waited.child);
  exclude({waited.counters.own_nbytes, 0});
  return waited;
}

bool is_counting() { return g_is_on.load(std::memory_order_relaxed) && has_own_numbers() && is_own_process(); }

// `real(pid, options)`: the program's own call.
template <typename Function>
pid_t waited_for(pid_t pid, int options, Function real) {
  constexpr int kKnown = WNOHANG | WUNTRACED | WCONTINUED | kOptionsOfWho;
  if (!is_counting() || (options & ~kKnown) != 0 || pid == INT_MIN) return real(pid, options);
  const idtype_t type = pid > 0 ? P_PID : pid == -1 ? P_ALL : P_PGID;
  const pid_t id = pid > 0 ? pid : pid == 0 ? getpgrp() : -pid;
  static_assert(WUNTRACED == WSTOPPED);
  while (true) {
    const Waited waited = look(type, static_cast<id_t>(id), options | WEXITED);
    if (waited.child < 0) return errno == EINTR ? -1 : real(pid, options);
    if (waited.child == 0) return 0;
    const pid_t result = real(waited.child, options | WNOHANG);
    if (result > 0) exclude(waited.counters.bytes);
    if (result > 0 || (result == 0 && (options & WNOHANG) != 0)) return result;
    if (result < 0 && (errno != ECHILD || pid == waited.child)) return result;
    // Another thread has waited for it meanwhile.
  }
}

}  // namespace

}  // namespace hocket::hooks::io

using namespace hocket::hooks::io;

HOCKET_IO_HOOK(pid_t, waitpid, (pid_t pid, int* status, int options)) {
  return waited_for(pid, options, [&](pid_t one, int how) { return g_waitpid(one, status, how); });
}
HOCKET_IO_HOOK(pid_t, __waitpid, (pid_t pid, int* status, int options)) { return hocket_waitpid(pid, status, options); }
HOCKET_IO_HOOK(pid_t, wait, (int* status)) {
  return waited_for(-1, 0, [&](pid_t one, int how) { return g_waitpid(one, status, how); });
}
HOCKET_IO_HOOK(pid_t, __wait, (int* status)) { return hocket_wait(status); }
HOCKET_IO_HOOK(pid_t, wait4, (pid_t pid, int* status, int options, rusage* used)) {
  return waited_for(pid, options, [&](pid_t one, int how) { return g_wait4(one, status, how, used); });
}
HOCKET_IO_HOOK(pid_t, wait3, (int* status, int options, rusage* used)) {
  return waited_for(-1, options, [&](pid_t one, int how) { return g_wait4(one, status, how, used); });
}
HOCKET_IO_HOOK(int, waitid, (idtype_t type, id_t id, siginfo_t* info, int options)) {
  if (!is_counting() || (options & WNOWAIT) != 0 || (options & WEXITED) == 0) return g_waitid(type, id, info, options);
  while (true) {
    const Waited waited = look(type, id, options);
    if (waited.child < 0) return errno == EINTR ? -1 : g_waitid(type, id, info, options);
    siginfo_t own{};
    siginfo_t* const used = info ? info : &own;
    *used = {};
    if (waited.child == 0) return 0;
    const int result = g_waitid(P_PID, static_cast<id_t>(waited.child), used, options | WNOHANG);
    if (result == 0 && used->si_pid != 0) {
      exclude(waited.counters.bytes);
      return result;
    }
    if (result != 0 && (errno != ECHILD || type == P_PID)) return result;
    if (result == 0 && (options & WNOHANG) != 0) return result;
  }
}

namespace hocket::hooks::io {

std::span<const Hook> child_hooks() {
  static const std::array hooks = {
      HOCKET_IO_ENTRY(wait, g_wait),     HOCKET_IO_ENTRY(__wait, g_wait), HOCKET_IO_ENTRY(waitpid, g_waitpid),
      HOCKET_IO_ENTRY(wait3, g_wait3),   HOCKET_IO_ENTRY(wait4, g_wait4), HOCKET_IO_ENTRY(__waitpid, g_waitpid),
      HOCKET_IO_ENTRY(waitid, g_waitid),
  };
  return hooks;
}

}  // namespace hocket::hooks::io
