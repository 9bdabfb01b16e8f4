#include <algorithm>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "base/file.h"
#include "base/progress.h"
#include "base/quantities.h"
#include "base/result_line.h"
#include "base/standard_output.h"
#include "checkpoint/directory_checks.h"
#include "commands/command.h"

namespace so {
namespace {

struct VerifyOptions : JsonOption, MessageOptions {
  std::string dir;
};

OptionTable<VerifyOptions> verify_table() {
  using namespace default_from;
  using O = VerifyOptions;
  OptionTable<O> t;
  t.group("What to check");
  t.add("dir", &O::dir, "Model directory, checkpoint, or output directory with several; --dir itself may be left out")
      .metavar("DIR")
      .required()
      .hub(HubUse::weights)
      .elsewhere("model")
      .elsewhere("output_dir");
  t.group("Result");
  t.take(json_rows());
  t.group("Messages");
  t.take(message_rows());
  return t;
}

namespace fs = std::filesystem;

// Adds up the files that are to be read; a list that cannot be read counts nothing here and is reported later.
std::uint64_t bytes_to_read(const std::vector<fs::path>& directories) {
  std::uint64_t all = 0;
  for (const fs::path& directory : directories) try {
      if (const auto list = read_checksums(directory)) all += list->bytes();
    } catch (const Error&) {
    }
  return all;
}

std::string describe(const DirectoryCheck& check) {
  std::string text = printable_path(check.directory) + ": ";
  text += check.whole() ? "whole" : fmt::format("DAMAGED ({} of {})", check.damage.size(), check.files);
  text += check.is_checkpoint && check.step ? fmt::format(", checkpoint of step {}", *check.step)
          : check.is_checkpoint             ? ", checkpoint"
                                            : ", model";
  text += fmt::format(", {} files, {}", check.files, format_bytes(check.bytes));
  if (check.has_checksums)
    text += fmt::format(" in {:.3g} s ({:.3g} GB/s)", check.seconds,
                        static_cast<double>(check.bytes) / 1e9 / std::max(check.seconds, 1e-9));
  else
    text += fmt::format("; no {}: only headers and index were looked at", checksums_file);
  text += "\n";
  for (const FileDamage& damage : check.damage)
    text += fmt::format("  {}\n", damage.file.empty() ? damage.what : printable(damage.file) + ": " + damage.what);
  return text;
}

nlohmann::ordered_json to_json(const DirectoryCheck& check) {
  nlohmann::ordered_json damaged = nlohmann::ordered_json::array();
  for (const FileDamage& damage : check.damage) damaged.push_back({{"file", damage.file}, {"what", damage.what}});
  nlohmann::ordered_json j{{"directory", check.directory.string()},
                           {"kind", check.is_checkpoint ? "checkpoint" : "model"},
                           {"whole", check.whole()},
                           {"checksums", check.has_checksums},
                           {"files", check.files},
                           {"bytes", check.bytes},
                           {"seconds", check.seconds},
                           {"damaged", damaged}};
  if (check.is_checkpoint && check.step) j["step"] = *check.step;
  return j;
}

int run(const VerifyOptions& options, const OptionOrigins&) {
  const fs::path directory = options.dir;
  std::error_code error;
  if (!fs::is_directory(directory, error))
    fail("{}: no such directory; give a model directory, a checkpoint or an output directory",
         printable_path(directory));
  const std::vector<fs::path> directories = directories_to_check(directory);
  if (directories.empty())
    fail("{} holds nothing to verify: no {}, no model.safetensors, no checkpoint", printable_path(directory),
         checksums_file);

  const std::uint64_t total = std::max<std::uint64_t>(1, bytes_to_read(directories));
  std::uint64_t before = 0;
  bool whole = true;
  nlohmann::ordered_json checks = nlohmann::ordered_json::array();
  for (const fs::path& one : directories) {
    DirectoryCheck check;
    {
      ProgressReport progress("verifying " + printable_path(one));
      check = check_directory(one, [&](std::uint64_t bytes) {
        progress.update(std::min(1.0, static_cast<double>(before + bytes) / static_cast<double>(total)),
                        format_bytes(total));
      });
    }
    before += check.has_checksums ? check.bytes : 0;
    whole = whole && check.whole();
    if (options.json)
      checks.push_back(to_json(check));
    else
      print_text("{}", describe(check));
  }
  if (options.json) {
    const nlohmann::ordered_json result{{"whole", whole}, {"directories", checks}};
    print_json(result.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace));
  }
  return whole ? exit_ok : exit_failure;
}

const RegisteredCommand verify_command([] {
  return make_command<VerifyOptions>(
      {.name = "verify",
       .position = 11,
       .summary = "check a model or checkpoints against their checksums",
       .details =
           R"(Reads every file of a model directory, of a checkpoint, or of an output directory with all its
checkpoints, and compares it with checksums.json, which train and init write beside what they write.
Headers, the index and the step that a checkpoint's files are of are checked too; of a model without
checksums these alone. One line for each directory, and one for each damaged file. The exit code is 0 if
all is whole, 1 if anything is damaged, 2 if there is nothing to verify.)",
       .examples = {"superoffload verify out", "superoffload verify out/checkpoint-500 --json"},
       .bare = "dir"},
      verify_table(), nullptr, run);
});

}  // namespace
}  // namespace so
