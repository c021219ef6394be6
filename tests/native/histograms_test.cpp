// Exact totals, with one and with many writers, also where their table is full.
#include "recorder/histograms.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <tuple>
#include <vector>

#include "check.hpp"

namespace {

using namespace hocket;

void test_histograms_are_exact() {
  HistogramTable table{};
  table.capacity = 64;
  const auto entries = std::make_unique<Histogram[]>(table.capacity);
  SerialHistograms histograms(&table, entries.get());
  std::map<std::tuple<uint32_t, int32_t, uint8_t>, std::vector<uint64_t>> expected;
  std::mt19937_64 random(7);
  for (int i = 0; i < 5000; ++i) {
    const HistogramKey key{
        static_cast<uint32_t>(random() % 3), static_cast<int32_t>(random() % 4) - 1, 0, 1, 0, Layer::communication,
        static_cast<uint8_t>(random() % 3)};
    const uint64_t ticks = random() >> (random() % 60);
    histograms.add(key, ticks, 100, ticks % 7 == 0);
    expected[{key.comm, key.peer, key.size_class}].push_back(ticks);
  }
  CHECK(table.used == expected.size() && table.overflowed == 0);
  uint64_t found = 0;
  for (uint64_t i = 0; i < table.capacity; ++i) {
    const Histogram& entry = entries[i];
    if (!entry.is_used) continue;
    ++found;
    const std::vector<uint64_t>& times = expected.at({entry.comm, entry.peer, entry.size_class});
    uint64_t sum = 0;
    uint64_t failed = 0;
    std::array<uint64_t, kTimeBins> bins{};
    for (const uint64_t each : times) {
      sum += each;
      failed += each % 7 == 0;
      ++bins[time_bin_of(each)];
    }
    CHECK(entry.count == times.size() && entry.ticks == sum && entry.failed == failed && entry.bins == bins);
    CHECK(entry.nbytes == 100 * times.size() && entry.version % 2 == 0);
    CHECK(entry.least_ticks == *std::min_element(times.begin(), times.end()));
    CHECK(entry.most_ticks == *std::max_element(times.begin(), times.end()));
  }
  CHECK(found == expected.size());
}

void test_a_full_table_counts_the_rest_together() {
  HistogramTable table{};
  table.capacity = 4;
  const auto entries = std::make_unique<Histogram[]>(table.capacity);
  SerialHistograms histograms(&table, entries.get());
  for (uint32_t comm = 0; comm < 100; ++comm) histograms.add({comm, -1, 0, 1, 0, Layer::communication, 1}, 5, 8, false);
  CHECK(table.used == 3 && table.overflowed == 97 && entries[3].count == 97 && entries[3].nbytes == 97 * 8);
}

// Transfers with many peers: their totals stay exact, the later ones not by size, then not by peer.
void test_transfers_leave_room_for_operations() {
  HistogramTable table{};
  table.capacity = 64;
  const auto entries = std::make_unique<Histogram[]>(table.capacity);
  SerialHistograms histograms(&table, entries.get());
  for (int32_t peer = 0; peer < 500; ++peer)
    for (uint8_t size = 1; size < 4; ++size)
      histograms.add_transfer({1, peer, 2, 0, 0, Layer::transfer, size}, 5, 8, size == 3);
  CHECK(table.used <= 49 && table.overflowed == 0);
  uint64_t count = 0, num_whole = 0, of_some_peer = 0, of_any_peer = 0;
  for (uint64_t i = 0; i < table.capacity; ++i) {
    const Histogram& entry = entries[i];
    count += entry.count;
    CHECK(entry.nbytes == 8 * entry.count);
    if (entry.size_class != kAnySize)
      num_whole += entry.count;
    else if (entry.peer >= 0)
      of_some_peer += entry.count;
    else
      of_any_peer += entry.count;
  }
  CHECK(count == 1500 && num_whole >= 16 && of_some_peer > 0 && of_any_peer > 1000);
  histograms.add({1, -1, 0, 1, 0, Layer::communication, 1}, 5, 8, false);
  CHECK(table.overflowed == 0);
}

struct PrivateTable {
  explicit PrivateTable(uint64_t capacity) : entries(std::make_unique<Histogram[]>(capacity)) {
    table.capacity = capacity;
    SharedHistograms::prepare(&table, entries.get());
  }
  // Several entries may have one key.
  Histogram sum_of(uint32_t comm) const {
    Histogram sum{};
    sum.least_ticks = UINT64_MAX;
    for (uint64_t i = 0; i < table.capacity; ++i) {
      const Histogram& entry = entries[i];
      if (!entry.is_used || entry.comm != comm) continue;
      sum.count += entry.count;
      sum.failed += entry.failed;
      sum.nbytes += entry.nbytes;
      sum.ticks += entry.ticks;
      sum.least_ticks = std::min(sum.least_ticks, entry.least_ticks);
      sum.most_ticks = std::max(sum.most_ticks, entry.most_ticks);
      for (size_t bin = 0; bin < kTimeBins; ++bin) sum.bins[bin] += entry.bins[bin];
    }
    return sum;
  }

  HistogramTable table{};
  std::unique_ptr<Histogram[]> entries;
};

// All threads meet the same new keys at one time.
void test_histograms_of_many_writers_are_exact() {
  constexpr uint32_t kThreads = 4;
  constexpr uint32_t kComms = 40;
  constexpr uint64_t kRounds = 200;
  PrivateTable memory(512);
  SharedHistograms histograms(&memory.table, memory.entries.get());
  std::vector<std::thread> threads;
  for (uint32_t thread = 0; thread < kThreads; ++thread)
    threads.emplace_back([&histograms, thread] {
      for (uint64_t round = 1; round <= kRounds; ++round)
        for (uint32_t comm = 1; comm <= kComms; ++comm)
          histograms.add({comm, 0, 0, 2, 0, Layer::io, 3}, 0, round * 100 + thread, comm, round % 10 == 0);
    });
  for (std::thread& each : threads) each.join();
  CHECK(memory.table.overflowed == 0 && memory.table.used >= kComms);
  for (uint32_t comm = 1; comm <= kComms; ++comm) {
    const Histogram sum = memory.sum_of(comm);
    CHECK(sum.count == kThreads * kRounds && sum.failed == sum.count / 10 && sum.nbytes == sum.count * comm);
    CHECK(sum.ticks == kThreads * 100 * kRounds * (kRounds + 1) / 2 + kRounds * (0 + 1 + 2 + 3));
    CHECK(sum.least_ticks == 100 && sum.most_ticks == kRounds * 100 + kThreads - 1);
    CHECK(std::accumulate(sum.bins.begin(), sum.bins.end(), uint64_t{0}) == sum.count);
  }
}

// The last quarter of the table is for keys without their own `comm`; what finds no room there is in the last entry.
void test_a_shared_table_that_is_full() {
  PrivateTable memory(16);
  SharedHistograms histograms(&memory.table, memory.entries.get());
  constexpr uint32_t kRest = 7777;
  for (uint32_t comm = 1; comm <= 100; ++comm) histograms.add({comm, 0, 0, 1, 0, Layer::io, 1}, kRest, 5, 8, false);
  CHECK(memory.table.used == 13 && memory.table.overflowed == 0);
  CHECK(memory.sum_of(kRest).count == 100 - 12 && memory.sum_of(kRest).nbytes == 8 * (100 - 12));
  for (uint8_t kind = 2; kind < 12; ++kind) histograms.add({1, 0, 0, kind, 0, Layer::io, 1}, kRest, 5, 8, false);
  CHECK(memory.table.used == 15 && memory.table.overflowed == 8);
  CHECK(memory.entries[15].count == 8 && memory.entries[15].nbytes == 64 && memory.entries[15].least_ticks == 5);
}

void test_time_bins() {
  CHECK(time_bin_of(0) == 0 && time_bin_of(31) == 0 && time_bin_of(32) == 1 && time_bin_of(63) == 1);
  CHECK(time_bin_of(64) == 2 && time_bin_of(UINT64_MAX) == kTimeBins - 1);
  CHECK(size_class_of(0) == 0 && size_class_of(1) == 1 && size_class_of(8) == 4 && size_class_of(15) == 4);
}

}  // namespace

int main() {
  test_histograms_are_exact();
  test_a_full_table_counts_the_rest_together();
  test_transfers_leave_room_for_operations();
  test_histograms_of_many_writers_are_exact();
  test_a_shared_table_that_is_full();
  test_time_bins();
}
