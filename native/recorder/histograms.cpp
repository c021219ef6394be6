#include "recorder/histograms.hpp"

namespace hocket {

uint64_t hash_of(const HistogramKey& key) {
  const uint64_t low = key.comm | static_cast<uint64_t>(static_cast<uint32_t>(key.peer)) << 32;
  const uint64_t high = key.algorithm | static_cast<uint64_t>(key.kind) << 16 |
                        static_cast<uint64_t>(key.backend) << 24 | static_cast<uint64_t>(key.layer) << 32 |
                        static_cast<uint64_t>(key.size_class) << 40;
  uint64_t hash = low * 0x9E3779B97F4A7C15ull ^ high;
  hash = (hash ^ (hash >> 32)) * 0xD6E8FEB86659FD93ull;
  return hash >> 32;
}

namespace {

void set_key(Histogram& entry, const HistogramKey& key) {
  entry.comm = key.comm;
  entry.peer = key.peer;
  entry.algorithm = key.algorithm;
  entry.kind = key.kind;
  entry.backend = key.backend;
  entry.layer = key.layer;
  entry.size_class = key.size_class;
  entry.least_ticks = UINT64_MAX;
}

void increase(uint64_t& counter, uint64_t by) { std::atomic_ref(counter).fetch_add(by, std::memory_order_relaxed); }

constexpr uint8_t kUsed = 1;
constexpr uint8_t kBeingMade = 2;  // its key is not written yet

}  // namespace

Histogram* SerialHistograms::find(const HistogramKey& key, uint64_t most_used) {
  const uint64_t hash = hash_of(key);
  const Histogram& last = entries_[table_->capacity - 1];
  for (uint64_t probe = 0; probe < kMostProbes; ++probe) {
    Histogram& entry = entries_[(hash + probe) & (table_->capacity - 1)];
    if (&entry == &last) continue;
    if (entry.is_used && is_of(entry, key)) return last_ = &entry;
    if (entry.is_used) continue;
    if (table_->used >= most_used) return nullptr;
    set_key(entry, key);
    std::atomic_ref(entry.is_used).store(kUsed, std::memory_order_release);
    ++table_->used;
    return last_ = &entry;
  }
  return nullptr;
}

Histogram& SerialHistograms::find(const HistogramKey& key) {
  if (Histogram* entry = find(key, table_->capacity)) return *entry;
  Histogram& last = entries_[table_->capacity - 1];
  ++table_->overflowed;
  if (!last.is_used) last.least_ticks = UINT64_MAX;
  last.is_used = kUsed;
  return last;
}

Histogram& SerialHistograms::find_for_transfer(const HistogramKey& key) {
  if (Histogram* entry = find(key, table_->capacity / 2)) return *entry;
  HistogramKey of_peer = key;
  of_peer.algorithm = 0;
  of_peer.size_class = kAnySize;
  if (Histogram* entry = find(of_peer, table_->capacity / 4 * 3)) return *entry;
  of_peer.peer = -1;
  return find(of_peer);
}

// Null: the table has no room for a new key.
Histogram* SharedHistograms::find(const HistogramKey& key, uint64_t most_used, uint64_t most_probes) {
  const uint64_t hash = hash_of(key);
  const uint64_t mask = table_->capacity - 1;
  for (uint64_t probe = 0; probe < most_probes; ++probe) {
    Histogram& entry = entries_[(hash + probe) & mask];
    if (&entry == &entries_[mask]) continue;
    std::atomic_ref is_used(entry.is_used);
    uint8_t found = is_used.load(std::memory_order_acquire);
    if (found == 0) {
      if (std::atomic_ref(table_->used).load(std::memory_order_relaxed) >= most_used) return nullptr;
      // A writer that another one forestalls here goes on to the next entry, also if it is the same key: it cannot wait
      // for what may be the thread that it interrupts.
      if (!is_used.compare_exchange_strong(found, kBeingMade, std::memory_order_acquire, std::memory_order_acquire))
        if (found == kBeingMade) continue;
      if (found == 0) {
        set_key(entry, key);
        is_used.store(kUsed, std::memory_order_release);
        increase(table_->used, 1);
        return &entry;
      }
    }
    if (found == kUsed && is_of(entry, key)) return &entry;
  }
  return nullptr;
}

void SharedHistograms::add(const HistogramKey& key, uint32_t rest_comm, uint64_t ticks, uint64_t nbytes,
                           bool has_failed) {
  if (!table_) return;
  const uint64_t capacity = table_->capacity;
  Histogram* entry = find(key, capacity / 4 * 3, kMostProbes);
  if (!entry) {
    HistogramKey rest = key;
    rest.comm = rest_comm;
    entry = find(rest, capacity, capacity);  // there are few such keys
  }
  if (!entry) {
    entry = &entries_[capacity - 1];
    increase(table_->overflowed, 1);
    std::atomic_ref(entry->is_used).store(kUsed, std::memory_order_release);
  }
  increase(entry->count, 1);
  if (has_failed) increase(entry->failed, 1);
  if (nbytes != 0) increase(entry->nbytes, nbytes);
  increase(entry->ticks, ticks);
  increase(entry->bins[time_bin_of(ticks)], 1);
  std::atomic_ref least(entry->least_ticks);
  for (uint64_t now = least.load(std::memory_order_relaxed); ticks < now;)
    if (least.compare_exchange_weak(now, ticks, std::memory_order_relaxed)) break;
  std::atomic_ref most(entry->most_ticks);
  for (uint64_t now = most.load(std::memory_order_relaxed); ticks > now;)
    if (most.compare_exchange_weak(now, ticks, std::memory_order_relaxed)) break;
}

}  // namespace hocket
