// The memory of a recorder: one process writes it, and any other may read it at any moment, also when the writer hangs,
// is stopped or was killed. src/hocket/trace/region.py reads it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace hocket {

// Raise it when the meaning of a byte changes: readers refuse a higher number than they know.
inline constexpr uint32_t kRecorderSchema = 1;
inline constexpr uint64_t kRecorderMagic = 0x31524345524b4348;  // "HCKRECR1"

enum class EventState : uint8_t { issued, started, waited, completed, failed };

enum class Layer : uint8_t { communication, transfer, program, io, process, dask };

// Every ring has its own writers, and many events in one never overwrite the few in another. Only operations have a
// single writer at a time, the holder of the progress lock, which saves it three locked instructions an event.
enum class RingId : uint8_t { operations, foreign, transfers, program, io, process, dask };
inline constexpr std::array kRingNames = {"operations", "foreign", "transfers", "program", "io", "process", "dask"};
inline constexpr size_t kNumRings = kRingNames.size();
inline constexpr std::array<uint64_t, kNumRings> kRingCapacities = {8192, 8192, 8192, 8192, 16384, 4096, 8192};
// Headers of later rings lie behind all else: what earlier versions have written has zeros there, and is still read.
inline constexpr size_t kNumFirstRings = 6;

// Operations are never sampled: the one that hangs must be in its ring. Counters of a process come at a bounded rate,
// and the last value of each counts.
inline constexpr std::array<bool, kNumRings> kMayBeSampled = {false, false, true, true, true, false, true};

// Kinds of events by ring. Those of operations are OpKind; foreign libraries have more of them.
inline constexpr size_t kFirstForeignKind = 64;
enum class ForeignKind : uint8_t {
  exscan = kFirstForeignKind,
  neighbor_all_gather,
  neighbor_all_to_all,
  put,
  get,
  accumulate,
  get_accumulate,
  other,
};
inline constexpr std::array kForeignNames = {
    "exscan", "neighbor_all_gather", "neighbor_all_to_all", "put", "get", "accumulate", "get_accumulate", "other",
};
enum class ProgramKind : uint8_t { region, mark, counter };
inline constexpr std::array kProgramNames = {"region", "mark", "counter"};
// `map` is a file mapped into memory: what is read or written through it is no call.
enum class IoKind : uint8_t { open, close, read, write, copy, sync, map, submit };
inline constexpr std::array kIoNames = {"open", "close", "read", "write", "copy", "sync", "map", "submit"};
// Through which interface; the `backend` of an event of I/O.
// Calls of the last two contain calls of the others, which may be recorded, too: totals of bytes take one or the other.
enum class IoRoute : uint8_t { posix, vectored, stdio, mpi, fsspec };
inline constexpr std::array kIoRouteNames = {"posix", "vectored", "stdio", "mpi", "fsspec"};
// A copy from file to file is two events, whose `algorithm` says which end `comm` is.
enum class CopySide : uint16_t { source, target };
// `algorithm` of a call of fsspec on a local file: hooks see the same bytes once more.
inline constexpr uint16_t kLocalFile = 2;
inline constexpr uint64_t kUnknownOffset = ~0ull;
// What carries an operation out. Steps of a schedule: messages, and work on this rank's memory, which has no peer.
// `part`: what one of two libraries carries.
enum class TransferKind : uint8_t { send, receive, copy, reduce, part };
inline constexpr std::array kTransferNames = {"send", "receive", "copy", "reduce", "part"};
// `sampling`: a ring records more or fewer of its events from now on. `control`: a message to or from the server of the
// job's control connections, or a wait for one.
enum class ProcessKind : uint8_t { counter, sampling, control };
inline constexpr std::array kProcessNames = {"counter", "sampling", "control"};
// Messages over the connections of Dask. A send lasts as long as the writer was in it, a receive from when the message
// was here as a whole until its reader took it.
enum class DaskKind : uint8_t { send, receive };
inline constexpr std::array kDaskNames = {"send", "receive"};
// How large frames of a connection travel; the `backend` of an event of Dask.
inline constexpr std::array kDaskPathNames = {"memory", "process", "tcp", "mpi", "ucx"};

inline constexpr uint8_t kEventAsync = 1;
inline constexpr uint8_t kEventNamed = 2;    // Operation.is_named
inline constexpr uint8_t kEventInPlace = 4;  // Operation.is_in_place
// Of another library, which did not report the completion: t_end is when it was first known to have completed.
inline constexpr uint8_t kEventEndUnknown = 8;

// The version is odd while the event is first written. What follows in the ring of operations are single stores: first
// what the state vouches for (t_end, aux, flags), then the state. So a reader that reads the state first never takes
// half a change for a whole one.
struct Event {
  uint64_t t_begin;  // raw ticks, or nanoseconds of a virtual clock
  uint64_t t_end;
  uint64_t nbytes;
  // Tag of a point-to-point operation; with a schedule: bytes that this rank sent; of I/O: offset in the file, or
  // kUnknownOffset; of a collective of torch: ticks when it was started, after it was issued; of a region: the user's
  // step; of a counter: bits of its double; of a transfer: number of the step in the rank's program; of a part: 0 or
  // 1, the first or the second library; of a change of sampling: the new sampling_log2; of a message of Dask that is
  // sent: bytes of earlier ones that waited for the peer.
  uint64_t aux;
  uint32_t seq;         // modulo 2^32; of a transfer: of its operation; of a counter with several elements: which one
  uint32_t comm;        // id of the definition of its communicator; of its file, region, counter or connection in other
                        // rings; of a change of sampling: the ring's RingId
  int32_t peer;         // rank; -1 for a collective without root; of failed I/O: errno, else 0; of a message of Dask:
                        // the other process, if it is on this host, else -1
  uint32_t blocked_ns;  // time that callers waited for an asynchronous operation, at most 4.29 s
  uint16_t thread;      // id of its thread's definition
  uint16_t algorithm;   // number of the program; 0: the library's own algorithm
  uint8_t kind;
  uint8_t backend;
  uint8_t dtype;
  uint8_t reduce;
  EventState state;
  uint8_t flags;
  Layer layer;
  uint8_t weight_log2;  // it stands for 2^weight_log2 events
  uint32_t version;     // 2 * (lap of the ring, from 1), plus 1 while it is written; 0: never written
};
static_assert(sizeof(Event) == 64);

inline constexpr size_t kLineNbytes = 64;

// Invariant at rest: issued == recorded + sampled_out + dropped.
struct alignas(kLineNbytes) RingHeader {
  uint64_t offset;         // of the first event, from the start of the region
  uint64_t capacity;       // events; a power of two
  uint64_t sampling_log2;  // one of 2^sampling_log2 events is recorded
  uint64_t cost_ticks;     // estimate of the time spent on recording
  uint64_t most_cost_ppm;  // of the time that passes; above it fewer events are recorded. 0: all events are recorded
  uint64_t window_begin;   // ticks: when the present sampling began to be judged,
  uint64_t window_cost;    // and the cost by then
  uint64_t unused;
  // Written with every event: a line of its own.
  uint64_t next;  // index of the next event; the ring has the latest `capacity` of them
  uint64_t issued;
  uint64_t recorded;
  uint64_t sampled_out;
  uint64_t dropped;  // another writer was inside the slot
  uint64_t unused_too[3];
};
static_assert(sizeof(RingHeader) == 2 * kLineNbytes);

struct RecorderAnchor {  // two clocks and the calendar at one moment
  uint64_t ticks;
  int64_t monotonic_ns;
  int64_t realtime_ns;
};

inline constexpr size_t kTimeBins = 40;
inline constexpr int kFirstTimeBin = 4;  // bin b counts times from 2^(b+4) ticks to less than twice that; ends are open

// Exact totals of one kind of operation. The version is odd while they change.
struct Histogram {
  uint32_t version;
  uint32_t comm;
  int32_t peer;
  uint16_t algorithm;
  uint8_t kind;
  uint8_t backend;
  Layer layer;
  uint8_t size_class;  // 0: no bytes; n: 2^(n-1) to 2^n - 1 bytes; kAnySize
  uint8_t is_used;
  uint8_t unused[5];
  uint64_t count;   // completed and failed ones
  uint64_t failed;  // of these
  uint64_t nbytes;
  uint64_t ticks;  // from begin to end
  uint64_t least_ticks;
  uint64_t most_ticks;
  std::array<uint64_t, kTimeBins> bins;
  uint64_t reserved;
};
static_assert(sizeof(Histogram) == 400);
// Transfers of all sizes and algorithms; of one peer, or with peer -1 of all of them.
inline constexpr uint8_t kAnySize = 0xff;
inline constexpr uint64_t kNumHistograms = 1024;  // of each table; the last one counts what finds no room

// One table has the holder of the progress lock, for operations and transfers, the other one all other writers.
struct alignas(kLineNbytes) HistogramTable {
  uint64_t offset;
  uint64_t capacity;  // a power of two
  uint64_t used;
  uint64_t overflowed;  // operations counted in the last histogram because the table was full
};
inline constexpr size_t kNumTables = 2;

// `members` of communicator `id`: their ranks in the job, such as "0-3,7"; -1 for members of another job. Between two
// groups: of the other group, whose ranks `peer` means. `variable` is "NAME=VALUE" of the environment that the process
// began with: a process may have ended before anybody could read it. `policy` of communicator `id` is JSON: what
// chooses its libraries.
enum class DefinitionKind : uint16_t {
  communicator,
  backend,
  algorithm,
  thread,
  region,
  file,
  counter,
  members,
  variable,
  policy,
  connection
};

// Followed by `nbytes` bytes of UTF-8, padded to a multiple of 8.
struct DefinitionHeader {
  uint32_t nbytes;
  uint16_t kind;    // DefinitionKind
  uint16_t number;  // of a backend or an algorithm, in the communicator `id`
  uint32_t id;
  int32_t extra;  // of a communicator: this process's rank; of a thread: its id in the kernel
};
static_assert(sizeof(DefinitionHeader) == 16);
// The place of a process in a job of Slurm or PBS, and what launchers set to the same values on all ranks of a job.
inline constexpr std::array kRecordedVariables = {
    "SLURM_JOB_ID",        "SLURM_STEP_ID",
    "SLURM_PROCID",        "SLURM_STEP_NUM_TASKS",
    "SLURM_NTASKS",        "SLURM_JOB_NODELIST",
    "SLURM_NODELIST",      "PBS_JOBID",
    "PBS_NODEFILE",        "HOCKET_JOB",
    "MASTER_ADDR",         "MASTER_PORT",
    "TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT",
    "PMIX_NAMESPACE",      "OMPI_MCA_ess_base_jobid",
};
inline constexpr uint64_t kDefinitionsNbytes = 512 << 10;

struct IoBytes {
  uint64_t read;
  uint64_t written;
};

enum class IoCounting : uint32_t { none, running, ended, unreadable };

// How much of what the kernel has counted for this process (/proc/PID/io: rchar and wchar) went through the hooks:
//   seen = bytes of events of files - uncounted + other,   of   at_end - at_begin - excluded.
struct alignas(kLineNbytes) IoTotals {
  IoCounting state;
  uint32_t error;     // errno, if the kernel's counters cannot be read
  IoBytes at_begin;   // the kernel's counters when the hooks began,
  IoBytes at_end;     // and when they ended: at stop, exit or exec()
  IoBytes other;      // of hooked calls on pipes, sockets, terminals and files of the kernel, which record no event
  IoBytes excluded;   // in the kernel's counters, but not this program's: of children that it waited for, and our own
  IoBytes uncounted;  // in the events, but not in the kernel's counters: splice()
  uint64_t unused[4];
};
static_assert(sizeof(IoTotals) == 2 * kLineNbytes);

// What the kernel said of a process at its normal end: a short one has ended before anybody else could ask. -1:
// unknown.
struct EndStatus {
  int64_t monotonic_ns;  // when; 0: nothing was written
  int64_t cpu_ns;
  int64_t num_threads;
  int64_t resident_nbytes;
  int64_t minor_faults;
  int64_t major_faults;
  int64_t voluntary_switches;  // of the main thread
  int64_t forced_switches;
  int64_t read_nbytes;
  int64_t written_nbytes;
  int64_t device_read_nbytes;
  int64_t device_written_nbytes;
  int64_t cpu_wait_ns;  // that the main thread could have run, but waited for a CPU
};

struct RegionHeader {
  uint64_t magic;  // written last
  uint32_t schema;
  uint32_t header_nbytes;
  uint64_t region_nbytes;
  uint32_t event_nbytes;
  uint32_t num_rings;
  uint32_t histogram_nbytes;
  uint32_t num_tables;
  uint64_t owner_started;  // field 22 of /proc/PID/stat, because numbers of processes are given away again
  uint64_t owner_image;    // random; another one after exec()
  uint32_t owner_pid;
  uint32_t ticks_are_tsc;  // 0: ticks are nanoseconds of CLOCK_MONOTONIC
  std::array<char, 40> boot_id;
  int32_t rank;  // in its job; -1: unknown
  int32_t world_size;
  uint32_t has_ended;      // normally
  uint32_t pid_namespace;  // in which owner_pid is its number: inode of /proc/self/ns/pid
  std::array<char, 64> host;
  std::array<char, 192> program;
  RecorderAnchor anchor;  // when the recorder began
  alignas(kLineNbytes) uint64_t definitions_offset;
  uint64_t definitions_capacity;
  uint64_t definitions_nbytes;   // in use
  uint64_t definitions_dropped;  // found no room
  std::array<HistogramTable, kNumTables> tables;
  std::array<RingHeader, kNumFirstRings> rings;
  EndStatus end_status;
  IoTotals io;
  std::array<RingHeader, kNumRings - kNumFirstRings> later_rings;

  RingHeader& ring(RingId id) {
    const auto number = static_cast<size_t>(id);
    return number < kNumFirstRings ? rings[number] : later_rings[number - kNumFirstRings];
  }
};
inline constexpr size_t kHeaderNbytes = 4096;
static_assert(sizeof(RegionHeader) <= kHeaderNbytes);
// Readers have these numbers, too.
static_assert(offsetof(RegionHeader, anchor) == 376 && offsetof(RegionHeader, definitions_offset) == 448);
static_assert(offsetof(RegionHeader, tables) == 512 && offsetof(RegionHeader, rings) == 640);
static_assert(offsetof(RegionHeader, end_status) == 1408 && sizeof(EndStatus) == 104);
static_assert(offsetof(RegionHeader, io) == 1536 && offsetof(RegionHeader, later_rings) == 1664);

constexpr uint64_t recorder_nbytes() {
  uint64_t nbytes = kHeaderNbytes + kDefinitionsNbytes + kNumTables * kNumHistograms * sizeof(Histogram);
  for (const uint64_t capacity : kRingCapacities) nbytes += capacity * sizeof(Event);
  return nbytes;
}
static_assert(recorder_nbytes() <= 8 << 20);

}  // namespace hocket
