// Open MPI's functions and handles. The program does not link the library but loads it when it is one of several ranks,
// so that it starts without it, and with that of the launcher which started it.
#pragma once

#include <mpi.h>

#ifndef OPEN_MPI
#error "another MPI than Open MPI: its handles are made in another way (cmake -DSO_MPI=OFF builds without)"
#endif

namespace so {

struct MpiLibrary {
  decltype(&MPI_Init_thread) init_thread = nullptr;
  decltype(&MPI_Finalize) finalize = nullptr;
  decltype(&MPI_Error_string) error_string = nullptr;
  decltype(&MPI_Error_class) error_class = nullptr;
  decltype(&MPI_Comm_dup) comm_dup = nullptr;
  decltype(&MPI_Comm_split) comm_split = nullptr;
  decltype(&MPI_Comm_split_type) comm_split_type = nullptr;
  decltype(&MPI_Comm_set_errhandler) comm_set_errhandler = nullptr;
  decltype(&MPI_Comm_rank) comm_rank = nullptr;
  decltype(&MPI_Comm_size) comm_size = nullptr;
  decltype(&MPI_Comm_free) comm_free = nullptr;
  decltype(&MPI_Bcast) bcast = nullptr;
  decltype(&MPI_Allgather) allgather = nullptr;
  decltype(&MPI_Iprobe) iprobe = nullptr;
  decltype(&MPI_Get_count) get_count = nullptr;
  decltype(&MPI_Recv) recv = nullptr;
  decltype(&MPI_Isend) isend = nullptr;
  decltype(&MPI_Irecv) irecv = nullptr;
  decltype(&MPI_Testall) testall = nullptr;
  decltype(&MPI_Request_get_status) request_get_status = nullptr;
  decltype(&MPI_Cancel) cancel = nullptr;
  decltype(&MPI_Request_free) request_free = nullptr;

  // What the macros of the same names stand for: addresses of the library's variables.
  MPI_Comm comm_world = nullptr, comm_null = nullptr;
  MPI_Request request_null = nullptr;
  MPI_Datatype byte = nullptr, integer = nullptr;
  MPI_Info info_null = nullptr;
  MPI_Errhandler errors_return = nullptr;
};

// Loads the library once, from any thread, and keeps it: that beside mpirun of PATH, that which the loader finds, or
// that which the build found. Throws Error, with the fix, if it cannot be loaded.
const MpiLibrary& mpi();

}  // namespace so
