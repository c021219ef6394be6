// Reads the memory of another process of this host with one copy (cross-memory attach, process_vm_readv), if the kernel
// permits it. Only reads: a peer may have freed the memory of a cancelled operation, and reading it is harmless.
#pragma once

#include <cstddef>
#include <cstdint>

namespace hocket {

// Whether this process may read the other one's memory. HOCKET_SINGLE_COPY=0 makes it false.
bool may_read_memory(int pid);

// Copies nbytes from an address in that process. False if it has ended; throws Failure if the memory is not mapped.
bool read_memory(int pid, uint64_t address, std::byte* to, size_t nbytes);

// Whether the first and the last byte of a range in that process can be read; nbytes is above 0.
bool may_read_range(int pid, uint64_t address, uint64_t nbytes);

}  // namespace hocket
