#include "base/run_log.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <mutex>
#include <string>
#include <system_error>

#include "base/error.h"
#include "base/file.h"
#include "base/log.h"

namespace so {

const std::string_view run_log_heading = "# Log of superoffload: settings, plan and messages of each run here.\n";

namespace {

// A descriptor of its own, since nothing here may throw or log.
class RunLogFile {
 public:
  RunLogFile() = default;
  ~RunLogFile() { close(); }
  RunLogFile(const RunLogFile&) = delete;
  RunLogFile& operator=(const RunLogFile&) = delete;

  void keep(std::string_view line) {
    constexpr std::size_t most = std::size_t{1} << 20;
    if (kept_.size() + line.size() <= most) kept_ += line;
  }

  // Why it cannot be; empty: it is open.
  std::string open(const std::filesystem::path& path) {
    close();
    path_ = printable_path(path);
    file_ = ::open(path.c_str(), O_RDWR | O_APPEND | O_CREAT | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0666);
    if (file_ < 0) return failure(errno == ELOOP ? "it is a link" : reason(errno));
    struct stat status {};
    if (::fstat(file_, &status) != 0) return failure(reason(errno));
    if (!S_ISREG(status.st_mode)) return failure("it is not a regular file");
    std::string begin(run_log_heading.size(), '\0');
    const ssize_t n = ::pread(file_, begin.data(), begin.size(), 0);
    if (n < 0) return failure(reason(errno));
    if (n > 0 && begin != run_log_heading) return failure("it is not a log of this program");
    std::string text(n == 0 ? run_log_heading : "\n");
    text += kept_;
    kept_.clear();
    return write(text);
  }

  // Empty, or why nothing will be written any more.
  std::string write(std::string_view text) {
    while (file_ >= 0 && !text.empty()) {
      const ssize_t n = ::write(file_, text.data(), text.size());
      if (n > 0)
        text.remove_prefix(static_cast<std::size_t>(n));
      else if (n == 0 || errno != EINTR)
        return failure(n == 0 ? "nothing was written" : reason(errno));
    }
    return {};
  }

  bool is_open() const { return file_ >= 0; }

  void close() {
    if (file_ >= 0) ::close(file_);
    file_ = -1;
  }

 private:
  static std::string reason(int error) { return std::generic_category().message(error); }
  std::string failure(const std::string& why) {
    close();
    return fmt::format("{} cannot be written ({}); the run goes on without it", path_, why);
  }

  std::string path_, kept_;
  int file_ = -1;
};

// Each line with the time; an empty one ends nothing.
std::string stamped(std::string_view text) {
  const std::string stamp = time_stamp() + " ";
  std::string lines;
  for (std::size_t begin = 0; begin < text.size();) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    lines.append(stamp).append(text.substr(begin, end - begin)).append("\n");
    begin = end + 1;
  }
  return lines;
}

// Its uses are serialised by the console, which calls the sink, but for opening and closing.
RunLogFile& log_file() {
  static RunLogFile file;
  return file;
}
std::mutex& file_mutex() {
  static std::mutex mutex;
  return mutex;
}

}  // namespace

void begin_run_log() {
  file_mutex();
  log_file();
  set_log_sink([](LogLevel, std::string_view text) -> std::string {
    std::lock_guard lock(file_mutex());
    if (log_file().is_open()) return log_file().write(stamped(text));
    log_file().keep(stamped(text));
    return {};
  });
}

void open_run_log(const std::filesystem::path& file) {
  std::string complaint;
  {
    std::lock_guard lock(file_mutex());
    complaint = log_file().open(file);
  }
  if (complaint.empty()) return;
  set_log_sink({});
  log_warning("{}", complaint);
}

void close_run_log() {
  set_log_sink({});
  std::lock_guard lock(file_mutex());
  log_file().close();
}

}  // namespace so
