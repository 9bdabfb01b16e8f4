#include "base/error.h"
#include "ranks/mpi_ranks.h"

namespace so {

bool have_mpi() { return false; }

std::unique_ptr<Communicator> make_mpi_ranks(double) {
  fail(
      "this build has no MPI, which connects ranks: install Open MPI (Debian: libopenmpi-dev openmpi-bin) and build "
      "again");
}

}  // namespace so
