#include "shm/host.hpp"

#include <poll.h>

#include <new>

#include "core/clock.hpp"
#include "core/units.hpp"

namespace hocket {

namespace {
constexpr int kNumRanges = 4096;
constexpr int kMaxRanks = 4096;
}  // namespace

// key: 0 = free, 1 = being made, else published (release) after offset and nbytes.
struct Host::RangeEntry {
  std::atomic<uint64_t> key;
  uint64_t offset;
  uint64_t nbytes;
  std::atomic<int32_t> members_left;
};

struct Host::Header {
  std::atomic<uint64_t> next_offset;
  std::atomic<uint8_t> finalized[kMaxRanks];
  RangeEntry ranges[kNumRanges];
};

Host::Host(int rank_, int size_, Meeting meeting)
    : rank(rank_), size(size_), meeting_(std::move(meeting)), lives_(static_cast<size_t>(size_)) {
  const uint64_t nbytes = round_up(sizeof(Header), kPageBytes);
  // Fresh pages of a memfd are zero, which is the initial state of every field.
  allocate_pages(segment(), 0, nbytes);
  mapping_ = Mapping(segment(), 0, nbytes);
}

Host::~Host() = default;

std::shared_ptr<Host> Host::connect(const std::string& name, int rank, int size, double timeout_s, WaitHooks& hooks) {
  if (size > kMaxRanks)
    throw Failure(ErrorCode::invalid_argument,
                  "at most " + std::to_string(kMaxRanks) + " ranks on one host, not " + std::to_string(size));
  return std::make_shared<Host>(rank, size, meet(name, rank, size, timeout_s, hooks));
}

Host::RangeEntry* Host::find_entry(uint64_t key) const {
  for (RangeEntry& entry : header().ranges)
    if (entry.key.load(std::memory_order_acquire) == key) return &entry;
  return nullptr;
}

Host::Range Host::make_range(uint64_t key, uint64_t nbytes, uint64_t nbytes_allocated, int num_members) {
  for (RangeEntry& entry : header().ranges) {
    uint64_t free = 0;
    if (!entry.key.compare_exchange_strong(free, 1, std::memory_order_acq_rel)) continue;
    nbytes = round_up(nbytes, kPageBytes);
    entry.offset =
        round_up(sizeof(Header), kPageBytes) + header().next_offset.fetch_add(nbytes, std::memory_order_relaxed);
    entry.nbytes = nbytes;
    entry.members_left.store(num_members, std::memory_order_relaxed);
    try {
      if (entry.offset + nbytes > kHeapBegin)
        throw Failure(ErrorCode::resource_exhausted, "the job's shared segment has no address space left");
      allocate_pages(segment(), entry.offset, nbytes_allocated);
    } catch (...) {
      entry.key.store(0, std::memory_order_release);
      throw;
    }
    entry.key.store(key, std::memory_order_release);
    return {entry.offset, entry.nbytes};
  }
  throw Failure(ErrorCode::resource_exhausted,
                "more than " + std::to_string(kNumRanges) + " communicators are alive; finalize those not needed");
}

std::optional<Host::Range> Host::find_range(uint64_t key) const {
  const RangeEntry* entry = find_entry(key);
  if (!entry) return std::nullopt;
  return Range{entry->offset, entry->nbytes};
}

void Host::leave_range(uint64_t key) {
  RangeEntry* entry = find_entry(key);
  if (!entry || entry->members_left.fetch_sub(1, std::memory_order_acq_rel) > 1) return;
  release_pages(segment(), entry->offset, entry->nbytes);
  entry->key.store(0, std::memory_order_release);
}

const std::shared_ptr<Heap>& Host::heap() {
  if (!heap_) heap_ = std::make_shared<Heap>(segment(), rank, size, kHeapBytes);
  return heap_;
}

void Host::set_finalized() {
  header().finalized[rank].store(1, std::memory_order_release);
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) ring(bell(peer));
}

void Host::look_at_peers() {
  const int64_t now = now_ns();
  if (now - looked_ns_ < 5'000'000) return;
  looked_ns_ = now;
  std::vector<pollfd> polls;
  for (const Peer& peer : meeting_.peers) polls.push_back({peer.pidfd.get(), POLLIN, 0});  // -1 is skipped by poll
  const bool any = poll(polls.data(), polls.size(), 0) > 0;
  for (int peer = 0; peer < size; ++peer) {
    std::atomic<Life>& life = lives_[static_cast<size_t>(peer)];
    if (peer == rank || life == Life::dead) continue;
    // A clean exit marks itself before the process ends, so the mark is read after the descriptor fired.
    if (header().finalized[peer].load(std::memory_order_acquire))
      life = Life::finalized;
    else if (any && polls[static_cast<size_t>(peer)].revents)
      life = Life::dead;
  }
}

}  // namespace hocket
