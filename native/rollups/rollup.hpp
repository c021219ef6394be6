// Roll-ups of events: how many began in each span of time, how long they took, and how many bytes they had
// (hocket/observe/store/rollups.py says what they are for).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace hocket::rollups {

// Columns of equal lengths.
struct Events {
  size_t size = 0;
  const double* began_s = nullptr;
  const double* ended_s = nullptr;
  const int64_t* process = nullptr;
  const int64_t* rank = nullptr;
  const int32_t* name = nullptr;
  const int64_t* weight = nullptr;  // null: each is one event
  const int64_t* nbytes = nullptr;  // null: they have none
};

// What is known of a name and a process in a span.
struct Cell {
  int64_t bin = 0;
  int64_t process = 0;
  int64_t rank = 0;
  int32_t name = 0;
  int64_t count = 0;
  double busy_s = 0;
  double most_s = 0;
  int64_t nbytes = 0;
};

// Of a hash table. Nobody can know them: rows that others send cannot be chosen to meet in one slot.
struct Multipliers {
  uint64_t bin, process, name;
};

// The cells of one level; each occurs once.
class Cells {
 public:
  Cells();
  // Returns the cell of a span, process and name, and adds it if it is missing. Valid until the next call.
  Cell& at(int64_t bin, int64_t process, int32_t name);
  // All of them, by span, process and name; none is left.
  std::vector<Cell> take_sorted();

 private:
  void grow();
  const Multipliers& multipliers_;
  std::vector<Cell> cells_;
  std::vector<uint32_t> slots_;  // number of a cell + 1; a power of two of them, at most half of them in use
  int shift_ = 0;                // of a hash, to the number of a slot
};

struct Limits {
  double width_s = 0;  // of the spans of the lowest level; those of each further one are four times as long
  int num_levels = 0;
  double long_s = 0;    // longer events are kept one by one
  double latest_s = 0;  // events that began later, or last longer, have a wrong clock
};

// Rows by level and span. Long events come first, with the level -1 and their own begin and end.
struct Rows {
  std::vector<int8_t> level;
  std::vector<int64_t> bin, process, rank, count, nbytes;
  std::vector<int32_t> name;
  std::vector<double> busy_s, most_s, began_s, ended_s;

  void add(int row_level, const Cell& cell, double begin_s = 0, double end_s = 0);
};

class Rollup {
 public:
  explicit Rollup(const Limits& limits) : limits_(limits) {}
  void add(const Events& events);
  Rows rows();

 private:
  void spread(double began_s, double seconds, const Cell& event);
  Limits limits_;
  Cells lowest_;
  Rows rows_;
};

}  // namespace hocket::rollups
