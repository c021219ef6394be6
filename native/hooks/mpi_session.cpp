// The start of MPI, which says what rank this process has, and its end.
#include <cstdlib>

#include "hooks/mpi_call.hpp"
#include "hooks/mpi_variables.hpp"

namespace {

// A job of one rank does not change what a launcher has said: a program may start MPI for itself alone.
int take_rank(const hocket::hooks::MpiCall& call, int code) {
  const bool is_observed =
      hocket::hooks::observes(hocket::Layer::communication) || hocket::hooks::observes(hocket::Layer::io);
  if (code != 0 || !call.is_outermost() || !is_observed) return code;
  const auto& functions = call.mpi().functions();
  int rank = 0;
  int size = 0;
  functions.comm_rank(call.mpi().world(), &rank);
  functions.comm_size(call.mpi().world(), &size);
  if (size > 1 || !std::getenv("WORLD_SIZE")) hocket::Recorder::instance().set_rank(rank, size);
  if (call.is_recorded()) hocket::hooks::start_variables(call.mpi());
  return code;
}

}  // namespace

HOCKET_HOOK int MPI_Init(int* argc, char*** argv) {
  HOCKET_MPI_CALL(Init, nullptr);
  return take_rank(call, call(argc, argv));
}

HOCKET_HOOK int MPI_Init_thread(int* argc, char*** argv, int required, int* provided) {
  HOCKET_MPI_CALL(Init_thread, nullptr);
  return take_rank(call, call(argc, argv, required, provided));
}

HOCKET_HOOK int MPI_Finalize() {
  HOCKET_MPI_CALL(Finalize, nullptr);
  if (call.is_recorded()) {
    hocket::hooks::stop_variables();
    hocket::hooks::t_is_inside = false;  // it calls functions of the program, which frees what it attached to MPI
  }
  return call();
}
