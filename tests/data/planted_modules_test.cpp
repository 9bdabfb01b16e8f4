// A working directory is other people's, and may have files named as what Python imports. None is run.
#include <gtest/gtest.h>
#include <signal.h>

#include <cstdio>
#include <memory>
#include <sstream>

#include "data/chat/chat_renderer.h"
#include "data/data_file.h"
#include "data_test_util.h"
#include "support/paths.h"
#include "support/python.h"

namespace so {
namespace {

namespace fs = std::filesystem;

std::string said_by(const std::string& command) {
  const std::unique_ptr<FILE, int (*)(FILE*)> pipe(::popen(command.c_str(), "r"), ::pclose);
  std::string said;
  for (int c = 0; (c = std::fgetc(pipe.get())) != EOF;) said += static_cast<char>(c);
  return said;
}

// Restored at the end.
class Variable {
 public:
  Variable(const char* name, const std::string& value) : name_(name) {
    if (const char* before = std::getenv(name)) before_ = before;
    ::setenv(name, value.c_str(), 1);
  }
  ~Variable() { before_ ? ::setenv(name_, before_->c_str(), 1) : ::unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
  std::optional<std::string> before_;
};

class PlantedModules : public testing::Test {
 protected:
  void SetUp() override {
    ::signal(SIGPIPE, SIG_IGN);
    pyarrow_ = test::find_pyarrow();
    // Without `open`, since that is not there yet when the first modules are imported.
    const std::string planted = "import posix\nposix.close(posix.open('" + (temporary_.path / "ran-").string() +
                                "' + __name__, posix.O_CREAT | posix.O_WRONLY, 0o600))\n";
    const std::string site =
        said_by("python3 -I -c 'import sys; print(\"user/lib/python%d.%d/site-packages\" % sys.version_info[:2])'");
    const fs::path user_site = temporary_.path / site.substr(0, site.find('\n'));
    fs::create_directories(user_site);
    std::istringstream names(said_by("python3 -I -c 'import sys; print(*sys.stdlib_module_names)'") +
                             " jinja2 markupsafe pyarrow numpy pandas sitecustomize usercustomize chat_messages");
    std::size_t count = 0;
    for (std::string name; names >> name; ++count)
      for (const fs::path& folder : {temporary_.path, user_site}) test::write_file(folder / (name + ".py"), planted);
    ASSERT_GT(count, 250U);
    test::write_file(user_site / "planted.pth", planted.substr(0, planted.find('\n')) + "; exec('''" +
                                                    planted.substr(planted.find('\n') + 1) + "''')\n");
    test::write_file(temporary_.path / "python3", "#!/bin/sh\ntouch " + (temporary_.path / "ran-python3").string());
    fs::permissions(temporary_.path / "python3", fs::perms::owner_all);
    // As a Python that is found in PATH by its bare name would take for its own.
    test::write_file(temporary_.path / "pyvenv.cfg", "home = " + temporary_.path.string() + "\n");
    fs::current_path(temporary_.path);
  }
  void TearDown() override { fs::current_path(started_in_); }
  std::string run() const {
    std::string ran;
    for (const auto& entry : fs::directory_iterator(temporary_.path))
      if (const std::string name = entry.path().filename(); name.starts_with("ran-")) ran += name + " ";
    return ran;
  }
  void use_every_program() {
    ChatTemplate chat;
    chat.text = "{{ messages[0].content }}{{ strftime_now('%Y') }}{{ messages | tojson }}";
    chat.now = "2026-01-02T03:04:05";
    chat.source = "a template";
    const std::vector<std::string_view> records = {R"({"messages":[{"role":"user","content":"a"}]})"};
    EXPECT_TRUE(ChatRenderer(chat).render(records, TrainedTurns::nothing).at(0).text().starts_with("a2026["));
    if (!pyarrow_) return;
    const DataFile file("chat.parquet");  // its name is relative, and the reader works in another directory
    std::vector<RawRecord> block;
    EXPECT_TRUE(file.records()->next(block));
  }

  const fs::path started_in_ = fs::current_path();
  bool pyarrow_ = false;
  test::TemporaryDirectory temporary_;
};

TEST_F(PlantedModules, AreNotRun) {
  fs::copy_file(fs::path(test::fixtures()) / "data" / "tables" / "chat.parquet", "chat.parquet");
  const std::string path = std::getenv("PATH");
  {
    SCOPED_TRACE("as they are");
    use_every_program();
    EXPECT_EQ(run(), "");
  }
  {
    SCOPED_TRACE("empty and relative entries");
    const Variable modules("PYTHONPATH", ":."), programs("PATH", ":.:" + path), user("PYTHONUSERBASE", "user");
    use_every_program();
    EXPECT_EQ(run(), "");
  }
  {
    SCOPED_TRACE("absolute");
    const Variable modules("PYTHONPATH", temporary_.path.string()), startup("PYTHONSTARTUP", "types.py"),
        user("PYTHONUSERBASE", (temporary_.path / "user").string()), home("PYTHONHOME", temporary_.path.string());
    use_every_program();
    EXPECT_EQ(run(), "");
  }
}

}  // namespace
}  // namespace so
