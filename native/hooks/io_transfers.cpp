// Hooks of what reads, writes and synchronises.
#include <sys/types.h>
#include <sys/uio.h>

#include <array>
#include <cstddef>

#include "hooks/io.hpp"

namespace hocket::hooks::io {

namespace {

constinit Original<ssize_t(int, void*, size_t)> g_read{"read", SYS_read};
constinit Original<ssize_t(int, void*, size_t, size_t)> g_read_chk{"__read_chk"};
constinit Original<ssize_t(int, const void*, size_t)> g_write{"write", SYS_write};
constinit Original<ssize_t(int, void*, size_t, off_t)> g_pread{"pread", SYS_pread64};
constinit Original<ssize_t(int, void*, size_t, off_t)> g_pread64{"pread64", SYS_pread64};
constinit Original<ssize_t(int, void*, size_t, off_t, size_t)> g_pread_chk{"__pread_chk"};
constinit Original<ssize_t(int, void*, size_t, off_t, size_t)> g_pread64_chk{"__pread64_chk"};
constinit Original<ssize_t(int, const void*, size_t, off_t)> g_pwrite{"pwrite", SYS_pwrite64};
constinit Original<ssize_t(int, const void*, size_t, off_t)> g_pwrite64{"pwrite64", SYS_pwrite64};
using Vectored = ssize_t(int, const iovec*, int);
using VectoredAt = ssize_t(int, const iovec*, int, off_t);
using VectoredAtWith = ssize_t(int, const iovec*, int, off_t, int);
constinit Original<Vectored> g_readv{"readv", SYS_readv};
constinit Original<Vectored> g_writev{"writev", SYS_writev};
constinit Original<VectoredAt> g_preadv{"preadv"};
constinit Original<VectoredAt> g_preadv64{"preadv64"};
constinit Original<VectoredAt> g_pwritev{"pwritev"};
constinit Original<VectoredAt> g_pwritev64{"pwritev64"};
constinit Original<VectoredAtWith> g_preadv2{"preadv2"};
constinit Original<VectoredAtWith> g_preadv64v2{"preadv64v2"};
constinit Original<VectoredAtWith> g_pwritev2{"pwritev2"};
constinit Original<VectoredAtWith> g_pwritev64v2{"pwritev64v2"};
constinit Original<int(int)> g_fsync{"fsync", SYS_fsync};
constinit Original<int(int)> g_fdatasync{"fdatasync"};
constinit Original<int(int, off_t, off_t, unsigned)> g_sync_file_range{"sync_file_range"};

template <typename Function>
auto read_by(int fd, Function function) {
  return recorded(fd, IoKind::read, IoRoute::posix, kUnknownOffset, function);
}
template <typename Function>
auto write_by(int fd, Function function) {
  return recorded(fd, IoKind::write, IoRoute::posix, kUnknownOffset, function);
}
template <typename Function>
auto read_at(int fd, off_t offset, Function function) {
  return recorded(fd, IoKind::read, IoRoute::posix, static_cast<uint64_t>(offset), function);
}
template <typename Function>
auto write_at(int fd, off_t offset, Function function) {
  return recorded(fd, IoKind::write, IoRoute::posix, static_cast<uint64_t>(offset), function);
}
// The offset -1 means the present position, which is not known.
template <typename Function>
auto read_pieces(int fd, off_t offset, Function function) {
  return recorded(fd, IoKind::read, IoRoute::vectored, static_cast<uint64_t>(offset), function);
}
template <typename Function>
auto write_pieces(int fd, off_t offset, Function function) {
  return recorded(fd, IoKind::write, IoRoute::vectored, static_cast<uint64_t>(offset), function);
}
static_assert(static_cast<uint64_t>(off_t{-1}) == kUnknownOffset);

template <typename Function>
auto synchronised(int fd, Function function) {
  return recorded(fd, IoKind::sync, IoRoute::posix, kUnknownOffset, function);
}

}  // namespace

}  // namespace hocket::hooks::io

using namespace hocket::hooks::io;

HOCKET_IO_HOOK(ssize_t, read, (int fd, void* data, size_t size)) {
  return read_by(fd, [&] { return g_read(fd, data, size); });
}
HOCKET_IO_HOOK(ssize_t, __read, (int fd, void* data, size_t size)) { return hocket_read(fd, data, size); }
HOCKET_IO_HOOK(ssize_t, __read_chk, (int fd, void* data, size_t size, size_t room)) {
  return read_by(fd, [&] { return g_read_chk(fd, data, size, room); });
}
HOCKET_IO_HOOK(ssize_t, write, (int fd, const void* data, size_t size)) {
  return write_by(fd, [&] { return g_write(fd, data, size); });
}
HOCKET_IO_HOOK(ssize_t, __write, (int fd, const void* data, size_t size)) { return hocket_write(fd, data, size); }
HOCKET_IO_HOOK(ssize_t, pread, (int fd, void* data, size_t size, off_t offset)) {
  return read_at(fd, offset, [&] { return g_pread(fd, data, size, offset); });
}
HOCKET_IO_HOOK(ssize_t, pread64, (int fd, void* data, size_t size, off_t offset)) {
  return read_at(fd, offset, [&] { return g_pread64(fd, data, size, offset); });
}
HOCKET_IO_HOOK(ssize_t, __pread64, (int fd, void* data, size_t size, off_t offset)) {
  return hocket_pread64(fd, data, size, offset);
}
HOCKET_IO_HOOK(ssize_t, __pread_chk, (int fd, void* data, size_t size, off_t offset, size_t room)) {
  return read_at(fd, offset, [&] { return g_pread_chk(fd, data, size, offset, room); });
}
HOCKET_IO_HOOK(ssize_t, __pread64_chk, (int fd, void* data, size_t size, off_t offset, size_t room)) {
  return read_at(fd, offset, [&] { return g_pread64_chk(fd, data, size, offset, room); });
}
HOCKET_IO_HOOK(ssize_t, pwrite, (int fd, const void* data, size_t size, off_t offset)) {
  return write_at(fd, offset, [&] { return g_pwrite(fd, data, size, offset); });
}
HOCKET_IO_HOOK(ssize_t, pwrite64, (int fd, const void* data, size_t size, off_t offset)) {
  return write_at(fd, offset, [&] { return g_pwrite64(fd, data, size, offset); });
}
HOCKET_IO_HOOK(ssize_t, __pwrite64, (int fd, const void* data, size_t size, off_t offset)) {
  return hocket_pwrite64(fd, data, size, offset);
}

HOCKET_IO_HOOK(ssize_t, readv, (int fd, const iovec* pieces, int count)) {
  return read_pieces(fd, -1, [&] { return g_readv(fd, pieces, count); });
}
HOCKET_IO_HOOK(ssize_t, writev, (int fd, const iovec* pieces, int count)) {
  return write_pieces(fd, -1, [&] { return g_writev(fd, pieces, count); });
}
HOCKET_IO_HOOK(ssize_t, preadv, (int fd, const iovec* pieces, int count, off_t offset)) {
  return read_pieces(fd, offset, [&] { return g_preadv(fd, pieces, count, offset); });
}
HOCKET_IO_HOOK(ssize_t, preadv64, (int fd, const iovec* pieces, int count, off_t offset)) {
  return read_pieces(fd, offset, [&] { return g_preadv64(fd, pieces, count, offset); });
}
HOCKET_IO_HOOK(ssize_t, pwritev, (int fd, const iovec* pieces, int count, off_t offset)) {
  return write_pieces(fd, offset, [&] { return g_pwritev(fd, pieces, count, offset); });
}
HOCKET_IO_HOOK(ssize_t, pwritev64, (int fd, const iovec* pieces, int count, off_t offset)) {
  return write_pieces(fd, offset, [&] { return g_pwritev64(fd, pieces, count, offset); });
}
HOCKET_IO_HOOK(ssize_t, preadv2, (int fd, const iovec* pieces, int count, off_t offset, int flags)) {
  return read_pieces(fd, offset, [&] { return g_preadv2(fd, pieces, count, offset, flags); });
}
HOCKET_IO_HOOK(ssize_t, preadv64v2, (int fd, const iovec* pieces, int count, off_t offset, int flags)) {
  return read_pieces(fd, offset, [&] { return g_preadv64v2(fd, pieces, count, offset, flags); });
}
HOCKET_IO_HOOK(ssize_t, pwritev2, (int fd, const iovec* pieces, int count, off_t offset, int flags)) {
  return write_pieces(fd, offset, [&] { return g_pwritev2(fd, pieces, count, offset, flags); });
}
HOCKET_IO_HOOK(ssize_t, pwritev64v2, (int fd, const iovec* pieces, int count, off_t offset, int flags)) {
  return write_pieces(fd, offset, [&] { return g_pwritev64v2(fd, pieces, count, offset, flags); });
}

HOCKET_IO_HOOK(int, fsync, (int fd)) {
  return synchronised(fd, [&] { return g_fsync(fd); });
}
HOCKET_IO_HOOK(int, fdatasync, (int fd)) {
  return synchronised(fd, [&] { return g_fdatasync(fd); });
}
HOCKET_IO_HOOK(int, sync_file_range, (int fd, off_t offset, off_t size, unsigned flags)) {
  return synchronised(fd, [&] { return g_sync_file_range(fd, offset, size, flags); });
}

namespace hocket::hooks::io {

std::span<const Hook> transfer_hooks() {
  static const std::array hooks = {
      HOCKET_IO_ENTRY(read, g_read),
      HOCKET_IO_ENTRY(__read, g_read),
      HOCKET_IO_ENTRY(__read_chk, g_read_chk),
      HOCKET_IO_ENTRY(write, g_write),
      HOCKET_IO_ENTRY(__write, g_write),
      HOCKET_IO_ENTRY(pread, g_pread),
      HOCKET_IO_ENTRY(pread64, g_pread64),
      HOCKET_IO_ENTRY(__pread64, g_pread64),
      HOCKET_IO_ENTRY(__pread_chk, g_pread_chk),
      HOCKET_IO_ENTRY(__pread64_chk, g_pread64_chk),
      HOCKET_IO_ENTRY(pwrite, g_pwrite),
      HOCKET_IO_ENTRY(pwrite64, g_pwrite64),
      HOCKET_IO_ENTRY(__pwrite64, g_pwrite64),
      HOCKET_IO_ENTRY(readv, g_readv),
      HOCKET_IO_ENTRY(writev, g_writev),
      HOCKET_IO_ENTRY(preadv, g_preadv),
      HOCKET_IO_ENTRY(preadv64, g_preadv64),
      HOCKET_IO_ENTRY(pwritev, g_pwritev),
      HOCKET_IO_ENTRY(pwritev64, g_pwritev64),
      HOCKET_IO_ENTRY(preadv2, g_preadv2),
      HOCKET_IO_ENTRY(preadv64v2, g_preadv64v2),
      HOCKET_IO_ENTRY(pwritev2, g_pwritev2),
      HOCKET_IO_ENTRY(pwritev64v2, g_pwritev64v2),
      HOCKET_IO_ENTRY(fsync, g_fsync),
      HOCKET_IO_ENTRY(fdatasync, g_fdatasync),
      HOCKET_IO_ENTRY(sync_file_range, g_sync_file_range),
  };
  return hooks;
}

}  // namespace hocket::hooks::io
