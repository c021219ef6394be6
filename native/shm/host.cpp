#include "shm/host.hpp"

#include <poll.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>

#include "core/clock.hpp"
#include "core/units.hpp"

namespace hocket {

namespace {
constexpr int kNumRanges = 4096;
constexpr int kMaxRanks = 4096;
}  // namespace

// key: 0 = free, 1 = being made, else published (release) after offset and nbytes. A free entry keeps its offset and
// nbytes, for the next range of that size.
struct Host::RangeEntry {
  std::atomic<uint64_t> key;
  uint64_t offset;
  std::atomic<uint64_t> nbytes;
  std::atomic<int32_t> members_left;
};

struct Host::Header {
  std::atomic<uint64_t> next_offset;
  std::atomic<int32_t> num_ranges;  // entries ever used; may exceed kNumRanges for a moment in claim_entry()
  std::atomic<uint8_t> finalized[kMaxRanks];
  RangeEntry ranges[kNumRanges];
};

Host::Host(int rank_, int size_, Rendezvous rendezvous)
    : rank(rank_), size(size_), rendezvous_(std::move(rendezvous)), lives_(static_cast<size_t>(size_)) {
  struct stat status{};
  if (fstat(segment(), &status) != 0)
    throw Failure(ErrorCode::resource_exhausted,
                  std::string("cannot get the size of the shared segment: ") + strerror(errno));
  segment_bytes_ = static_cast<uint64_t>(status.st_size);
  const uint64_t nbytes = round_up(sizeof(Header), kPageBytes);
  // Fresh pages of a memfd are zero, which is the initial state of every field.
  allocate_pages(segment(), 0, nbytes);
  mapping_ = Mapping(segment(), 0, nbytes);
}

Host::~Host() = default;

uint64_t segment_bytes() {
  rlimit limit{};
  if (getrlimit(RLIMIT_FSIZE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return kMostSegmentBytes;
  const uint64_t nbytes = std::min<uint64_t>(kMostSegmentBytes, limit.rlim_cur / kHugePageBytes * kHugePageBytes);
  if (nbytes < kLeastSegmentBytes)
    throw Failure(ErrorCode::resource_exhausted,
                  "the limit of file sizes, " + std::to_string(limit.rlim_cur) +
                      " bytes (ulimit -f), applies to shared memory too, which needs at least " +
                      std::to_string(kLeastSegmentBytes) + " bytes: raise it (ulimit -f unlimited)");
  return nbytes;
}

std::shared_ptr<Host> Host::connect(const std::string& name, int rank, int size, double timeout_s, WaitHooks& hooks) {
  if (size > kMaxRanks)
    throw Failure(ErrorCode::invalid_argument,
                  "at most " + std::to_string(kMaxRanks) + " ranks on one host, not " + std::to_string(size));
  return std::make_shared<Host>(rank, size, run_rendezvous(name, rank, size, timeout_s, hooks));
}

int Host::num_ranges() const { return std::min(header().num_ranges.load(std::memory_order_acquire), kNumRanges); }

Host::RangeEntry* Host::find_entry(uint64_t key) const {
  for (int i = 0; i < num_ranges(); ++i)
    if (RangeEntry& entry = header().ranges[i]; entry.key.load(std::memory_order_acquire) == key) return &entry;
  return nullptr;
}

Host::RangeEntry* Host::claim_entry(uint64_t nbytes) {
  const auto claims = [](RangeEntry& entry) {
    uint64_t free = 0;
    return entry.key.compare_exchange_strong(free, 1, std::memory_order_acq_rel);
  };
  for (int i = 0; i < num_ranges(); ++i) {
    RangeEntry& entry = header().ranges[i];
    if (entry.key.load(std::memory_order_relaxed) || entry.nbytes.load(std::memory_order_relaxed) != nbytes) continue;
    if (!claims(entry)) continue;
    if (entry.nbytes.load(std::memory_order_relaxed) == nbytes) return &entry;
    entry.key.store(0, std::memory_order_release);  // it was used for another size meanwhile
  }
  const int fresh = header().num_ranges.fetch_add(1, std::memory_order_acq_rel);
  if (fresh < kNumRanges && claims(header().ranges[fresh])) return &header().ranges[fresh];
  if (fresh >= kNumRanges) header().num_ranges.fetch_sub(1, std::memory_order_acq_rel);
  for (RangeEntry& entry : header().ranges)
    if (claims(entry)) return &entry;
  throw Failure(ErrorCode::resource_exhausted,
                "more than " + std::to_string(kNumRanges) +
                    " communicators are in use on this host: finalize communicators that are not needed");
}

Host::Range Host::make_range(uint64_t key, uint64_t nbytes, uint64_t nbytes_allocated, int num_members) {
  nbytes = round_up(nbytes, kPageBytes);
  RangeEntry& entry = *claim_entry(nbytes);
  try {
    if (entry.nbytes.load(std::memory_order_relaxed) != nbytes)
      entry.offset =
          round_up(sizeof(Header), kPageBytes) + header().next_offset.fetch_add(nbytes, std::memory_order_relaxed);
    entry.nbytes.store(0, std::memory_order_relaxed);  // until the checks below have passed
    if (entry.offset + nbytes > heap_begin(segment_bytes_))
      throw Failure(ErrorCode::resource_exhausted,
                    "cannot reserve " + std::to_string(nbytes) +
                        " bytes for a communicator: the job's shared segment of " + std::to_string(segment_bytes_) +
                        " bytes is full; " +
                        (segment_bytes_ < kMostSegmentBytes ? "raise the limit of file sizes (ulimit -f unlimited)"
                                                            : "finalize communicators that are not needed"));
    allocate_pages(segment(), entry.offset, nbytes_allocated);
  } catch (...) {
    entry.key.store(0, std::memory_order_release);
    throw;
  }
  entry.nbytes.store(nbytes, std::memory_order_relaxed);
  entry.members_left.store(num_members, std::memory_order_relaxed);
  entry.key.store(key, std::memory_order_release);
  return {entry.offset, nbytes};
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
  const uint64_t begin = heap_begin(segment_bytes_);
  if (!heap_) heap_ = std::make_shared<Heap>(segment(), rank, size, begin, segment_bytes_ - begin);
  return heap_;
}

void Host::set_finalized() {
  header().finalized[rank].store(1, std::memory_order_release);
  for (int peer = 0; peer < size; ++peer)
    if (peer != rank) ring(doorbell(peer));
}

void Host::check_peers() {
  const int64_t now = now_ns();
  if (now - checked_ns_ < 5'000'000) return;
  checked_ns_ = now;
  std::vector<pollfd> polls;
  for (const Peer& peer : rendezvous_.peers) polls.push_back({peer.pidfd.get(), POLLIN, 0});  // -1 is skipped by poll
  const bool any = poll(polls.data(), polls.size(), 0) > 0;
  for (int peer = 0; peer < size; ++peer) {
    std::atomic<Life>& life = lives_[static_cast<size_t>(peer)];
    if (peer == rank || life == Life::dead) continue;
    // A rank sets its finalized flag before its process ends, so the flag is read after poll().
    if (header().finalized[peer].load(std::memory_order_acquire))
      life = Life::finalized;
    else if (any && polls[static_cast<size_t>(peer)].revents)
      life = Life::dead;
  }
}

}  // namespace hocket
