// Lists of ranks as text: "0-3,7"; -1 for members of another job.
#pragma once

#include <string>
#include <vector>

namespace hocket {

std::string rank_text(const std::vector<int>& ranks);

// A longer text would be cut in the middle of a rank where it is kept, so that it is left out.
inline constexpr size_t kMostRankText = 4096;

}  // namespace hocket
