// File descriptors that ranks need to meet, and what is said where a rank has too few.
#pragma once

#include "core/error.hpp"

namespace hocket {

inline constexpr int kPeersPerMessage = 100;  // two descriptors each; the kernel takes at most 253

// For rank 0, and for the others; with a few to spare.
int descriptors_needed_to_lead(int size);
int descriptors_needed(int size);

int most_descriptors();          // `ulimit -n`
int free_descriptors(int most);  // that this process may still open
Error lack_of_descriptors(int rank, int free, int most, int needed);

// Two descriptors are kept since the program began for the moment in which there are no others, to tell other ranks of
// that; this gives them up.
void release_reserve();

}  // namespace hocket
