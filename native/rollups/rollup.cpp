#include "rollups/rollup.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <random>
#include <tuple>
#include <utility>

namespace hocket::rollups {

namespace {

constexpr size_t kLeastSlots = 1024;
constexpr double kMostExact = 9007199254740992.0;     // 2^53: a product up to here is exact
constexpr double kMostTotal = 4611686018427387904.0;  // 2^62

const Multipliers& drawn_multipliers() {
  static const Multipliers multipliers = [] {
    std::random_device device;
    const auto odd = [&] { return (static_cast<uint64_t>(device()) << 32 | device()) | 1; };
    return Multipliers{odd(), odd(), odd()};
  }();
  return multipliers;
}

// The upper bits of a sum of products, which all bits below have changed.
size_t slot_of(const Multipliers& by, int64_t bin, int64_t process, int32_t name, int shift) {
  const uint64_t sum = static_cast<uint64_t>(bin) * by.bin + static_cast<uint64_t>(process) * by.process +
                       static_cast<uint64_t>(static_cast<uint32_t>(name)) * by.name;
  return sum >> shift;
}

int64_t floor_of(double value) {
  const auto whole = static_cast<int64_t>(value);
  return whole - (static_cast<double>(whole) > value ? 1 : 0);
}

int64_t saturated_sum(int64_t one, int64_t other) {
  int64_t sum = 0;
  return __builtin_add_overflow(one, other, &sum) ? std::numeric_limits<int64_t>::max() : sum;
}

int64_t total_nbytes(int64_t nbytes, int64_t weight) {
  const double total = static_cast<double>(nbytes) * static_cast<double>(weight);
  return total > kMostExact ? static_cast<int64_t>(std::min(total, kMostTotal)) : nbytes * weight;
}

void contribute(Cell& cell, const Cell& other) {
  cell.rank = other.rank;
  cell.count = saturated_sum(cell.count, other.count);
  cell.nbytes = saturated_sum(cell.nbytes, other.nbytes);
  cell.busy_s += other.busy_s;
  cell.most_s = std::max(cell.most_s, other.most_s);
}

}  // namespace

Cells::Cells() : multipliers_(drawn_multipliers()) {}

Cell& Cells::at(int64_t bin, int64_t process, int32_t name) {
  if (2 * cells_.size() >= slots_.size()) grow();
  const size_t mask = slots_.size() - 1;
  for (size_t slot = slot_of(multipliers_, bin, process, name, shift_);; slot = (slot + 1) & mask) {
    if (slots_[slot] == 0) {
      cells_.push_back({.bin = bin, .process = process, .name = name});
      slots_[slot] = static_cast<uint32_t>(cells_.size());
      return cells_.back();
    }
    Cell& cell = cells_[slots_[slot] - 1];
    if (cell.bin == bin && cell.process == process && cell.name == name) return cell;
  }
}

std::vector<Cell> Cells::take_sorted() {
  std::sort(cells_.begin(), cells_.end(), [](const Cell& one, const Cell& other) {
    return std::tie(one.bin, one.process, one.name) < std::tie(other.bin, other.process, other.name);
  });
  slots_.clear();
  return std::exchange(cells_, {});
}

void Cells::grow() {
  slots_.assign(std::max(kLeastSlots, 2 * slots_.size()), 0);
  shift_ = 64 - std::countr_zero(slots_.size());
  const size_t mask = slots_.size() - 1;
  for (size_t number = 0; number < cells_.size(); ++number) {
    const Cell& cell = cells_[number];
    size_t slot = slot_of(multipliers_, cell.bin, cell.process, cell.name, shift_);
    while (slots_[slot] != 0) slot = (slot + 1) & mask;
    slots_[slot] = static_cast<uint32_t>(number + 1);
  }
}

void Rows::add(int row_level, const Cell& cell, double begin_s, double end_s) {
  level.push_back(static_cast<int8_t>(row_level));
  bin.push_back(cell.bin);
  process.push_back(cell.process);
  rank.push_back(cell.rank);
  name.push_back(cell.name);
  count.push_back(cell.count);
  busy_s.push_back(cell.busy_s);
  most_s.push_back(cell.most_s);
  nbytes.push_back(cell.nbytes);
  began_s.push_back(begin_s);
  ended_s.push_back(end_s);
}

void Rollup::add(const Events& events) {
  for (size_t i = 0; i < events.size; ++i) {
    const double began_s = events.began_s[i];
    if (!(std::abs(began_s) < limits_.latest_s)) continue;
    const double measured_s = events.ended_s[i] - began_s;
    const double seconds = measured_s >= 0 && measured_s < limits_.latest_s ? measured_s : 0.0;
    Cell event{.process = events.process[i], .rank = events.rank[i], .name = events.name[i]};
    event.count = events.weight == nullptr ? 1 : std::max<int64_t>(events.weight[i], 1);
    event.nbytes = events.nbytes == nullptr ? 0 : total_nbytes(std::max<int64_t>(events.nbytes[i], 0), event.count);
    event.most_s = seconds;
    if (seconds > limits_.long_s) {
      event.busy_s = seconds * static_cast<double>(event.count);
      rows_.add(-1, event, began_s, began_s + seconds);
    } else {
      spread(began_s, seconds, event);
    }
  }
}

// Events and bytes are in the span in which an event began, its time is divided among all that it was in.
void Rollup::spread(double began_s, double seconds, const Cell& event) {
  const double width_s = limits_.width_s;
  const double ended_s = began_s + seconds;
  const auto first = floor_of(began_s / width_s);
  const auto last = floor_of(ended_s / width_s);
  const auto weight = static_cast<double>(event.count);
  Cell part = event;
  part.busy_s = (last > first ? static_cast<double>(first + 1) * width_s - began_s : seconds) * weight;
  contribute(lowest_.at(first, event.process, event.name), part);
  part = {.rank = event.rank};
  for (int64_t bin = first + 1; bin <= last; ++bin) {
    const double begin_s = static_cast<double>(bin) * width_s;
    part.busy_s = (std::min(ended_s, begin_s + width_s) - begin_s) * weight;
    contribute(lowest_.at(bin, event.process, event.name), part);
  }
}

Rows Rollup::rows() {
  std::vector<Cell> cells = lowest_.take_sorted();
  for (int level = 0; level < limits_.num_levels && !cells.empty(); ++level) {
    for (const Cell& cell : cells) rows_.add(level, cell);
    if (cells.front().bin == cells.back().bin) {  // from here on only the number of the span is another one
      for (Cell& cell : cells) cell.bin >>= 2;
      continue;
    }
    Cells next;
    for (const Cell& cell : cells) contribute(next.at(cell.bin >> 2, cell.process, cell.name), cell);
    cells = next.take_sorted();
  }
  return std::exchange(rows_, {});
}

}  // namespace hocket::rollups
