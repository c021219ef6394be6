// The report, printed once, of a wait that takes long.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "core/clock.hpp"

namespace hocket {

class StallReport {
 public:
  // after_s: time after which a wait is reported; at most half of the timeout counts.
  StallReport(int64_t begin_ns, double after_s, double timeout_s)
      : begin_ns_(begin_ns), after_s_(std::min(after_s, timeout_s / 2)), timeout_s_(timeout_s) {}

  bool is_due(int64_t now) const { return waited_s(now) >= after_s_; }
  // The report. `awaited`: text that names the awaited ranks; empty if another rank reports: then the report is empty
  // too.
  std::string text(const std::string& awaited, int64_t now) const {
    if (awaited.empty()) return {};
    return awaited + "; still waiting after " + seconds_text(waited_s(now)) +
           (std::isinf(timeout_s_) ? ", without a timeout" : ", timeout " + seconds_text(timeout_s_));
  }

 private:
  double waited_s(int64_t now) const { return static_cast<double>(now - begin_ns_) * 1e-9; }

  int64_t begin_ns_;
  double after_s_;
  double timeout_s_;
};

}  // namespace hocket
