// Hooks of stdio. The C library reads and writes inside fgets(), fprintf(), fclose() and many more, at exit, too, and
// does not ask the dynamic linker for read() and write() there. But it calls them in one place for each kind of stream:
// through the entries `read`, `write` and `close` of its tables of virtual functions. Those entries are replaced, in
// the table of plain files and in all that have the same functions, so each transfer is seen once, with the bytes that
// the kernel moved, and what stays in a buffer costs nothing. glibc checks that the table of a stream is one of its
// own; it is. The tables lie in memory that the dynamic linker has made read-only, and are made so again.
//
// Nothing is replaced unless the tables look as expected: the entries must be the functions that glibc exports under
// these names.
#include "hooks/io.hpp"

#include <elf.h>
#include <link.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>

namespace hocket::hooks::io {

namespace {

constinit Original<FILE*(const char*, const char*)> g_fopen{"fopen"};
constinit Original<FILE*(const char*, const char*)> g_fopen64{"fopen64"};
constinit Original<FILE*(const char*, const char*, FILE*)> g_freopen{"freopen"};
constinit Original<FILE*(const char*, const char*, FILE*)> g_freopen64{"freopen64"};

constinit Original<ssize_t(FILE*, void*, ssize_t)> g_stream_read{"_IO_file_read"};
constinit Original<ssize_t(FILE*, const void*, ssize_t)> g_stream_write{"_IO_file_write"};
constinit Original<int(FILE*)> g_stream_close{"_IO_file_close"};

// Streams that append, or have not moved their position yet, have none.
uint64_t offset_of(const FILE* stream) {
  return stream->_offset < 0 ? kUnknownOffset : static_cast<uint64_t>(stream->_offset);
}

ssize_t read_stream(FILE* stream, void* data, ssize_t size) {
  return recorded(stream->_fileno, IoKind::read, IoRoute::stdio, offset_of(stream),
                  [&] { return g_stream_read(stream, data, size); });
}

// Of a write that fails after a part of the bytes, glibc returns the part.
ssize_t write_stream(FILE* stream, const void* data, ssize_t size) {
  return recorded(stream->_fileno, IoKind::write, IoRoute::stdio, offset_of(stream),
                  [&] { return g_stream_write(stream, data, size); });
}

int close_stream(FILE* stream) {
  const FileNumber file = is_recording() ? known_file_of(stream->_fileno) : kNoFile;
  forget(stream->_fileno);
  if (file == kNoFile || !is_own_process()) return g_stream_close(stream);
  const Call call{file, IoKind::close, IoRoute::stdio};
  const int result = g_stream_close(stream);
  record(call, result);
  return result;
}

// struct _IO_jump_t, the same since glibc 2.1: two words that are no functions, and 19 functions.
enum Entry : size_t { kRead = 14, kWrite = 15, kSeek = 16, kClose = 17 };

struct Pages {
  uintptr_t begin = 0;
  uintptr_t end = 0;
  uintptr_t within = 0;  // an address that they have to contain
};

int find_read_only_pages(dl_phdr_info* object, size_t, void* found) {
  auto& pages = *static_cast<Pages*>(found);
  for (size_t i = 0; i < object->dlpi_phnum; ++i) {
    const auto& part = object->dlpi_phdr[i];
    if (part.p_type != PT_GNU_RELRO) continue;
    const uintptr_t begin = object->dlpi_addr + part.p_vaddr;
    if (pages.within < begin || pages.within >= begin + part.p_memsz) continue;
    const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
    pages.begin = begin & ~(page - 1);  // as the dynamic linker rounds them
    pages.end = (begin + part.p_memsz) & ~(page - 1);
    return 1;
  }
  return 0;
}

void replace(void*& entry, void* function) { std::atomic_ref(entry).store(function, std::memory_order_release); }

template <typename Function>
FILE* opened(Function function) {
  if (!is_recording()) return function();
  const uint64_t begin = ticks();
  FILE* const stream = function();
  if (!stream) {
    if (is_own_process()) record({other_files(), IoKind::open, IoRoute::stdio, begin}, -1);
    return stream;
  }
  if (const FileNumber file = file_of_new(stream->_fileno); file != kNoFile)
    record({file, IoKind::open, IoRoute::stdio, begin}, 0);
  return stream;
}

// Exchanges functions in all tables of libc that have the same ones; false: they do not look as expected.
struct Functions {
  void* read;
  void* write;
  void* close;
};

bool exchange(uintptr_t table, const Functions& from, const Functions& to) {
  Pages pages{.within = table};
  if (dl_iterate_phdr(find_read_only_pages, &pages) == 0) return false;
  void* const base = reinterpret_cast<void*>(pages.begin);
  const size_t nbytes = pages.end - pages.begin;
  if (mprotect(base, nbytes, PROT_READ | PROT_WRITE) != 0) return false;
  auto** const words = static_cast<void**>(base);
  constexpr size_t kSize = 21;
  for (size_t at = kRead; at + kSize - kRead <= nbytes / sizeof(void*); ++at) {
    if (words[at] != from.read || words[at + 1] != from.write) continue;
    replace(words[at], to.read);
    replace(words[at + 1], to.write);
    if (words[at + kClose - kRead] == from.close) replace(words[at + kClose - kRead], to.close);
  }
  mprotect(base, nbytes, PROT_READ);
  return true;
}

Functions originals() { return {g_stream_read.pointer(), g_stream_write.pointer(), g_stream_close.pointer()}; }
Functions hooks() {
  return {reinterpret_cast<void*>(&read_stream), reinterpret_cast<void*>(&write_stream),
          reinterpret_cast<void*>(&close_stream)};
}
constinit std::atomic<uintptr_t> g_table{0};

}  // namespace

bool start_streams() {
  auto** const table = static_cast<void**>(dlsym(RTLD_NEXT, "_IO_file_jumps"));
  void* const seek = dlsym(RTLD_NEXT, "_IO_file_seek");
  const auto [read, write, close] = originals();
  if (!table || !read || !write || !close || table[kRead] != read || table[kWrite] != write || table[kSeek] != seek ||
      table[kClose] != close)
    return false;
  if (!exchange(reinterpret_cast<uintptr_t>(table), originals(), hooks())) return false;
  g_table.store(reinterpret_cast<uintptr_t>(table), std::memory_order_relaxed);
  return true;
}

void stop_streams() {
  if (const uintptr_t table = g_table.exchange(0, std::memory_order_relaxed)) exchange(table, hooks(), originals());
}

}  // namespace hocket::hooks::io

using namespace hocket::hooks::io;

HOCKET_IO_HOOK(FILE*, fopen, (const char* path, const char* mode)) {
  return opened([&] { return g_fopen(path, mode); });
}
HOCKET_IO_HOOK(FILE*, fopen64, (const char* path, const char* mode)) {
  return opened([&] { return g_fopen64(path, mode); });
}
HOCKET_IO_HOOK(FILE*, freopen, (const char* path, const char* mode, FILE* stream)) {
  return opened([&] { return g_freopen(path, mode, stream); });
}
HOCKET_IO_HOOK(FILE*, freopen64, (const char* path, const char* mode, FILE* stream)) {
  return opened([&] { return g_freopen64(path, mode, stream); });
}

namespace hocket::hooks::io {

std::span<const Hook> stream_hooks() {
  static const std::array hooks = {
      HOCKET_IO_ENTRY(fopen, g_fopen),
      HOCKET_IO_ENTRY(fopen64, g_fopen64),
      HOCKET_IO_ENTRY(freopen, g_freopen),
      HOCKET_IO_ENTRY(freopen64, g_freopen64),
  };
  return hooks;
}

}  // namespace hocket::hooks::io
