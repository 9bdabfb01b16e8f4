#include "ranks/mpi/mpi_library.h"

#include <string>
#include <vector>

#include "base/error.h"
#include "base/program_path.h"
#include "base/shared_library.h"

namespace so {
namespace {

MpiLibrary load_mpi() {
  std::vector<std::string> files{"libmpi.so.40", SO_MPI_LIBRARY};
  // A launcher that comes in a Python package or under a prefix has its library beside it, and speaks with that
  // version.
  if (const auto launcher = find_program("mpirun"))
    files.insert(files.begin(), launcher->parent_path().parent_path() / "lib" / "libmpi.so.40");
  // Its plug-ins look for its names among those of the whole process.
  const SharedLibrary library = load_library(files, LibraryNames::global);
  if (library.handle == nullptr)
    fail(
        "Open MPI, which connects ranks, cannot be loaded ({}): install it (apt-get install openmpi-bin, or pip install "
        "'superoffload[ranks]', where the program was installed by pip), or train on one GPU",
        library.reason);
  SymbolFinder find(library);
  MpiLibrary m;
  find(m.init_thread, "MPI_Init_thread");
  find(m.finalize, "MPI_Finalize");
  find(m.error_string, "MPI_Error_string");
  find(m.error_class, "MPI_Error_class");
  find(m.comm_dup, "MPI_Comm_dup");
  find(m.comm_split, "MPI_Comm_split");
  find(m.comm_split_type, "MPI_Comm_split_type");
  find(m.comm_set_errhandler, "MPI_Comm_set_errhandler");
  find(m.comm_rank, "MPI_Comm_rank");
  find(m.comm_size, "MPI_Comm_size");
  find(m.comm_free, "MPI_Comm_free");
  find(m.bcast, "MPI_Bcast");
  find(m.allgather, "MPI_Allgather");
  find(m.iprobe, "MPI_Iprobe");
  find(m.get_count, "MPI_Get_count");
  find(m.recv, "MPI_Recv");
  find(m.isend, "MPI_Isend");
  find(m.irecv, "MPI_Irecv");
  find(m.testall, "MPI_Testall");
  find(m.request_get_status, "MPI_Request_get_status");
  find(m.cancel, "MPI_Cancel");
  find(m.request_free, "MPI_Request_free");
  find(m.comm_world, "ompi_mpi_comm_world");
  find(m.comm_null, "ompi_mpi_comm_null");
  find(m.request_null, "ompi_request_null");
  find(m.byte, "ompi_mpi_byte");
  find(m.integer, "ompi_mpi_int");
  find(m.info_null, "ompi_mpi_info_null");
  find(m.errors_return, "ompi_mpi_errors_return");
  if (find.missing() != nullptr) fail("this MPI has no {}: install Open MPI 4.1 or 5", find.missing());
  return m;
}

}  // namespace

const MpiLibrary& mpi() {
  static const MpiLibrary library = load_mpi();
  return library;
}

}  // namespace so
