// What is said, once, of a wait that takes long.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <string>

#include "core/clock.hpp"

namespace hocket {

class StallReport {
 public:
  // after_s: how long a wait may take before it is reported; at most half of its limit.
  StallReport(int64_t begin_ns, double after_s, double timeout_s)
      : begin_ns_(begin_ns), after_s_(std::min(after_s, timeout_s / 2)), timeout_s_(timeout_s) {}

  bool is_due(int64_t now) const { return waited_s(now) >= after_s_; }
  // The report, of a text that says who is waited for; nothing of an empty one, where another rank says it.
  std::string text(const std::string& who, int64_t now) const {
    if (who.empty()) return {};
    return who + "; still waiting after " + seconds_text(waited_s(now)) +
           (std::isinf(timeout_s_) ? ", without a limit" : ", for " + seconds_text(timeout_s_) + " at most");
  }

 private:
  double waited_s(int64_t now) const { return static_cast<double>(now - begin_ns_) * 1e-9; }

  int64_t begin_ns_;
  double after_s_;
  double timeout_s_;
};

}  // namespace hocket
