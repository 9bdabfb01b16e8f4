#include "doctor/cgroups.h"

#include <fmt/format.h>

#include "base/proc_text.h"

namespace so {

std::vector<Cgroup> cgroups_of(const MachineFiles& files, std::string_view controller) {
  std::vector<Cgroup> groups;
  const auto own = files.text("/proc/self/cgroup");
  // Lines: "hierarchy:controllers:path", without controllers for the unified hierarchy.
  for (const std::string_view line : own ? lines_of(*own) : std::vector<std::string_view>{}) {
    const std::size_t first = line.find(':'), second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    const bool v2 = controllers.empty();
    if (!v2 && fmt::format(",{},", controllers).find(fmt::format(",{},", controller)) == std::string::npos) continue;
    std::string mount = v2 ? "/sys/fs/cgroup" : fmt::format("/sys/fs/cgroup/{}", controller);
    if (v2 && files.exists("/sys/fs/cgroup/unified")) mount += "/unified";
    // A path that leads out of this process's view of the groups ("/../..") cannot be followed.
    std::filesystem::path path(line.substr(second + 1));
    if (!path.is_absolute() || path.native().find("..") != std::string::npos) path = "/";
    for (;;) {
      const std::string directory = mount + (path == "/" ? "" : path.string());
      if (files.exists(directory)) groups.push_back({directory, v2});
      if (path == "/") break;
      path = path.parent_path();
    }
  }
  return groups;
}

}  // namespace so
