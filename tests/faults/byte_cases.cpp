// Files cut short, grown, overwritten in places; and nodes of other kinds where a file should be.
#include <fmt/core.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#include <cstring>

#include "faults/fault_case.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

constexpr const char* files[] = {"model/model.safetensors",
                                 "model/config.json",
                                 "model/tokenizer.json",
                                 "model/tokenizer_config.json",
                                 "data.jsonl",
                                 "settings.json",
                                 "run/checkpoint-24/exp_avg.safetensors",
                                 "run/checkpoint-24/exp_avg_sq.safetensors",
                                 "run/checkpoint-24/model.safetensors",
                                 "run/checkpoint-24/trainer_state.json"};

std::vector<std::string> command_for(const std::string& file, unsigned which) {
  if (file.starts_with("run/")) return run_of_originals(true);
  // Commands that read no data are not asked about it.
  std::vector<std::string> words = model_command(file == "data.jsonl"      ? which % 2
                                                 : file == "settings.json" ? 0
                                                                           : which);
  if (file == "settings.json") words.insert(words.end(), {"--deepspeed_config", "settings.json"});
  return words;
}

std::string damaged(std::string bytes, std::mt19937& random) {
  const auto place = [&] { return bytes.empty() ? 0 : random() % bytes.size(); };
  switch (random() % 7) {
    case 0:
      return bytes.substr(0, place());
    case 1:
      return "";
    case 2:
      return bytes + std::string(1 + random() % 5000, static_cast<char>(random()));
    case 3:  // the first bytes count most
      for (int i = 0; i < 8 && !bytes.empty(); ++i)
        bytes[random() % std::min<std::size_t>(bytes.size(), 16)] = static_cast<char>(random());
      return bytes;
    case 4:
      for (int i = 0; i < 20 && !bytes.empty(); ++i) bytes[place()] = static_cast<char>(random());
      return bytes;
    case 5: {
      const std::size_t from = place();
      return bytes.substr(0, from) + bytes.substr(std::min(bytes.size(), from + 1 + random() % 100));
    }
    default: {
      const std::size_t from = place(), length = std::min<std::size_t>(bytes.size() - from, 1 + random() % 4096);
      return bytes.replace(from, length, std::string(length, '\0'));
    }
  }
}

void make_socket(const fs::path& path) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  const std::string text = path.string();
  if (text.size() >= sizeof address.sun_path) return;  // then nothing is there at all
  std::memcpy(address.sun_path, text.c_str(), text.size() + 1);
  const int socket = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  (void)::bind(socket, reinterpret_cast<sockaddr*>(&address), sizeof address);
  ::close(socket);
}

struct Node {
  const char* name;
  void (*make)(const fs::path&);
};
constexpr Node nodes[] = {
    {"missing", [](const fs::path&) {}},
    {"a directory", [](const fs::path& p) { fs::create_directory(p); }},
    {"a FIFO", [](const fs::path& p) { ::mkfifo(p.c_str(), 0600); }},
    {"a socket", make_socket},
    {"a link to itself", [](const fs::path& p) { fs::create_symlink(p.filename(), p); }},
    {"a link to nothing", [](const fs::path& p) { fs::create_symlink("nowhere", p); }},
    {"a link to /dev/zero", [](const fs::path& p) { fs::create_symlink("/dev/zero", p); }},
    {"a link to /dev/full", [](const fs::path& p) { fs::create_symlink("/dev/full", p); }},
    {"a link to /proc/self/mem", [](const fs::path& p) { fs::create_symlink("/proc/self/mem", p); }},
    {"a sparse terabyte",
     [](const fs::path& p) {
       write_file(p, "{");
       fs::resize_file(p, std::uintmax_t{1} << 40);
     }},
};

}  // namespace

std::vector<FaultCase> byte_cases(int count, unsigned seed) {
  std::vector<FaultCase> cases;
  for (const std::string file : files)
    for (int i = 0; i < count; ++i) {
      const unsigned own = seed * 104'729u + static_cast<unsigned>(i);
      cases.push_back({"bytes: " + file, fmt::format("#{}", i), [file, own](const fs::path& work) {
                         std::mt19937 random(own);
                         write_file(work / file, damaged(read_file(work / file), random));
                         const std::string complaint = judge(run_program(command_for(file, random()), work));
                         return complaint.empty() ? judge_foreign(work) : complaint;
                       }});
    }
  return cases;
}

std::vector<FaultCase> node_cases(int count, unsigned seed) {
  std::vector<FaultCase> cases;
  std::mt19937 order(seed);
  for (const std::string file : files)
    for (int i = 0; i < count; ++i) {
      const Node& node = nodes[static_cast<std::size_t>(i) % std::size(nodes)];
      const unsigned which = order();
      cases.push_back(
          {"nodes: " + file, fmt::format("#{} {}", i, node.name), [file, &node, which](const fs::path& work) {
             fs::remove(work / file);
             node.make(work / file);
             const std::string complaint = judge(run_program(command_for(file, which), work));
             return complaint.empty() ? judge_foreign(work) : complaint;
           }});
    }
  return cases;
}

}  // namespace so::test
