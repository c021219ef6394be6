// Hooks of what opens, closes and duplicates descriptors. Of the functions that make descriptors of sockets and the
// like none is needed: a new number is one that was closed, and is looked at again. What C library functions open
// inside themselves, mkstemp() for one, has no event `open`, but its reads and writes are recorded.
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <climits>

#include "hooks/io.hpp"

namespace hocket::hooks::io {

namespace {

constinit Original<int(const char*, int, mode_t)> g_open{"open"};
constinit Original<int(const char*, int, mode_t)> g_open64{"open64"};
constinit Original<int(int, const char*, int, mode_t)> g_openat{"openat", SYS_openat};
constinit Original<int(int, const char*, int, mode_t)> g_openat64{"openat64", SYS_openat};
constinit Original<int(const char*, mode_t)> g_creat{"creat"};
constinit Original<int(const char*, mode_t)> g_creat64{"creat64"};
constinit Original<int(const char*, int)> g_open_2{"__open_2"};
constinit Original<int(const char*, int)> g_open64_2{"__open64_2"};
constinit Original<int(int, const char*, int)> g_openat_2{"__openat_2"};
constinit Original<int(int, const char*, int)> g_openat64_2{"__openat64_2"};
constinit Original<int(int)> g_close{"close", SYS_close};
constinit Original<int(int)> g_dup{"dup", SYS_dup};
constinit Original<int(int, int)> g_dup2{"dup2"};
constinit Original<int(int, int, int)> g_dup3{"dup3", SYS_dup3};
constinit Original<int(int, int, long)> g_fcntl{"fcntl", SYS_fcntl};
constinit Original<int(int, int, long)> g_fcntl64{"fcntl64", SYS_fcntl};
constinit Original<int(unsigned, unsigned, int)> g_close_range{"close_range", kCloseRange};
constinit Original<void(int)> g_closefrom{"closefrom"};
constinit Original<int(DIR*)> g_closedir{"closedir"};
constinit Original<int(FILE*)> g_pclose{"pclose"};
constinit Original<int(int, int)> g_daemon{"daemon"};
constinit Original<int(int)> g_login_tty{"login_tty"};
constinit Original<int(int*, char*, const void*, const void*)> g_forkpty{"forkpty"};

// A file that cannot be opened has no definition: programs try many names.
template <typename Function>
int opened(Function function) {
  if (!is_recording()) return function();
  const uint64_t begin = ticks();
  const int fd = function();
  if (fd < 0) {
    if (is_own_process()) record({other_files(), IoKind::open, IoRoute::posix, begin}, -1);
    return fd;
  }
  if (const FileNumber file = file_of_new(fd); file != kNoFile) record({file, IoKind::open, IoRoute::posix, begin}, 0);
  return fd;
}

template <typename Function>
int duplicated(Function function) {
  const int fd = function();
  if (fd >= 0) forget(fd);
  return fd;
}

template <typename Function>
int controlled(int command, Function function) {
  const int result = function();
  if (command == F_DUPFD || command == F_DUPFD_CLOEXEC) forget(result);
  return result;
}

void forget_closed_range(unsigned first, unsigned last, uint64_t begin) {
  last = std::min(last, highest_known());
  if (is_recording() && is_own_process())
    for (unsigned fd = first; fd <= last; ++fd)
      if (const FileNumber file = known_file_of(static_cast<int>(fd)); file != kNoFile)
        record({file, IoKind::close, IoRoute::posix, begin}, 0);
  forget_range(first, last);
}

constexpr int kNumStandard = 3;

}  // namespace

}  // namespace hocket::hooks::io

using namespace hocket::hooks::io;
using hocket::IoKind;
using hocket::IoRoute;

HOCKET_IO_HOOK(int, open, (const char* path, int flags, mode_t mode)) {
  return opened([&] { return g_open(path, flags, mode); });
}
HOCKET_IO_HOOK(int, __open, (const char* path, int flags, mode_t mode)) { return hocket_open(path, flags, mode); }
HOCKET_IO_HOOK(int, open64, (const char* path, int flags, mode_t mode)) {
  return opened([&] { return g_open64(path, flags, mode); });
}
HOCKET_IO_HOOK(int, __open64, (const char* path, int flags, mode_t mode)) { return hocket_open64(path, flags, mode); }
HOCKET_IO_HOOK(int, openat, (int folder, const char* path, int flags, mode_t mode)) {
  return opened([&] { return g_openat(folder, path, flags, mode); });
}
HOCKET_IO_HOOK(int, openat64, (int folder, const char* path, int flags, mode_t mode)) {
  return opened([&] { return g_openat64(folder, path, flags, mode); });
}
HOCKET_IO_HOOK(int, creat, (const char* path, mode_t mode)) {
  return opened([&] { return g_creat(path, mode); });
}
HOCKET_IO_HOOK(int, creat64, (const char* path, mode_t mode)) {
  return opened([&] { return g_creat64(path, mode); });
}
HOCKET_IO_HOOK(int, __open_2, (const char* path, int flags)) {
  return opened([&] { return g_open_2(path, flags); });
}
HOCKET_IO_HOOK(int, __open64_2, (const char* path, int flags)) {
  return opened([&] { return g_open64_2(path, flags); });
}
HOCKET_IO_HOOK(int, __openat_2, (int folder, const char* path, int flags)) {
  return opened([&] { return g_openat_2(folder, path, flags); });
}
HOCKET_IO_HOOK(int, __openat64_2, (int folder, const char* path, int flags)) {
  return opened([&] { return g_openat64_2(folder, path, flags); });
}

// Forgotten before: when close() returns, another thread may have the number.
HOCKET_IO_HOOK(int, close, (int fd)) {
  const hocket::hooks::io::FileNumber file = is_recording() ? known_file_of(fd) : kNoFile;
  forget(fd);
  if (file == kNoFile || !is_own_process()) return g_close(fd);
  const Call call{file, IoKind::close, IoRoute::posix};
  const int result = g_close(fd);
  record(call, result);
  return result;
}
HOCKET_IO_HOOK(int, __close, (int fd)) { return hocket_close(fd); }

HOCKET_IO_HOOK(int, dup, (int fd)) {
  return duplicated([&] { return g_dup(fd); });
}
HOCKET_IO_HOOK(int, dup2, (int fd, int target)) {
  return duplicated([&] { return g_dup2(fd, target); });
}
HOCKET_IO_HOOK(int, __dup2, (int fd, int target)) { return hocket_dup2(fd, target); }
HOCKET_IO_HOOK(int, dup3, (int fd, int target, int flags)) {
  return duplicated([&] { return g_dup3(fd, target, flags); });
}
// Every command has at most one argument, a number or a pointer.
HOCKET_IO_HOOK(int, fcntl, (int fd, int command, long argument)) {
  return controlled(command, [&] { return g_fcntl(fd, command, argument); });
}
HOCKET_IO_HOOK(int, __fcntl, (int fd, int command, long argument)) { return hocket_fcntl(fd, command, argument); }
HOCKET_IO_HOOK(int, fcntl64, (int fd, int command, long argument)) {
  return controlled(command, [&] { return g_fcntl64(fd, command, argument); });
}

HOCKET_IO_HOOK(int, close_range, (unsigned first, unsigned last, int flags)) {
  const uint64_t begin = hocket::ticks();
  const int result = g_close_range(first, last, flags);
  if (result == 0 && (static_cast<unsigned>(flags) & kOnlyMarkForExec) == 0) forget_closed_range(first, last, begin);
  return result;
}
HOCKET_IO_HOOK(void, closefrom, (int first)) {
  const uint64_t begin = hocket::ticks();
  g_closefrom(first);
  forget_closed_range(first < 0 ? 0 : static_cast<unsigned>(first), UINT_MAX, begin);
}

// These close or replace descriptors inside the C library.
HOCKET_IO_HOOK(int, closedir, (DIR * folder)) {
  if (folder) forget(dirfd(folder));
  return g_closedir(folder);
}
HOCKET_IO_HOOK(int, pclose, (FILE * stream)) {
  const int fd = fileno_unlocked(stream);
  const int result = g_pclose(stream);
  forget(fd);
  return result;
}
HOCKET_IO_HOOK(int, daemon, (int keeps_folder, int keeps_standard)) {
  const int result = g_daemon(keeps_folder, keeps_standard);
  forget_range(0, kNumStandard - 1);
  return result;
}
HOCKET_IO_HOOK(int, login_tty, (int fd)) {
  const int result = g_login_tty(fd);
  forget_range(0, kNumStandard - 1);
  return result;
}
HOCKET_IO_HOOK(int, forkpty, (int* terminal, char* name, const void* attributes, const void* size)) {
  const int result = g_forkpty(terminal, name, attributes, size);
  forget_range(0, kNumStandard - 1);
  return result;
}

namespace hocket::hooks::io {

std::span<const Hook> descriptor_hooks() {
  static const std::array hooks = {
      HOCKET_IO_ENTRY(open, g_open),
      HOCKET_IO_ENTRY(__open, g_open),
      HOCKET_IO_ENTRY(open64, g_open64),
      HOCKET_IO_ENTRY(__open64, g_open64),
      HOCKET_IO_ENTRY(openat, g_openat),
      HOCKET_IO_ENTRY(openat64, g_openat64),
      HOCKET_IO_ENTRY(creat, g_creat),
      HOCKET_IO_ENTRY(creat64, g_creat64),
      HOCKET_IO_ENTRY(__open_2, g_open_2),
      HOCKET_IO_ENTRY(__open64_2, g_open64_2),
      HOCKET_IO_ENTRY(__openat_2, g_openat_2),
      HOCKET_IO_ENTRY(__openat64_2, g_openat64_2),
      HOCKET_IO_ENTRY(close, g_close),
      HOCKET_IO_ENTRY(__close, g_close),
      HOCKET_IO_ENTRY(dup, g_dup),
      HOCKET_IO_ENTRY(dup2, g_dup2),
      HOCKET_IO_ENTRY(__dup2, g_dup2),
      HOCKET_IO_ENTRY(dup3, g_dup3),
      HOCKET_IO_ENTRY(fcntl, g_fcntl),
      HOCKET_IO_ENTRY(__fcntl, g_fcntl),
      HOCKET_IO_ENTRY(fcntl64, g_fcntl64),
      HOCKET_IO_ENTRY(close_range, g_close_range),
      HOCKET_IO_ENTRY(closefrom, g_closefrom),
      HOCKET_IO_ENTRY(closedir, g_closedir),
      HOCKET_IO_ENTRY(pclose, g_pclose),
      HOCKET_IO_ENTRY(daemon, g_daemon),
      HOCKET_IO_ENTRY(login_tty, g_login_tty),
      HOCKET_IO_ENTRY(forkpty, g_forkpty),
  };
  return hooks;
}

}  // namespace hocket::hooks::io
