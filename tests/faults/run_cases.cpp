// Faults while a run goes on: it is killed, told to stop, short of disk, joined by a second run, or comes back to a
// damaged or mixed checkpoint. Whatever happens, resuming ends in the bytes of the run that was left alone, or is
// refused.
#include <fmt/core.h>
#include <signal.h>
#include <sys/mount.h>

#include <algorithm>
#include <span>
#include <thread>

#include "faults/fault_case.h"
#include "support/files.h"
#include "support/paths.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

constexpr int steps = 24;

std::vector<std::string> train(bool resume = false) {
  std::vector<std::string> words = run_of_originals(resume);
  *(std::find(words.begin(), words.end(), "--output_dir") + 1) = "out";
  return words;
}

std::vector<std::string> program(const std::vector<std::string>& words) {
  std::vector<std::string> command{test::binary()};
  command.insert(command.end(), words.begin(), words.end());
  return command;
}

// Starts the run, and does something once it has made so many steps. False if it ended before that.
bool disturb(Process& process, const fs::path& work, int after_steps, const std::function<void()>& fault) {
  const fs::path metrics = work / "out" / "metrics.jsonl";
  while (!process.ended()) {
    std::error_code ignored;
    if (after_steps == 0 || fs::exists(metrics, ignored)) {
      const std::string text = after_steps == 0 ? "" : read_file(metrics);
      // The first line is of the run's start.
      if (std::count(text.begin(), text.end(), '\n') > after_steps || after_steps == 0) {
        fault();
        return true;
      }
    }
    std::this_thread::sleep_for(std::chrono::microseconds(200));
  }
  return false;
}

std::string judge_end(const fs::path& work, const std::string& after) {
  const Outcome o = run_program(train(true), work);
  if (const std::string complaint = judge(o); !complaint.empty()) return "resumed after " + after + ": " + complaint;
  if (o.exit_code != 0) return fmt::format("cannot be resumed after {}: {}", after, o.err);
  if (read_file(work / "out" / "model.safetensors") != read_file(work / "run" / "model.safetensors"))
    return "resumed after " + after + ", the weights differ";
  return judge_foreign(work);
}

std::string killed(const fs::path& work, std::mt19937& random) {
  constexpr int signals[] = {SIGKILL, SIGKILL, SIGTERM, SIGINT, SIGHUP, SIGUSR1, SIGXCPU, SIGPIPE};
  const int signal = signals[random() % std::size(signals)], after = static_cast<int>(random() % steps);
  Process process(program(train()), work, {.directory = work});
  disturb(process, work, after, [&] { process.send(signal); });
  const Outcome o = process.wait();
  if (o.signal != 0 && o.signal != signal) return fmt::format("signal {} became {}: {}", signal, o.signal, o.err);
  return judge_end(work, fmt::format("signal {} at step {}", signal, after));
}

std::string short_of_disk(const fs::path& work, std::mt19937& random) {
  // The program's messages go to a file too, which must not be the one that is cut.
  const std::uint64_t limit = 30'000 + random() % 600'000;
  const Outcome o = run_program(train(), work, {.file_bytes = limit});
  if (const std::string complaint = judge(o); !complaint.empty())
    return fmt::format("files of at most {} bytes: {}", limit, complaint);
  return judge_end(work, fmt::format("files of at most {} bytes", limit));
}

// A file system that is full before the run is done, and later is larger.
std::string on_a_small_disk(const fs::path& work, std::mt19937& random) {
  const std::uint64_t kilobytes = 64 + random() % 8'000;
  const fs::path out = work / "out";
  fs::create_directory(out);
  const auto mount = [&](std::uint64_t size, unsigned long flags) {
    return ::mount("tmpfs", out.c_str(), "tmpfs", flags, fmt::format("size={}k", size).c_str()) == 0;
  };
  if (!mount(kilobytes, 0)) return "a small file system cannot be mounted";
  const Outcome o = run_program(train(), work);
  std::string complaint = judge(o);
  if (complaint.empty() && o.exit_code != 0)
    complaint = mount(std::uint64_t{1} << 20, MS_REMOUNT) ? judge_end(work, "a full disk") : "it cannot be made larger";
  ::umount2(out.c_str(), MNT_DETACH);
  return complaint.empty() ? complaint : fmt::format("{} kB of disk: {}", kilobytes, complaint);
}

bool can_mount() {
  const TemporaryDirectory where;
  const bool mounted = ::mount("tmpfs", where.path().c_str(), "tmpfs", 0, "size=64k") == 0;
  if (mounted) ::umount2(where.path().c_str(), MNT_DETACH);
  return mounted;
}

std::string joined(const fs::path& work, std::mt19937& random) {
  Process first(program(train()), work, {.directory = work});
  std::string complaint;
  disturb(first, work, 1 + static_cast<int>(random() % 3), [&] {
    fs::create_directory(work / "second");
    first.send(SIGSTOP);  // so that it is still there, however quick it is
    const Outcome second = Process(program(train(random() % 2 == 0)), work / "second", {.directory = work}).wait();
    first.send(SIGCONT);
    complaint = judge(second);
    if (complaint.empty() && second.exit_code != 2)
      complaint = fmt::format("the second run ended with {}", second.exit_code);
  });
  const Outcome o = first.wait();
  if (!complaint.empty()) return complaint;
  if (o.exit_code != 0) return "a second run disturbed the first: " + o.err;
  return judge_end(work, "a second run");
}

fs::path newest_checkpoint(const fs::path& out) {
  fs::path newest;
  int step = -1;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    if (!name.starts_with("checkpoint-") || std::stoi(name.substr(11)) <= step) continue;
    step = std::stoi(name.substr(11));
    newest = entry.path();
  }
  return newest;
}

// A checkpoint with one byte flipped, or with one file of an older one: it is refused, or what was changed had not been
// needed; without it the run goes on from the one before.
std::string damaged(const fs::path& work, std::mt19937& random) {
  {
    Process process(program(train()), work, {.directory = work});
    disturb(process, work, 18, [&] { process.send(SIGINT); });
    process.wait();
  }
  const fs::path newest = newest_checkpoint(work / "out"), older = work / "run" / "checkpoint-16";
  if (newest.empty()) return "no checkpoint was there";
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(newest)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  const fs::path file = files[random() % files.size()];
  std::string bytes = read_file(file);
  const bool mix = random() % 2 == 0 && fs::exists(older / file.filename());
  if (mix)
    bytes = read_file(older / file.filename());
  else if (!bytes.empty())
    bytes[random() % bytes.size()] ^= static_cast<char>(1 << random() % 7);
  write_file(file, bytes);
  const Outcome o = run_program(train(true), work);
  const std::string what = fmt::format("{} {}", mix ? "mixed" : "one bit of", file.filename().string());
  if (const std::string complaint = judge(o); !complaint.empty()) return what + ": " + complaint;
  if (o.exit_code == 0)
    return read_file(work / "out" / "model.safetensors") == read_file(work / "run" / "model.safetensors")
               ? judge_foreign(work)
               : what + " went unnoticed, and the weights differ";
  fs::remove_all(newest);
  return judge_end(work, what);
}

struct Kind {
  const char* name;
  std::string (*run)(const fs::path&, std::mt19937&);
};

std::vector<FaultCase> cases_of(std::span<const Kind> kinds, int count, unsigned seed) {
  std::vector<FaultCase> cases;
  for (const Kind& kind : kinds)
    for (int i = 0; i < count; ++i) {
      const unsigned own = seed * 31'337u + static_cast<unsigned>(i);
      cases.push_back({kind.name, fmt::format("#{}", i), [run = kind.run, own](const fs::path& work) {
                         std::mt19937 random(own);
                         return run(work, random);
                       }});
    }
  return cases;
}

}  // namespace

std::vector<FaultCase> run_cases(int count, unsigned seed) {
  constexpr Kind kinds[] = {
      {"runs: signals", killed}, {"runs: disk", short_of_disk}, {"runs: second", joined}, {"runs: damage", damaged}};
  return cases_of(kinds, count, seed);
}

std::vector<FaultCase> small_disk_cases(int count, unsigned seed) {
  constexpr Kind kinds[] = {{"runs: full tmpfs", on_a_small_disk}};
  if (can_mount()) return cases_of(kinds, count, seed);
  fmt::print("{} is left out: file systems cannot be mounted here\n", kinds[0].name);
  return {};
}

}  // namespace so::test
