// The switch of the hooks of file I/O, and what they record: events, and exact totals by file, kind and size.
#include "hooks/io.hpp"

#include <pthread.h>
#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace hocket::hooks::io {

namespace {

constexpr uint8_t kNoReduction = 0xff;

// They stay valid in a forked child, whose recorder has the same address.
constinit SharedRing g_ring;
constinit SharedHistograms g_histograms;

uint16_t number_of_thread() {
  static thread_local uint32_t t_num_forks = ~0u;
  static thread_local uint16_t t_number = 0;
  const uint32_t num_forks = Recorder::instance().num_forks();
  if (t_num_forks == num_forks) return t_number;
  if (!is_own_process()) return 0;
  const SignalsBlocked blocked;
  t_number = thread_number();
  t_num_forks = num_forks;
  return t_number;
}

__attribute__((constructor)) void start_by_environment() {
  if (!observes("io")) return;
  const Inside inside;
  if (Recorder::instance().is_on()) start_recording();
}

}  // namespace

std::array<std::span<const Hook>, 6> all_hooks() {
  return {descriptor_hooks(), transfer_hooks(), copy_hooks(), stream_hooks(), child_hooks(), end_hooks()};
}

void start_recording() {
  Recorder& recorder = Recorder::instance();
  for (const std::span<const Hook> hooks : all_hooks())
    for (const Hook& hook : hooks) hook.original->pointer();
  g_ring = recorder.ring(RingId::io);
  g_histograms = recorder.shared_histograms();
  start_files();
  // After that of the recorder, so that in the child the recorder is a new one when the files are forgotten.
  static const int has_handlers = pthread_atfork(lock_files, [] { unlock_files(false); }, [] { unlock_files(true); });
  static_cast<void>(has_handlers);
  if (!start_streams()) {
    errno = ENOTSUP;
    record({.file = other_files(), .kind = IoKind::submit, .route = IoRoute::stdio}, -1);
  }
  start_totals();
  g_is_on.store(true, std::memory_order_release);
}

void stop_recording() {
  g_is_on.store(false, std::memory_order_release);
  stop_totals();
  stop_streams();
}

long call_kernel(long number, const std::array<long, 6>& arguments) {
  const auto& [a, b, c, d, e, f] = arguments;
#if defined(__x86_64__)
  long result = 0;
  register long fourth asm("r10") = d;
  register long fifth asm("r8") = e;
  register long sixth asm("r9") = f;
  asm volatile("syscall"
               : "=a"(result)
               : "a"(number), "D"(a), "S"(b), "d"(c), "r"(fourth), "r"(fifth), "r"(sixth)
               : "rcx", "r11", "memory");
  return result;
#elif defined(__aarch64__)
  register long which asm("x8") = number;
  register long first asm("x0") = a;
  register long second asm("x1") = b;
  register long third asm("x2") = c;
  register long fourth asm("x3") = d;
  register long fifth asm("x4") = e;
  register long sixth asm("x5") = f;
  asm volatile("svc 0"
               : "+r"(first)
               : "r"(which), "r"(second), "r"(third), "r"(fourth), "r"(fifth), "r"(sixth)
               : "memory");
  return first;
#else
  static_cast<void>(number);
  static_cast<void>(a + b + c + d + e + f);
  return -ENOSYS;
#endif
}

// The dynamic linker may call hooks of memory and files.
void* AnyOriginal::look_up() const {
  static thread_local bool t_is_looking_up = false;
  if (t_is_looking_up) return nullptr;
  t_is_looking_up = true;
  void* found = dlsym(RTLD_NEXT, name_);
  t_is_looking_up = false;
  pointer_.store(found, std::memory_order_relaxed);
  return found;
}

long AnyOriginal::call_instead(const std::array<long, 6>& arguments) const {
  const long result = system_call_ == kNoSystemCall ? -ENOSYS : call_kernel(system_call_, arguments);
  constexpr long kLastError = -4095;
  if (result >= 0 || result < kLastError) return result;
  errno = static_cast<int>(-result);
  return -1;
}

// By system calls: the C library's function keeps its own signals, with which it cancels threads, out of the set.
uint64_t block_signals() {
  const uint64_t all = ~0ull;
  uint64_t before = 0;
  call_kernel(SYS_rt_sigprocmask,
              {SIG_SETMASK, reinterpret_cast<long>(&all), reinterpret_cast<long>(&before), sizeof all});
  return before;
}

void restore_signals(uint64_t blocked_before) {
  call_kernel(SYS_rt_sigprocmask, {SIG_SETMASK, reinterpret_cast<long>(&blocked_before), 0, sizeof blocked_before});
}

void record(const Call& call, int64_t result) {
  const int code = errno;
  const bool has_failed = result < 0;
  const uint64_t nbytes = has_failed ? 0 : static_cast<uint64_t>(result);
  Event event{};
  event.t_begin = call.begin;
  event.t_end = ticks();
  event.nbytes = nbytes;
  event.aux = call.offset;
  event.comm = call.file;
  event.peer = has_failed ? code : 0;
  event.thread = number_of_thread();
  event.algorithm = static_cast<uint16_t>(call.side);
  event.kind = static_cast<uint8_t>(call.kind);
  event.backend = static_cast<uint8_t>(call.route);
  event.reduce = kNoReduction;
  event.state = has_failed ? EventState::failed : EventState::completed;
  event.layer = Layer::io;
  g_ring.add(event);
  const HistogramKey key{
      .comm = call.file,
      .peer = 0,
      .algorithm = event.algorithm,
      .kind = event.kind,
      .backend = event.backend,
      .layer = Layer::io,
      .size_class = size_class_of(nbytes),
  };
  g_histograms.add(key, other_files(), event.t_end - event.t_begin, nbytes, has_failed);
  if (call.kind == IoKind::read || call.kind == IoKind::write || call.kind == IoKind::copy) {
    const bool is_read = call.kind == IoKind::read || (call.kind == IoKind::copy && call.side == CopySide::source);
    count_late(is_read ? Direction::read : Direction::written, nbytes);
  }
  errno = code;
}

}  // namespace hocket::hooks::io
