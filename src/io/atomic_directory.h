// Directories that appear whole or not at all, whenever the process is killed.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

namespace so {

enum class IfExists { refuse, replace };

// A directory under construction. Files are written under path(), a sibling "<final>.tmp-<pid>"; commit() gives it its
// final name. Without commit() the destructor removes it. Whoever looks at the final path, also after kill -9 or a
// power cut at any moment, finds nothing, the previous directory, or the new one: whole in each case (see
// remove_stale_temporaries for the one exception, on file systems that cannot exchange two names).
// The parent is held by descriptor: where it is moved, the directory appears in it there.
// One thread at a time; the files inside may be written by several.
class AtomicDirectory {
 public:
  // Creates the temporary directory, and the final path's parent if absent. With IfExists::refuse an existing final
  // path is an Error here already, and again at commit(). A link there is an Error in any case: it is neither replaced
  // nor followed.
  explicit AtomicDirectory(const std::filesystem::path& final_path, IfExists if_exists = IfExists::refuse);
  ~AtomicDirectory();
  AtomicDirectory(const AtomicDirectory&) = delete;
  AtomicDirectory& operator=(const AtomicDirectory&) = delete;

  std::filesystem::path path() const;        // write here; absolute
  std::filesystem::path final_path() const;  // absolute

  // Flushes every file and directory inside to the device, renames, and flushes the parent. With IfExists::replace the
  // previous directory is then removed. After an Error nothing has changed at the final path.
  void commit();

 private:
  std::filesystem::path asked_path_;  // the final one, unless the parent is moved
  std::string final_name_, temporary_name_;
  int parent_ = -1;
  IfExists if_exists_;
  int lock_ = -1;  // of the temporary: held while we live, so that others can tell it from a dead process's
  bool committed_ = false;
};

// Removes from `parent` what killed processes left of directories with a final name that `ours` says yes to:
// "<name>.tmp-<pid>" that no living AtomicDirectory holds. Those carry a lock; where the file system cannot lock, the
// process number decides (not alive, or our own). If a process was killed between the two renames that replace a
// directory on a file system without exchange, "<name>.old-<pid>" is all that is left of it: it gets its name back.
// Call it before a directory is read or written; returns how many were removed.
int remove_stale_temporaries(const std::filesystem::path& parent, const std::function<bool(std::string_view)>& ours);

// Removes a directory so that a kill in the middle leaves nothing under its name: renamed to "<name>.tmp-<pid>" first.
void remove_directory_atomically(const std::filesystem::path& path);

}  // namespace so
