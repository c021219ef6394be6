// How much of this process's I/O the hooks see: the kernel's counters, and the bytes of calls on other
// descriptors than files.
#include <fcntl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <charconv>
#include <cstring>
#include <string_view>

#include "hooks/io.hpp"

namespace hocket::hooks::io {

namespace {

// The same memory in a forked child.
constinit std::atomic<IoTotals*> g_totals{nullptr};
constinit std::atomic<uint64_t> g_own_at_end{0};
constinit std::atomic<bool> g_has_own_numbers{false};

void add(uint64_t& total, uint64_t nbytes) { std::atomic_ref(total).fetch_add(nbytes, std::memory_order_relaxed); }
void add(IoBytes& total, const IoBytes& more) {
  add(total.read, more.read);
  add(total.written, more.written);
}

bool take_number(std::string_view text, std::string_view name, uint64_t& value) {
  const size_t at = text.find(name);
  if (at == std::string_view::npos) return false;
  const char* const begin = text.data() + at + name.size();
  return std::from_chars(begin, text.data() + text.size(), value).ec == std::errc{};
}

bool look_for_own_number() {
  std::array<char, 16> text{};
  const long length =
      call_kernel(SYS_readlinkat, {AT_FDCWD, reinterpret_cast<long>("/proc/self"), reinterpret_cast<long>(text.data()),
                                   static_cast<long>(text.size())});
  long number = 0;
  if (length > 0) std::from_chars(text.data(), text.data() + length, number);
  return number == getpid();
}

IoTotals* running_totals() {
  IoTotals* totals = g_totals.load(std::memory_order_relaxed);
  return totals && std::atomic_ref(totals->state).load(std::memory_order_relaxed) == IoCounting::running ? totals
                                                                                                         : nullptr;
}

void set_state(IoTotals& totals, IoCounting state) {
  std::atomic_ref(totals.state).store(state, std::memory_order_release);
}

}  // namespace

// By system calls: the functions of the C library are points where threads are cancelled, and set errno.
KernelCounters kernel_counters(const char* path) {
  KernelCounters found;
  const long fd = call_kernel(SYS_openat, {AT_FDCWD, reinterpret_cast<long>(path), O_RDONLY | O_CLOEXEC});
  if (fd < 0) {
    found.error = static_cast<int>(-fd);
    return found;
  }
  std::array<char, 512> text{};
  const long length = call_kernel(SYS_read, {fd, reinterpret_cast<long>(text.data()), static_cast<long>(text.size())});
  call_kernel(SYS_close, {fd});
  found.error = length < 0 ? static_cast<int>(-length) : ENODATA;
  if (length <= 0) return found;
  found.own_nbytes = static_cast<uint64_t>(length);
  const std::string_view content(text.data(), static_cast<size_t>(length));
  if (take_number(content, "rchar: ", found.bytes.read) && take_number(content, "wchar: ", found.bytes.written))
    found.error = 0;
  return found;
}

// After an end the recording goes on as if the time in between had not been.
void start_totals() {
  IoTotals* totals = Recorder::instance().io_totals();
  if (!totals) return;
  IoBytes past{};
  if (totals->state == IoCounting::ended)
    past = {totals->at_end.read - totals->at_begin.read, totals->at_end.written - totals->at_begin.written};
  else
    *totals = {};  // what the recorder has read while it was made is in none of them
  const KernelCounters now = kernel_counters("/proc/self/io");
  totals->error = static_cast<uint32_t>(now.error);
  totals->at_begin = {now.bytes.read + now.own_nbytes - past.read, now.bytes.written - past.written};
  set_state(*totals, now.error == 0 ? IoCounting::running : IoCounting::unreadable);
  g_has_own_numbers.store(look_for_own_number(), std::memory_order_relaxed);
  g_totals.store(totals, std::memory_order_release);
}

bool has_own_numbers() { return g_has_own_numbers.load(std::memory_order_relaxed); }

void end_totals() {
  IoTotals* totals = running_totals();
  if (!totals) return;
  const KernelCounters now = kernel_counters("/proc/self/io");
  if (now.error != 0) return;
  totals->at_end = now.bytes;
  g_own_at_end.store(now.own_nbytes, std::memory_order_relaxed);
  set_state(*totals, IoCounting::ended);
}

void resume_totals() {
  IoTotals* totals = g_totals.load(std::memory_order_relaxed);
  if (!totals || totals->state != IoCounting::ended) return;
  add(totals->excluded.read, g_own_at_end.load(std::memory_order_relaxed));
  set_state(*totals, IoCounting::running);
}

void stop_totals() {
  end_totals();
  g_totals.store(nullptr, std::memory_order_release);
}

void count_other(Direction direction, int64_t result) {
  IoTotals* totals = g_totals.load(std::memory_order_relaxed);
  if (result <= 0 || !totals) return;
  // While a forked child makes its recorder, there is no memory in this place.
  if (t_is_inside && !is_own_process()) return;
  const auto nbytes = static_cast<uint64_t>(result);
  add(direction == Direction::read ? totals->other.read : totals->other.written, nbytes);
  count_late(direction, nbytes);
}

void count_late(Direction direction, uint64_t nbytes) {
  IoTotals* totals = g_totals.load(std::memory_order_relaxed);
  if (!totals || std::atomic_ref(totals->state).load(std::memory_order_relaxed) != IoCounting::ended) return;
  add(direction == Direction::read ? totals->at_end.read : totals->at_end.written, nbytes);
}

void count_uncounted(Direction direction, int64_t result) {
  IoTotals* totals = g_totals.load(std::memory_order_relaxed);
  if (result > 0 && totals)
    add(direction == Direction::read ? totals->uncounted.read : totals->uncounted.written,
        static_cast<uint64_t>(result));
}

void exclude(const IoBytes& bytes) {
  if (IoTotals* totals = running_totals()) add(totals->excluded, bytes);
}

}  // namespace hocket::hooks::io
