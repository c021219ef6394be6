// The file descriptors that ranks need for the rendezvous, and the error of a rank that has too few.
#pragma once

#include "core/error.hpp"

namespace hocket {

inline constexpr int kPeersPerMessage = 100;  // two descriptors each; the kernel accepts at most 253 per message

// Needed by rank 0, and by each other rank; both with a few to spare.
int descriptors_needed_to_lead(int size);
int descriptors_needed(int size);

int most_descriptors();          // `ulimit -n`
int free_descriptors(int most);  // how many this process can still open
Error descriptor_shortage(int rank, int free, int most, int needed);

// Closes the two descriptors that this process reserves from its start: with them, a rank without free descriptors can
// still notify the other ranks.
void release_reserve();

}  // namespace hocket
