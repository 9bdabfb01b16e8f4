// superoffload report, as a user runs it.
#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <optional>
#include <thread>

#include "io/metrics.h"
#include "io/run_lock.h"
#include "support/files.h"
#include "support/process.h"
#include "support/refusal.h"
#include "support/training_run.h"

namespace so::test {
namespace {

namespace fs = std::filesystem;

class Report : public testing::Test {
 protected:
  std::vector<std::string> words(const std::vector<std::string>& arguments) const {
    std::vector<std::string> all{binary(), "report"};
    all.insert(all.end(), arguments.begin(), arguments.end());
    return all;
  }
  Outcome report(const std::vector<std::string>& arguments) const {
    Limits here;
    here.directory = directory_.path();
    return Process(words(arguments), streams_.path(), here).wait();
  }
  void record(const std::string& name, int steps) const {
    fs::create_directories(directory_ / name);
    MetricsLog log(directory_ / name);
    for (int step = 1; step <= steps; ++step) {
      StepMetrics m;
      m.step = step;
      m.loss = 1.0 / step;
      log.step(m);
    }
  }
  // The data in a page.
  static nlohmann::json data_of(const std::string& page) {
    const std::string mark = "id=\"data\">";
    const std::size_t begin = page.find(mark) + mark.size();
    return nlohmann::json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  }
  nlohmann::json runs_of(const std::string& file) const { return data_of(read_file(directory_ / file)).at("runs"); }

  TemporaryDirectory directory_, streams_;
};

TEST_F(Report, ShowsARunThatWasTrained) {
  const fs::path data = model_fixture("qwen3-tied") / "data.jsonl";
  TrainCommand train(model_fixture("qwen3-tied") / "model", data, directory_ / "out");
  train.set("batch_size", "4").set("max_length", "24").set("max_steps", "5").set("max_grad_norm", "1e-3");
  train.set("eval_data", data.string()).set("cache_dir", (directory_ / "cache").string());
  const Outcome trained = Process(train.words(), streams_.path()).wait();
  ASSERT_EQ(trained.exit_code, 0) << trained.err;
  const Outcome o = report({"out"});
  ASSERT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find("wrote report.html: "), std::string::npos) << o.err;
  const nlohmann::json run = runs_of("report.html").at(0);
  EXPECT_EQ(run.at("status"), "finished");
  EXPECT_EQ(run.at("last_step"), 5);
  EXPECT_EQ(run.at("total_steps"), 5);
  EXPECT_EQ(run.at("clipped"), 5);
  EXPECT_EQ(run.at("clip_at"), 1e-3);
  EXPECT_EQ(run.at("parts").at("device").at(0).at(0), "work");
  EXPECT_GE(run.at("figures").size(), 1u);
  // Nothing held more than was planned for its name.
  int compared = 0;
  for (const nlohmann::json& entry : run.at("memory")) {
    if (entry.at(3).is_null()) continue;
    EXPECT_GE(entry.at(2), entry.at(3)) << entry;
    ++compared;
  }
  EXPECT_GE(compared, 8);
  const nlohmann::json& settings = run.at("settings");
  const auto origin = [&](const std::string& name) {
    for (const nlohmann::json& setting : settings)
      if (setting.at(0) == name) return setting.at(2).get<std::string>();
    return std::string("absent");
  };
  EXPECT_EQ(origin("max_grad_norm"), "command line");
  EXPECT_EQ(origin("adam_beta1"), "default");
}

TEST_F(Report, LaysSeveralRunsOverEachOther) {
  record("a", 3);
  record("b,c", 2);
  record("b", 1);
  EXPECT_EQ(report({"a", "--output", "two.html", "b,c"}).exit_code, 0) << "the words belong together";
  const nlohmann::json two = runs_of("two.html");
  ASSERT_EQ(two.size(), 2u);
  EXPECT_EQ(two.at(1).at("name"), "b,c") << "a name with a comma is known by being there";
  EXPECT_EQ(report({"--runs", "b,a"}).exit_code, 0);
  EXPECT_EQ(runs_of("report.html").at(0).at("name"), "b");
}

TEST_F(Report, ReadsUpToDamageAndSaysSo) {
  record("a", 3);
  write_file(directory_ / "a" / "metrics.jsonl", read_file(directory_ / "a" / "metrics.jsonl") + "x\n{\"step\":5,\"lo");
  const Outcome o = report({"a"});
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_NE(o.err.find("a/metrics.jsonl: line 4 is no JSON object; it was read up to there"), std::string::npos)
      << o.err;
  EXPECT_EQ(runs_of("report.html").at(0).at("last_step"), 3);
}

TEST_F(Report, RefusesInOneLine) {
  record("a", 1);
  fs::create_directories(directory_ / "empty");
  fs::create_directories(directory_ / "other");
  write_file(directory_ / "other" / "metrics.jsonl", "epoch,loss\n1,2\n");
  write_file(directory_ / "mine.html", "<!doctype html><p>mine");
  expect_refusal(report({}), {"--runs"});
  expect_refusal(report({"absent"}), {"absent: no such directory", "--output_dir"});
  expect_refusal(report({"empty"}), {"empty holds no metrics.jsonl"});
  expect_refusal(report({"other"}), {"other/metrics.jsonl: line 1", "not a run's record"});
  expect_refusal(report({"a", "a/"}), {"a/ is given twice"});
  expect_refusal(report({"a", "--output", "mine.html"}), {"--output mine.html", "did not write it"});
  expect_refusal(report({"a", "--output", "absent/page.html"}), {"the directory absent does not exist"});
  expect_refusal(report({"a", "--watch"}), {"--watch: no run goes on in a"});
  expect_refusal(report({"a", "--port", "80"}), {"--port has nothing to do with --watch false"});
  EXPECT_EQ(read_file(directory_ / "mine.html"), "<!doctype html><p>mine");
  EXPECT_FALSE(fs::exists(directory_ / "report.html"));
  // Its own page is written over.
  EXPECT_EQ(report({"a"}).exit_code, 0);
  record("a", 0);
  EXPECT_EQ(report({"a"}).exit_code, 0);
}

std::string fetch(int port, const std::string& path) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
  std::string text;
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::send(socket, request.data(), request.size(), MSG_NOSIGNAL) > 0)
    for (char buffer[4096];;) {
      const ssize_t n = ::recv(socket, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      text.append(buffer, static_cast<std::size_t>(n));
    }
  ::close(socket);
  return text.substr(std::min(text.size(), text.find("\r\n\r\n") + 4));
}

TEST_F(Report, IsServedWhileARunGoesOn) {
  record("a", 3);
  std::optional<RunLock> run(directory_ / "a");
  Limits here;
  here.directory = directory_.path();
  Process process(words({"a", "--watch"}), streams_.path(), here);
  const std::string mark = "serving http://127.0.0.1:";
  std::string said;
  while (!process.ended() && said.find(mark) == said.npos) {
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
    if (fs::exists(streams_ / "stderr.txt")) said = read_file(streams_ / "stderr.txt");
  }
  ASSERT_NE(said.find(mark), said.npos) << said;
  const int port = std::stoi(said.substr(said.find(mark) + mark.size()));
  const nlohmann::json first = data_of(fetch(port, "/"));
  EXPECT_GT(first.at("watching"), 0);
  EXPECT_EQ(first.at("runs").at(0).at("status"), "running");
  EXPECT_EQ(first.at("runs").at(0).at("last_step"), 3);
  const auto last_step = [&] {
    const std::string text = fetch(port, "/data.json");
    return nlohmann::json::parse(text).at("runs").at(0).at("last_step").get<int>();
  };
  {
    MetricsLog log(directory_ / "a");
    StepMetrics m;
    m.step = 4;
    log.step(m);
  }
  while (!process.ended() && last_step() != 4) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  EXPECT_FALSE(process.ended());
  EXPECT_FALSE(fs::exists(directory_ / "report.html"));
  run.reset();
  // It ends when the last state has been fetched.
  while (!process.ended()) {
    const std::string text = fetch(port, "/data.json");
    if (!text.empty() && nlohmann::json::parse(text).at("watching") == 0) break;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  const Outcome o = process.wait();
  EXPECT_EQ(o.exit_code, 0) << o.err;
  EXPECT_EQ(data_of(read_file(directory_ / "report.html")).at("watching"), 0);
}

}  // namespace
}  // namespace so::test
