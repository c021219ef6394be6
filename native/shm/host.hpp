// The ranks of a job that share a host: their rendezvous, their shared memory, and which of them are alive.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "core/doorbell.hpp"
#include "core/engine.hpp"
#include "core/error.hpp"
#include "core/units.hpp"
#include "shm/heap.hpp"
#include "shm/opened_memory.hpp"
#include "shm/segment.hpp"

namespace hocket {

// Result of the rendezvous for a rank: one segment, and for every rank its doorbell and a descriptor of its process.
struct Peer {
  Fd pidfd;  // readable once the process has ended; empty for this rank itself
  Mapping doorbell;
  int32_t pid = 0;
};
struct Rendezvous {
  Fd segment;
  std::vector<Peer> peers;
  int num_cpus = 0;  // processors that at least one of the ranks may run on
};

// Connects ranks 0..size-1 of this host by the abstract unix socket `name`; rank 0 leads. Drives the engine meanwhile.
// Throws CommTimeout with the ranks that did not arrive, BootstrapMismatch, ResourceExhausted.
Rendezvous run_rendezvous(const std::string& name, int rank, int size, double timeout_s, WaitHooks& hooks);

// Address space of a job's segment; its second half is for user arrays (heap.hpp). Pages are allocated when needed. The
// size is kMostSegmentBytes, or the file size limit (`ulimit -f`) of the rank that makes the segment if that is
// smaller: the kernel applies this limit to shared memory too.
inline constexpr uint64_t kMostSegmentBytes = 1ull << 42;
inline constexpr uint64_t kLeastSegmentBytes = 256ull << 20;
uint64_t segment_bytes();  // throws ResourceExhausted
constexpr uint64_t heap_begin(uint64_t segment_bytes) { return segment_bytes / 2 / kHugePageBytes * kHugePageBytes; }

class Host {
 public:
  static std::shared_ptr<Host> connect(const std::string& name, int rank, int size, double timeout_s, WaitHooks& hooks);
  Host(int rank, int size, Rendezvous rendezvous);

  const int rank;
  const int size;
  int segment() const { return rendezvous_.segment.get(); }
  DoorbellPage& doorbell(int peer) const {
    return *reinterpret_cast<DoorbellPage*>(rendezvous_.peers[peer].doorbell.data());
  }
  int num_cpus() const { return rendezvous_.num_cpus; }
  int pid(int peer) const { return rendezvous_.peers[peer].pid; }

  // A range of the segment that the members of a group find by a key. The first member makes it, the others poll. Its
  // first `nbytes_allocated` bytes have pages before another member can find it. Throws ResourceExhausted.
  struct Range {
    uint64_t offset;
    uint64_t nbytes;
  };
  // May reuse the place of a released range.
  Range make_range(uint64_t key, uint64_t nbytes, uint64_t nbytes_allocated, int num_members);
  std::optional<Range> find_range(uint64_t key) const;
  // Leaves a range; the last member releases its pages.
  void leave_range(uint64_t key);

  // The memory of user arrays that all ranks of the host can read; mapped at the first call. Call under the progress
  // lock. Throws ResourceExhausted.
  const std::shared_ptr<Heap>& heap();
  bool has_heap() const { return heap_ != nullptr; }

  OpenedMemory& opened_memory() { return opened_memory_; }

  // Marks this rank as finalized: it takes part in no further operation.
  void set_finalized();
  enum class Life : uint8_t { alive, finalized, dead };
  Life life(int peer) const { return lives_[peer].load(std::memory_order_relaxed); }
  // Reads from the kernel which peers are alive, at most every few milliseconds. Call under the progress lock.
  void check_peers();

  ~Host();

 private:
  struct Header;
  struct RangeEntry;
  Header& header() const { return *reinterpret_cast<Header*>(mapping_.data()); }
  int num_ranges() const;
  RangeEntry* find_entry(uint64_t key) const;
  RangeEntry* claim_entry(uint64_t nbytes);

  Rendezvous rendezvous_;
  uint64_t segment_bytes_ = 0;
  Mapping mapping_;
  std::shared_ptr<Heap> heap_;
  OpenedMemory opened_memory_;
  std::vector<std::atomic<Life>> lives_;  // written under the progress lock, read anywhere
  int64_t checked_ns_ = 0;
};

}  // namespace hocket
