// Libraries through whose known holes a file or a template could run code are refused (src/data/library_holes.py).
#include <gtest/gtest.h>
#include <signal.h>

#include <array>
#include <cstdlib>

#include "data/python_process.h"
#include "data_test_util.h"
#include "support/paths.h"
#include "support/python.h"

namespace so {
namespace {

// What library_holes.py says of a library, after `change` has been run.
std::string hole_of(const std::string& library, const std::string& change = "") {
  const test::TemporaryDirectory directory;
  const std::string script = directory.path / "look.py", said = directory.path / "said";
  test::write_file(script, "import sys, types\nsys.path.insert(0, '" + test::source_tree() +
                               "/src/data')\nimport library_holes\n" + change +
                               "\nlibrary_holes.end_if(library_holes.of_" + library + "())\n");
  const int status = std::system(("/usr/bin/python3 -I " + script + " 2>" + said).c_str());
  const std::string text = test::read_file(said);
  EXPECT_EQ(status == 0, text.empty()) << text;
  return text;
}

TEST(LibraryHoles, OfJinja2AreFoundWhateverItsVersion) {
  if (std::system("/usr/bin/python3 -I -c 'import jinja2' 2>/dev/null") != 0) GTEST_SKIP() << "no Jinja2";
  EXPECT_EQ(hole_of("jinja2"), "");
  // As 3.1.4 and older, and as 3.1.5; the versions say what they did before.
  const std::string before_3_1_5 =
      hole_of("jinja2", "import jinja2.sandbox\njinja2.sandbox.SandboxedEnvironment.wrap_str_format = lambda *_: None");
  EXPECT_NE(before_3_1_5.find("lets a chat template out of its sandbox (CVE-"), std::string::npos) << before_3_1_5;
  const std::string of_3_1_5 = hole_of("jinja2",
                                       "import jinja2\nfrom jinja2.filters import FILTERS\nFILTERS['attr'] = "
                                       "jinja2.pass_environment(lambda e, value, name: getattr(value, name))");
  EXPECT_NE(of_3_1_5.find("(CVE-2025-27516): install version 3.1.6 or later"), std::string::npos) << of_3_1_5;
}

TEST(LibraryHoles, OfPyarrowGoByVersion) {
  const auto of_version = [](const std::string& version) {
    return hole_of("pyarrow", "sys.modules['pyarrow'] = types.SimpleNamespace(__version__='" + version + "')");
  };
  for (const char* version : {"14.0.1", "15.0.0.dev12+gabc", "26.0.1"}) EXPECT_EQ(of_version(version), "") << version;
  for (const char* version : {"14.0.0", "9.0.0", "0.17.1"})
    EXPECT_NE(of_version(version).find("CVE-2023-47248): install version 14.0.1 or later"), std::string::npos)
        << version;
}

TEST(LibraryHoles, EndTheProgramWithTheirReason) {
  ::signal(SIGPIPE, SIG_IGN);
  const std::array program = {PythonModule{"library_holes",
                                           "import sys\ndef end():\n print('Jinja2 0 is bad', "
                                           "file=sys.stderr)\n sys.exit(4)\n"},
                              PythonModule{"use", "import library_holes\nlibrary_holes.end()\n"}};
  try {
    PythonProcess process(program, "{}");
    ADD_FAILURE();
  } catch (const PythonRefused& refused) {
    EXPECT_STREQ(refused.what(), "Jinja2 0 is bad");
  }
}

}  // namespace
}  // namespace so
