// Which part of the long native tests runs: `make test-full` runs all of it, `make test-native` a fixed sample.
#pragma once

#include <cstdlib>
#include <string_view>

inline bool is_full_tier() {
  const char* tier = std::getenv("HOCKET_TEST_TIER");  // tests/tier.py sets it
  return tier != nullptr && std::string_view(tier) == "full";
}

// Of rounds that differ only by chance a fifth is enough for every change.
template <typename Count>
Count sampled_rounds(Count in_full_tier) {
  return is_full_tier() ? in_full_tier : in_full_tier / 5;
}
