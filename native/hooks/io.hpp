// What the hooks of file I/O share. Only regular files and block devices are recorded: no sockets, pipes, terminals,
// memory without a name, or files of the kernel (/proc, /sys).
//
// The descriptors are those of the process: a thread that has unshared its own is not told apart, and a child that was
// made without fork(), by clone() itself, is recorded as its parent.
//
// Any thread and any signal handler may be inside a hook at any moment, also in the child of a vfork(), which has this
// memory but descriptors of its own. So the way of a call that is recorded takes no lock, allocates nothing and leaves
// errno as it is; only the first sight of a descriptor or a thread takes a lock, with all signals blocked. No object
// with a destructor lives across a call of the C library, because a cancelled thread unwinds from there.
#pragma once

#include <array>
#include <atomic>
#include <cerrno>
#include <cstdint>
#include <span>
#include <type_traits>

#include "core/clock.hpp"
#include "hooks/hooks.hpp"

// Defines a function of the C library: other names than its own keep the compiler from knowing what it does.
#define HOCKET_IO_HOOK(result, name, parameters)          \
  HOCKET_HOOK result hocket_##name parameters asm(#name); \
  result hocket_##name parameters
namespace hocket::hooks::io {

// Newer than the headers that this may be compiled with; the same for all kinds of processors.
inline constexpr long kIoUringEnter = 426;
inline constexpr long kCloseRange = 436;
inline constexpr unsigned kOnlyMarkForExec = 4;  // CLOSE_RANGE_CLOEXEC

inline constexpr long kNoSystemCall = -1;
// As the kernel returns it: errors are negative numbers.
long call_kernel(long number, const std::array<long, 6>& arguments);

// A function of the C library that a hook replaces. It is looked up by the first call, which may come before the
// constructors of this library have run.
class AnyOriginal {
 public:
  constexpr explicit AnyOriginal(const char* name, long system_call = kNoSystemCall)
      : name_(name), system_call_(system_call) {}
  const char* name() const { return name_; }
  // Null: this C library does not have it, or looking it up has called the hook.
  void* pointer() const {
    void* known = pointer_.load(std::memory_order_relaxed);
    return known ? known : look_up();
  }

 protected:
  // In place of a function without a pointer; sets errno.
  long call_instead(const std::array<long, 6>& arguments) const;

 private:
  void* look_up() const;

  const char* name_;
  long system_call_;  // with the same parameters
  mutable std::atomic<void*> pointer_{nullptr};
};

template <typename Function>
class Original;
template <typename Result, typename... Parameters>
class Original<Result(Parameters...)> : public AnyOriginal {
 public:
  using AnyOriginal::AnyOriginal;
  Result operator()(Parameters... arguments) const {
    auto* function = reinterpret_cast<Result (*)(Parameters...)>(pointer());
    if (function) return function(arguments...);
    if constexpr (!std::is_void_v<Result>) {
      long result = -1;
      if constexpr (sizeof...(arguments) <= 6)
        result = call_instead({as_word(arguments)...});
      else
        errno = ENOSYS;
      if constexpr (!std::is_pointer_v<Result>)
        return static_cast<Result>(result);
      else
        return std::is_void_v<std::remove_pointer_t<Result>> || result != -1 ? reinterpret_cast<Result>(result)
                                                                             : nullptr;
    }
  }

 private:
  template <typename Word>
  static long as_word(Word word) {
    if constexpr (std::is_pointer_v<Word>)
      return reinterpret_cast<long>(word);
    else
      return static_cast<long>(word);
  }
};

// Of one function: what another way of hooking than LD_PRELOAD needs.
struct Hook {
  const char* name;
  void* replacement;
  const AnyOriginal* original;
};
#define HOCKET_IO_ENTRY(name, original) \
  hocket::hooks::io::Hook { #name, reinterpret_cast<void*>(&hocket_##name), &(original) }

std::span<const Hook> descriptor_hooks();
std::span<const Hook> transfer_hooks();
std::span<const Hook> copy_hooks();
std::span<const Hook> stream_hooks();
std::span<const Hook> child_hooks();
std::span<const Hook> end_hooks();

std::array<std::span<const Hook>, 6> all_hooks();

// In a process with a recorder. Where the hooks are not preloaded, they must be in their places, and all descriptors
// forgotten.
void start_recording();
void stop_recording();

// The number of a file's definition.
using FileNumber = uint32_t;
inline constexpr FileNumber kNoFile = 0;  // nothing of it is recorded

inline constinit std::atomic<bool> g_is_on{false};
inline bool is_recording() { return g_is_on.load(std::memory_order_relaxed) && !t_is_inside; }

// The file of a descriptor, decided when it is first seen.
FileNumber file_of(int fd);
// Descriptors that were closed or are about to be, or have come to be other files. Always safe: the next use looks
// again.
void forget(int fd);
void forget_range(unsigned first, unsigned last);
// No descriptor above it has a file that is known.
unsigned highest_known();
// Of a descriptor that a call has just returned.
inline FileNumber file_of_new(int fd) {
  forget(fd);
  return file_of(fd);
}
// The one known from an earlier use.
FileNumber known_file_of(int fd);
// Stands for files without a definition of their own.
FileNumber other_files();
void start_files();
// Around fork(): nobody is inside, no signal handler runs that would not be recorded, and the child begins with no
// files known.
void lock_files();
void unlock_files(bool is_child);
// The same for the places where functions are replaced at run time (io_slots.cpp).
void lock_slots();
void unlock_slots();
// False in the child of a vfork().
bool is_own_process();

struct Call {
  FileNumber file;
  IoKind kind;
  IoRoute route;
  uint64_t begin = ticks();
  uint64_t offset = kUnknownOffset;
  CopySide side = CopySide::source;
};
// `result`: bytes moved, or -1 with errno.
void record(const Call& call, int64_t result);

// What /proc/PID/io says; without reading it had `own_nbytes` less.
struct KernelCounters {
  IoBytes bytes{};
  uint64_t own_nbytes = 0;
  int error = 0;  // errno; 0: they were read
};
KernelCounters kernel_counters(const char* path);

// Begins to compare what the hooks see with the kernel's counters; in a forked child again.
void start_totals();
// Whether /proc has the numbers that this process knows; a container may show that of the host.
bool has_own_numbers();
// The process ends; bytes that are recorded afterwards are still counted.
void end_totals();
// It goes on.
void resume_totals();
// The recording ends, and nothing is counted afterwards.
void stop_totals();

enum class Direction : uint8_t { read, written };
// Counts the bytes of a hooked call on a pipe, socket or terminal; `result` is that of the call, negative for an error.
void count_other(Direction direction, int64_t result);
inline void count_other(IoKind kind, int64_t result) {
  if (kind == IoKind::read) count_other(Direction::read, result);
  if (kind == IoKind::write) count_other(Direction::written, result);
}
// Of an event after end_totals().
void count_late(Direction direction, uint64_t nbytes);
// Of an event whose bytes the kernel does not count.
void count_uncounted(Direction direction, int64_t result);
// What the kernel counts for this process, but is not its own.
void exclude(const IoBytes& bytes);

// Blocks all signals that can be blocked; returns which were blocked before.
uint64_t block_signals();
void restore_signals(uint64_t blocked_before);

class SignalsBlocked {
 public:
  SignalsBlocked() : before_(block_signals()) {}
  ~SignalsBlocked() { restore_signals(before_); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  uint64_t before_;
};

// Calls a function that returns a number of bytes, and records it.
template <typename Function>
auto recorded(int fd, IoKind kind, IoRoute route, uint64_t offset, Function function) {
  const FileNumber file = file_of(fd);
  if (file == kNoFile) {
    const auto result = function();
    count_other(kind, static_cast<int64_t>(result));
    return result;
  }
  const Call call{.file = file, .kind = kind, .route = route, .offset = offset};
  const auto result = function();
  record(call, static_cast<int64_t>(result));
  return result;
}

// Bytes of stdio are counted where the C library itself reads and writes; false: it does not let us.
bool start_streams();
void stop_streams();

}  // namespace hocket::hooks::io
