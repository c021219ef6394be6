// Exact totals of operations by kind, library, algorithm, peer and size.
#pragma once

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstdint>

#include "recorder/layout.hpp"
#include "recorder/store_order.hpp"

namespace hocket {

struct HistogramKey {
  uint32_t comm;
  int32_t peer;
  uint16_t algorithm;
  uint8_t kind;
  uint8_t backend;
  Layer layer;
  uint8_t size_class;
};
inline bool is_of(const Histogram& entry, const HistogramKey& key) {
  return entry.comm == key.comm && entry.peer == key.peer && entry.algorithm == key.algorithm &&
         entry.kind == key.kind && entry.backend == key.backend && entry.layer == key.layer &&
         entry.size_class == key.size_class;
}
uint64_t hash_of(const HistogramKey& key);
inline constexpr uint64_t kMostProbes = 16;

inline uint8_t size_class_of(uint64_t nbytes) { return static_cast<uint8_t>(std::bit_width(nbytes)); }
inline size_t time_bin_of(uint64_t ticks) {
  const int bin = static_cast<int>(std::bit_width(ticks)) - 1 - kFirstTimeBin;
  return static_cast<size_t>(std::clamp(bin, 0, static_cast<int>(kTimeBins) - 1));
}

class SerialHistograms {  // one writer at a time
 public:
  SerialHistograms() = default;
  SerialHistograms(HistogramTable* table, Histogram* entries) : table_(table), entries_(entries) {}

  void add(const HistogramKey& key, uint64_t ticks, uint64_t nbytes, bool has_failed) {
    if (table_) count(last_ && is_of(*last_, key) ? *last_ : find(key), ticks, nbytes, has_failed);
  }
  // The same for transfers, whose keys may be many: new ones take at most half of the table, then one for each peer up
  // to three quarters, then one for all peers, so that operations find room.
  void add_transfer(const HistogramKey& key, uint64_t ticks, uint64_t nbytes, bool has_failed) {
    if (table_) count(last_ && is_of(*last_, key) ? *last_ : find_for_transfer(key), ticks, nbytes, has_failed);
  }

 private:
  static void count(Histogram& entry, uint64_t ticks, uint64_t nbytes, bool has_failed) {
    const uint32_t version = entry.version;
    std::atomic_ref(entry.version).store(version + 1, std::memory_order_relaxed);
    keep_store_order();
    ++entry.count;
    entry.failed += has_failed;
    entry.nbytes += nbytes;
    entry.ticks += ticks;
    entry.least_ticks = std::min(entry.least_ticks, ticks);
    entry.most_ticks = std::max(entry.most_ticks, ticks);
    ++entry.bins[time_bin_of(ticks)];
    std::atomic_ref(entry.version).store(version + 2, std::memory_order_release);
  }

  Histogram& find(const HistogramKey& key);
  Histogram& find_for_transfer(const HistogramKey& key);
  // Null: it is new, and the table has no room for it or has `most_used` entries.
  Histogram* find(const HistogramKey& key, uint64_t most_used);

  HistogramTable* table_ = nullptr;
  Histogram* entries_ = nullptr;
  Histogram* last_ = nullptr;
};

// Any number of writers, signal handlers among them: nothing here waits or allocates. Every number is exact, but a
// reader may see an operation in one of them and not yet in another; the version stays even. Two entries may have one
// key, if two writers met it first at one time: readers add them.
class SharedHistograms {
 public:
  SharedHistograms() = default;
  SharedHistograms(HistogramTable* table, Histogram* entries) : table_(table), entries_(entries) {}

  // Of a table that is zero and that nobody writes yet.
  static void prepare(HistogramTable* table, Histogram* entries) {
    entries[table->capacity - 1].least_ticks = UINT64_MAX;
  }

  // A new key finds no room in the last quarter of the table; `rest_comm` in the place of its `comm` does. So a program
  // of many files or communicators keeps the totals of kinds and sizes.
  void add(const HistogramKey& key, uint32_t rest_comm, uint64_t ticks, uint64_t nbytes, bool has_failed);

 private:
  Histogram* find(const HistogramKey& key, uint64_t most_used, uint64_t most_probes);

  HistogramTable* table_ = nullptr;
  Histogram* entries_ = nullptr;
};

}  // namespace hocket
