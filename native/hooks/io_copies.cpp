// Hooks of what moves bytes of files without read() and write(): copies inside the kernel, mappings, asynchronous I/O,
// and system calls that programs make themselves.
#include <aio.h>
#include <sys/mman.h>
#include <sys/types.h>
#include <sys/uio.h>

#include <array>

#include "hooks/io.hpp"

namespace hocket::hooks::io {

namespace {

constinit Original<ssize_t(int, int, off_t*, size_t)> g_sendfile{"sendfile"};
constinit Original<ssize_t(int, int, off_t*, size_t)> g_sendfile64{"sendfile64"};
using CopyRange = ssize_t(int, off_t*, int, off_t*, size_t, unsigned);
constinit Original<CopyRange> g_copy_file_range{"copy_file_range"};
constinit Original<CopyRange> g_splice{"splice"};
using Map = void*(void*, size_t, int, int, int, off_t);
constinit Original<Map> g_mmap{"mmap", SYS_mmap};
constinit Original<Map> g_mmap64{"mmap64", SYS_mmap};
constinit Original<int(void*, size_t, int)> g_msync{"msync", SYS_msync};
constinit Original<int(aiocb*)> g_aio_read{"aio_read"};
constinit Original<int(aiocb*)> g_aio_read64{"aio_read64"};
constinit Original<int(aiocb*)> g_aio_write{"aio_write"};
constinit Original<int(aiocb*)> g_aio_write64{"aio_write64"};
constinit Original<ssize_t(aiocb*)> g_aio_return{"aio_return"};
constinit Original<ssize_t(aiocb*)> g_aio_return64{"aio_return64"};
using ListIo = int(int, aiocb* const*, int, void*);
constinit Original<ListIo> g_lio_listio{"lio_listio"};
constinit Original<ListIo> g_lio_listio64{"lio_listio64"};
constinit Original<long(long, long, long, long, long, long, long)> g_syscall{"syscall"};

static_assert(sizeof(off_t) == 8, "offsets have 64 bits in both variants of each function");

// A copy moves the offset that it is given; one that fails may have been given no valid pointer.
uint64_t offset_before(const off_t* offset, ssize_t result) {
  return offset && result >= 0 ? static_cast<uint64_t>(*offset - result) : kUnknownOffset;
}

enum class Counting { by_kernel, not_by_kernel };

template <typename Function>
ssize_t copied(int source, const off_t* source_offset, int target, const off_t* target_offset, Function function,
               Counting counting = Counting::by_kernel) {
  const FileNumber from = file_of(source);
  const FileNumber to = file_of(target);
  const uint64_t begin = ticks();
  const ssize_t result = function();
  const auto record_side = [&](FileNumber file, const off_t* offset, CopySide side) {
    const Direction direction = side == CopySide::source ? Direction::read : Direction::written;
    if (file != kNoFile)
      record({file, IoKind::copy, IoRoute::posix, begin, offset_before(offset, result), side}, result);
    if (file == kNoFile && counting == Counting::by_kernel) count_other(direction, result);
    if (file != kNoFile && counting == Counting::not_by_kernel) count_uncounted(direction, result);
  };
  record_side(from, source_offset, CopySide::source);
  record_side(to, target_offset, CopySide::target);
  return result;
}

template <typename Function>
void* mapped(size_t size, int flags, int fd, off_t offset, Function function) {
  const FileNumber file = (flags & MAP_ANONYMOUS) != 0 ? kNoFile : file_of(fd);
  if (file == kNoFile) return function();
  const Call call{file, IoKind::map, IoRoute::posix, ticks(), static_cast<uint64_t>(offset)};
  void* const base = function();
  record(call, base == MAP_FAILED ? -1 : static_cast<int64_t>(size));
  return base;
}

template <typename Function>
int submitted(int fd, Function function) {
  return recorded(fd, IoKind::submit, IoRoute::posix, kUnknownOffset, function);
}

// The bytes of asynchronous I/O are known when the program asks for the result, which it may do once; how long it took
// is not known.
template <typename Function>
ssize_t returned(const aiocb* request, Function function) {
  if (!request) return function();
  const FileNumber file = file_of(request->aio_fildes);
  constexpr int kVariants = 128;  // set by glibc in the variant with 64 bits
  const int operation = request->aio_lio_opcode & ~kVariants;
  const auto offset = static_cast<uint64_t>(request->aio_offset);
  const ssize_t result = function();
  const IoKind kind = operation == LIO_READ ? IoKind::read : IoKind::write;
  if (operation != LIO_READ && operation != LIO_WRITE) return result;
  if (file == kNoFile)
    count_other(kind, result);
  else
    record({file, kind, IoRoute::posix, ticks(), offset}, result);
  return result;
}

template <typename Function>
int listed(aiocb* const* requests, int count, Function function) {
  const uint64_t begin = ticks();
  const int result = function();
  for (int i = 0; requests && i < count; ++i)
    if (requests[i])
      if (const FileNumber file = file_of(requests[i]->aio_fildes); file != kNoFile)
        record({file, IoKind::submit, IoRoute::posix, begin}, result);
  return result;
}

// What programs and languages call by number. All else is handed on by a jump: a call that starts a child on another
// stack must find no frame of ours there.
struct SystemCall {
  long number;
  long a, b, c, d, e, f;
  long operator()() const { return g_syscall(number, a, b, c, d, e, f); }
};

__attribute__((noinline)) long call_system(const SystemCall& call) {
  const auto fd = static_cast<int>(call.a);
  const auto again = [&call] { return call(); };
  switch (call.number) {
    case SYS_read:
      return recorded(fd, IoKind::read, IoRoute::posix, kUnknownOffset, again);
    case SYS_write:
      return recorded(fd, IoKind::write, IoRoute::posix, kUnknownOffset, again);
    case SYS_pread64:
      return recorded(fd, IoKind::read, IoRoute::posix, static_cast<uint64_t>(call.d), again);
    case SYS_pwrite64:
      return recorded(fd, IoKind::write, IoRoute::posix, static_cast<uint64_t>(call.d), again);
    case SYS_readv:
      return recorded(fd, IoKind::read, IoRoute::vectored, kUnknownOffset, again);
    case SYS_writev:
      return recorded(fd, IoKind::write, IoRoute::vectored, kUnknownOffset, again);
    case SYS_preadv:
    case SYS_preadv2:
      return recorded(fd, IoKind::read, IoRoute::vectored, static_cast<uint64_t>(call.d), again);
    case SYS_pwritev:
    case SYS_pwritev2:
      return recorded(fd, IoKind::write, IoRoute::vectored, static_cast<uint64_t>(call.d), again);
    case SYS_copy_file_range:
    case SYS_splice:
      return copied(fd, reinterpret_cast<const off_t*>(call.b), static_cast<int>(call.c),
                    reinterpret_cast<const off_t*>(call.d), again,
                    call.number == SYS_splice ? Counting::not_by_kernel : Counting::by_kernel);
    case SYS_sendfile:
      return copied(static_cast<int>(call.b), reinterpret_cast<const off_t*>(call.c), fd, nullptr, again);
    case kIoUringEnter: {
      if (!is_recording()) return again();
      const Call submit{other_files(), IoKind::submit, IoRoute::posix};
      const long result = again();
      record(submit, result < 0 ? -1 : 0);
      return result;
    }
    case SYS_close:
      forget(fd);
      return again();
#if defined(SYS_dup2)
    case SYS_dup2:
#endif
    case SYS_dup3: {
      const long result = again();
      forget(static_cast<int>(call.b));
      return result;
    }
    case kCloseRange:
      if ((static_cast<unsigned>(call.c) & kOnlyMarkForExec) == 0)
        forget_range(static_cast<unsigned>(call.a), static_cast<unsigned>(call.b));
      return again();
    default:
      return again();
  }
}

bool is_known(long number) {
  switch (number) {
    case SYS_read:
    case SYS_write:
    case SYS_pread64:
    case SYS_pwrite64:
    case SYS_readv:
    case SYS_writev:
    case SYS_preadv:
    case SYS_preadv2:
    case SYS_pwritev:
    case SYS_pwritev2:
    case SYS_copy_file_range:
    case SYS_splice:
    case SYS_sendfile:
    case kIoUringEnter:
    case SYS_close:
    case SYS_dup3:
    case kCloseRange:
#if defined(SYS_dup2)
    case SYS_dup2:
#endif
      return true;
    default:
      return false;
  }
}

}  // namespace

}  // namespace hocket::hooks::io

using namespace hocket::hooks::io;
using hocket::IoKind;
using hocket::IoRoute;

HOCKET_IO_HOOK(ssize_t, sendfile, (int target, int source, off_t* offset, size_t size)) {
  return copied(source, offset, target, nullptr, [&] { return g_sendfile(target, source, offset, size); });
}
HOCKET_IO_HOOK(ssize_t, sendfile64, (int target, int source, off_t* offset, size_t size)) {
  return copied(source, offset, target, nullptr, [&] { return g_sendfile64(target, source, offset, size); });
}
HOCKET_IO_HOOK(ssize_t, copy_file_range,
               (int source, off_t* source_offset, int target, off_t* target_offset, size_t size, unsigned flags)) {
  return copied(source, source_offset, target, target_offset,
                [&] { return g_copy_file_range(source, source_offset, target, target_offset, size, flags); });
}
HOCKET_IO_HOOK(ssize_t, splice,
               (int source, off_t* source_offset, int target, off_t* target_offset, size_t size, unsigned flags)) {
  return copied(
      source, source_offset, target, target_offset,
      [&] { return g_splice(source, source_offset, target, target_offset, size, flags); }, Counting::not_by_kernel);
}

HOCKET_IO_HOOK(void*, mmap, (void* wanted, size_t size, int protection, int flags, int fd, off_t offset)) {
  return mapped(size, flags, fd, offset, [&] { return g_mmap(wanted, size, protection, flags, fd, offset); });
}
HOCKET_IO_HOOK(void*, mmap64, (void* wanted, size_t size, int protection, int flags, int fd, off_t offset)) {
  return mapped(size, flags, fd, offset, [&] { return g_mmap64(wanted, size, protection, flags, fd, offset); });
}
// Of which file is not known.
HOCKET_IO_HOOK(int, msync, (void* base, size_t size, int flags)) {
  if (!is_recording()) return g_msync(base, size, flags);
  const Call call{other_files(), IoKind::sync, IoRoute::posix};
  const int result = g_msync(base, size, flags);
  record(call, result);
  return result;
}

HOCKET_IO_HOOK(int, aio_read, (aiocb * request)) {
  return submitted(request->aio_fildes, [&] { return g_aio_read(request); });
}
HOCKET_IO_HOOK(int, aio_read64, (aiocb * request)) {
  return submitted(request->aio_fildes, [&] { return g_aio_read64(request); });
}
HOCKET_IO_HOOK(int, aio_write, (aiocb * request)) {
  return submitted(request->aio_fildes, [&] { return g_aio_write(request); });
}
HOCKET_IO_HOOK(int, aio_write64, (aiocb * request)) {
  return submitted(request->aio_fildes, [&] { return g_aio_write64(request); });
}
HOCKET_IO_HOOK(ssize_t, aio_return, (aiocb * request)) {
  return returned(request, [&] { return g_aio_return(request); });
}
HOCKET_IO_HOOK(ssize_t, aio_return64, (aiocb * request)) {
  return returned(request, [&] { return g_aio_return64(request); });
}
HOCKET_IO_HOOK(int, lio_listio, (int mode, aiocb* const* requests, int count, void* event)) {
  return listed(requests, count, [&] { return g_lio_listio(mode, requests, count, event); });
}
HOCKET_IO_HOOK(int, lio_listio64, (int mode, aiocb* const* requests, int count, void* event)) {
  return listed(requests, count, [&] { return g_lio_listio64(mode, requests, count, event); });
}

// The arguments that a caller did not give are whatever is in their places, as in the C library.
HOCKET_IO_HOOK(long, syscall, (long number, long a, long b, long c, long d, long e, long f)) {
  if (is_known(number)) return call_system({number, a, b, c, d, e, f});
  return g_syscall(number, a, b, c, d, e, f);
}

namespace hocket::hooks::io {

std::span<const Hook> copy_hooks() {
  static const std::array hooks = {
      HOCKET_IO_ENTRY(sendfile, g_sendfile),
      HOCKET_IO_ENTRY(sendfile64, g_sendfile64),
      HOCKET_IO_ENTRY(copy_file_range, g_copy_file_range),
      HOCKET_IO_ENTRY(splice, g_splice),
      HOCKET_IO_ENTRY(mmap, g_mmap),
      HOCKET_IO_ENTRY(mmap64, g_mmap64),
      HOCKET_IO_ENTRY(msync, g_msync),
      HOCKET_IO_ENTRY(aio_read, g_aio_read),
      HOCKET_IO_ENTRY(aio_read64, g_aio_read64),
      HOCKET_IO_ENTRY(aio_write, g_aio_write),
      HOCKET_IO_ENTRY(aio_write64, g_aio_write64),
      HOCKET_IO_ENTRY(aio_return, g_aio_return),
      HOCKET_IO_ENTRY(aio_return64, g_aio_return64),
      HOCKET_IO_ENTRY(lio_listio, g_lio_listio),
      HOCKET_IO_ENTRY(lio_listio64, g_lio_listio64),
      HOCKET_IO_ENTRY(syscall, g_syscall),
  };
  return hooks;
}

}  // namespace hocket::hooks::io
