// Files of MPI. The bytes are those that the status says were read or written; the offset is in bytes from the start of
// the file, unknown for the shared file pointer, which other ranks move, too.
#include <fcntl.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>

#include "hooks/mpi_requests.hpp"

using hocket::Event;
using hocket::EventState;
using hocket::IoKind;
using hocket::hooks::Handle;
using hocket::hooks::HookedMpi;
using hocket::hooks::MpiCall;
using hocket::hooks::of_this_process;
using hocket::hooks::OpenEvent;
using hocket::hooks::OpenOperation;
using hocket::hooks::OpenRequests;
using hocket::hooks::StatusOf;

namespace {

class KnownFiles {
 public:
  void open(Handle file, const char* name) {
    const std::lock_guard guard(mutex_);
    uint32_t& id = ids_[name];
    if (id == 0) id = hocket::Recorder::instance().define(hocket::DefinitionKind::file, name);
    files_[file].id = id;
  }
  uint32_t id(Handle file) {
    const std::lock_guard guard(mutex_);
    const auto found = files_.find(file);
    return found == files_.end() ? 0 : found->second.id;
  }
  void close(Handle file) {
    const std::lock_guard guard(mutex_);
    files_.erase(file);
  }
  // A file has at most one collective operation whose begin and end are two calls.
  void keep_begun(Handle file, const OpenEvent& begun) {
    const std::lock_guard guard(mutex_);
    files_[file].begun = begun;
  }
  OpenEvent take_begun(Handle file) {
    const std::lock_guard guard(mutex_);
    const auto found = files_.find(file);
    return found == files_.end() ? OpenEvent() : std::exchange(found->second.begun, {});
  }

 private:
  struct KnownFile {
    uint32_t id = 0;
    OpenEvent begun;
  };
  std::mutex mutex_;
  std::unordered_map<std::string, uint32_t> ids_;
  std::unordered_map<Handle, KnownFile> files_;
};

KnownFiles& files() { return of_this_process<KnownFiles>(); }

enum class Pointer { given, own, shared };

// One call of a function of files.
class FileCall : public MpiCall {
 public:
  FileCall(hocket::hooks::HookedFunction& function, const void* caller)
      : MpiCall(function, caller, hocket::Layer::io) {}

  void begin(IoKind kind, Handle file, uint64_t offset, uint64_t nbytes, uint8_t flags = 0) {
    Event event{};
    event.t_begin = hocket::ticks();
    event.nbytes = nbytes;
    event.aux = offset;
    event.comm = file ? files().id(mpi().handle(file)) : 0;
    event.thread = hocket::hooks::thread_number();
    event.kind = static_cast<uint8_t>(kind);
    event.backend = static_cast<uint8_t>(hocket::IoRoute::mpi);
    event.dtype = static_cast<uint8_t>(hocket::DType::uint8);
    event.reduce = hocket::hooks::kNoReduction;
    event.state = EventState::started;
    event.flags = flags;
    event.layer = hocket::Layer::io;
    operation_.event = hocket::hooks::begin_event(event, hocket::RingId::io);
  }
  // In bytes from the start of the file; `offset` is in elements of the view.
  uint64_t offset_of(Pointer pointer, Handle file, int64_t offset) const {
    const HookedMpi::Functions& functions = mpi().functions();
    int64_t bytes = 0;
    if (pointer == Pointer::shared) return hocket::kUnknownOffset;
    if (pointer == Pointer::own && functions.file_get_position(file, &offset) != 0) return hocket::kUnknownOffset;
    if (functions.file_get_byte_offset(file, offset, &bytes) != 0) return hocket::kUnknownOffset;
    return static_cast<uint64_t>(bytes);
  }
  int end(int code, const void* status) {
    if (is_recorded()) finish_operation(operation_, mpi(), status, code);
    return code;
  }
  int follow(int code, const void* request) {
    if (!is_recorded()) return code;
    if (code != 0) return end(code, nullptr);
    of_this_process<OpenRequests>().add(mpi().handle_at(request, 0), operation_);
    return code;
  }
  int keep_begun(int code, Handle file) {
    if (!is_recorded()) return code;
    if (code != 0) return end(code, nullptr);
    files().keep_begun(mpi().handle(file), operation_.event);
    return code;
  }
  int end_begun(int code, Handle file, const void* status) {
    if (!is_recorded()) return code;
    operation_.event = files().take_begun(mpi().handle(file));
    return end(code, status);
  }
  // The file that the event of its opening names is known only afterwards.
  void name_opened(Handle file) {
    const uint32_t id = operation_.event.event.comm = files().id(file);
    hocket::Recorder::instance().ring(hocket::RingId::io).update(operation_.event.index, [id](Event& event) {
      event.comm = id;
    });
  }

 private:
  OpenOperation operation_;
};

}  // namespace

#define FILE_CALL(symbol, narrow)                                                        \
  static constinit hocket::hooks::HookedFunction function{"PMPI_File_" #symbol, narrow}; \
  FileCall call(function, __builtin_return_address(0))
#define BEGIN(kind, pointer, offset, flags) \
  if (call.is_recorded())                   \
  call.begin(IoKind::kind, file, call.offset_of(Pointer::pointer, file, offset), call.nbytes(count, type), flags)

#define BLOCKING(symbol, narrow, C, D, P, A, kind, pointer, offset) \
  HOCKET_HOOK int MPI_File_##symbol(P(C, D), void* status) {        \
    FILE_CALL(symbol, narrow);                                      \
    StatusOf status_of(call, status);                               \
    BEGIN(kind, pointer, offset, 0);                                \
    const int code = call(HOCKET_MPI_LIST A, status_of.used());     \
    return call.end(code, status_of.used());                        \
  }
#define NONBLOCKING(symbol, narrow, C, D, P, A, kind, pointer, offset) \
  HOCKET_HOOK int MPI_File_##symbol(P(C, D), void* request) {          \
    FILE_CALL(symbol, narrow);                                         \
    BEGIN(kind, pointer, offset, hocket::kEventAsync);                 \
    return call.follow(call(HOCKET_MPI_LIST A, request), request);     \
  }
#define SPLIT(symbol, narrow, C, D, P, A, kind, pointer, offset) \
  HOCKET_HOOK int MPI_File_##symbol(P(C, D)) {                   \
    FILE_CALL(symbol, narrow);                                   \
    BEGIN(kind, pointer, offset, hocket::kEventAsync);           \
    return call.keep_begun(call(HOCKET_MPI_LIST A), file);       \
  }
#define SPLIT_END(symbol)                                                      \
  HOCKET_HOOK int MPI_File_##symbol(Handle file, void* buffer, void* status) { \
    FILE_CALL(symbol, nullptr);                                                \
    StatusOf status_of(call, status);                                          \
    const int code = call(file, buffer, status_of.used());                     \
    return call.end_begun(code, file, status_of.used());                       \
  }
#define SIZED(form, symbol, P, A, kind, pointer, offset)                                                          \
  form(symbol, nullptr, int, int, P, A, kind, pointer, offset);                                                   \
  form(symbol##_c, "PMPI_File_" #symbol, hocket::hooks::LargeCount, hocket::hooks::LargeDisplacement, P, A, kind, \
       pointer, offset)

#define HERE(C, D) Handle file, void *buffer, C count, Handle type
#define OF_HERE (file, buffer, count, type)
#define AT(C, D) Handle file, int64_t offset, void *buffer, C count, Handle type
#define OF_AT (file, offset, buffer, count, type)
#define ALL_OF(kind)                                                   \
  SIZED(BLOCKING, kind, HERE, OF_HERE, kind, own, 0)                   \
  SIZED(BLOCKING, kind##_all, HERE, OF_HERE, kind, own, 0)             \
  SIZED(BLOCKING, kind##_shared, HERE, OF_HERE, kind, shared, 0)       \
  SIZED(BLOCKING, kind##_ordered, HERE, OF_HERE, kind, shared, 0)      \
  SIZED(BLOCKING, kind##_at, AT, OF_AT, kind, given, offset)           \
  SIZED(BLOCKING, kind##_at_all, AT, OF_AT, kind, given, offset)       \
  SIZED(NONBLOCKING, i##kind, HERE, OF_HERE, kind, own, 0)             \
  SIZED(NONBLOCKING, i##kind##_all, HERE, OF_HERE, kind, own, 0)       \
  SIZED(NONBLOCKING, i##kind##_shared, HERE, OF_HERE, kind, shared, 0) \
  SIZED(NONBLOCKING, i##kind##_at, AT, OF_AT, kind, given, offset)     \
  SIZED(NONBLOCKING, i##kind##_at_all, AT, OF_AT, kind, given, offset) \
  SIZED(SPLIT, kind##_all_begin, HERE, OF_HERE, kind, own, 0)          \
  SIZED(SPLIT, kind##_ordered_begin, HERE, OF_HERE, kind, shared, 0)   \
  SIZED(SPLIT, kind##_at_all_begin, AT, OF_AT, kind, given, offset)    \
  SPLIT_END(kind##_all_end)                                            \
  SPLIT_END(kind##_ordered_end)                                        \
  SPLIT_END(kind##_at_all_end)
// `read` and `write` are also functions of the C library, but no macros.
ALL_OF(read)
ALL_OF(write)

HOCKET_HOOK int MPI_File_open(Handle comm, const char* name, int mode, Handle info, void* file) {
  FILE_CALL(open, nullptr);
  if (call.is_recorded()) call.begin(IoKind::open, 0, hocket::kUnknownOffset, 0);
  const int code = call(comm, name, mode, info, file);
  if (call.is_recorded() && code == 0) {
    files().open(call.mpi().handle_at(file, 0), name);
    call.name_opened(call.mpi().handle_at(file, 0));
  }
  return call.end(code, nullptr);
}

HOCKET_HOOK int MPI_File_close(void* file) {
  FILE_CALL(close, nullptr);
  if (call.is_recorded()) {
    const Handle handle = call.mpi().handle_at(file, 0);
    call.begin(IoKind::close, handle, hocket::kUnknownOffset, 0);
    files().close(handle);
  }
  return call.end(call(file), nullptr);
}

HOCKET_HOOK int MPI_File_sync(Handle file) {
  FILE_CALL(sync, nullptr);
  if (call.is_recorded()) call.begin(IoKind::sync, file, hocket::kUnknownOffset, 0);
  return call.end(call(file), nullptr);
}
