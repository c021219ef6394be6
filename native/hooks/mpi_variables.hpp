// Performance variables of an MPI library (its tool interface, MPI_T), recorded as counters "mpi_t:NAME" in the ring
// "process". No thread reads them: calls of the program do, where some time has passed since the last reading.
#pragma once

#include <atomic>
#include <cstdint>

#include "core/clock.hpp"
#include "hooks/mpi_library.hpp"

namespace hocket::hooks {

// Ticks from which on a reading may be due; never before start_variables() and after stop_variables().
inline std::atomic<uint64_t> g_next_reading{UINT64_MAX};

// After MPI_Init: from here on the variables count. Of two libraries in one process, those of the first are read.
void start_variables(const HookedMpi& mpi);
// Before MPI_Finalize: reads them for the last time.
void stop_variables();
void read_variables();
// At the end of a call of MPI, outside of MPI.
inline void read_variables_if_due() {
  if (ticks() >= g_next_reading.load(std::memory_order_relaxed)) read_variables();
}

}  // namespace hocket::hooks
