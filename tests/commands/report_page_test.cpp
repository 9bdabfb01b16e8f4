// The data of the report's page, the page around it, and the server that shows it.
#include "commands/report/report_page.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "commands/report/page_server.h"
#include "commands/report/thinning.h"
#include "support/errors.h"

namespace so::test {
namespace {

using nlohmann::json;

TEST(ReportSampling, KeepsTheLeastTheGreatestAndTheEnds) {
  std::vector<double> x, y;
  for (int i = 0; i < 1'000'000; ++i) {
    x.push_back(i);
    y.push_back(std::sin(i * 0.001));
  }
  y[123'456] = 50;
  y[654'321] = -50;
  y[777'777] = std::numeric_limits<double>::quiet_NaN();
  const Series thin = thinned(x, y, 400);
  EXPECT_LE(thin.size(), 2000u);
  EXPECT_TRUE(std::is_sorted(thin.x.begin(), thin.x.end()));
  EXPECT_EQ(thin.x.front(), 0);
  EXPECT_EQ(thin.x.back(), 999'999);
  const auto at = [&](double place) {
    const auto found = std::find(thin.x.begin(), thin.x.end(), place);
    return found == thin.x.end() ? -1.0 : thin.y[static_cast<std::size_t>(found - thin.x.begin())];
  };
  EXPECT_EQ(at(123'456), 50);
  EXPECT_EQ(at(654'321), -50);
  EXPECT_TRUE(std::isnan(at(777'777)));
  // Every column's least and greatest are its own.
  for (std::size_t column = 0; column < 400; ++column) {
    const auto begin = y.begin() + static_cast<std::ptrdiff_t>(column * 2500), end = begin + 2500;
    if (std::any_of(begin, end, [](double v) { return std::isnan(v); })) continue;
    const auto [least, most] = std::minmax_element(begin, end);
    EXPECT_EQ(at(static_cast<double>(least - y.begin())), *least);
    EXPECT_EQ(at(static_cast<double>(most - y.begin())), *most);
  }
  // A short one comes back whole.
  EXPECT_EQ(thinned(std::span(x).first(2000), std::span(y).first(2000), 400).size(), 2000u);
  EXPECT_EQ(thinned({}, {}, 400).size(), 0u);
}

TEST(ReportSampling, MeansAreOfEqualRuns) {
  const double none = std::numeric_limits<double>::quiet_NaN();
  const std::vector<double> x{1, 2, 3, 4, 5, 6, 7}, y{1, 3, none, none, 10, none, 5};
  std::size_t each = 0;
  const Series mean = means(x, y, 4, &each);
  EXPECT_EQ(each, 2u);
  EXPECT_EQ(mean.x, (std::vector<double>{1.5, 5, 7}));
  EXPECT_EQ(mean.y, (std::vector<double>{2, 10, 5}));
  EXPECT_EQ(means(x, y, 100, &each).size(), 4u);
  EXPECT_EQ(each, 1u);
}

ReportRun run_of(std::string name, std::string_view text) {
  ReportRun run;
  run.name = std::move(name);
  run.metrics = read_metrics_text(text);
  return run;
}

json data_of(const ReportRun& run) { return json::parse(report_data({&run, 1})).at("runs").at(0); }

constexpr std::string_view three_steps =
    "{\"step\":0,\"start\":{\"model\":\"m\",\"total_steps\":4,\"settings\":[{\"name\":\"max_grad_norm\",\"value\":\"0.5\","
    "\"origin\":\"file\",\"where\":\"ds.json\"}],\"memory\":[{\"kind\":\"device\",\"name\":\"weights\",\"planned\":10}],"
    "\"plan\":{\"step_seconds\":1,\"overlap_efficiency\":0.5,\"device_seconds\":{\"work\":1},\"host_seconds\":{}}}}\n"
    "{\"step\":0,\"eval_loss\":4}\n"
    "{\"step\":1,\"loss\":3,\"grad_norm\":2,\"clip\":0.25,\"lr\":0,\"tokens\":10,\"step_time_s\":2,\"tokens_per_s\":5,"
    "\"device_memory_bytes\":0,\"device_seconds\":{\"work\":1},\"host_seconds\":{}}\n"
    "{\"step\":2,\"loss\":2,\"grad_norm\":0.1,\"clip\":1,\"lr\":1,\"tokens\":20,\"step_time_s\":2,\"tokens_per_s\":10,"
    "\"device_memory_bytes\":0,\"device_seconds\":{\"work\":1.5},\"host_seconds\":{}}\n"
    "{\"step\":3,\"loss\":null,\"grad_norm\":null,\"clip\":null,\"lr\":1,\"tokens\":30,\"step_time_s\":2,"
    "\"tokens_per_s\":15,\"skipped\":true,\"skipped_tensor\":\"t\",\"skipped_origin\":\"the loss\"}\n"
    "{\"step\":3,\"eval_loss\":2.5}\n";

TEST(ReportData, HasWhatTheRunRecorded) {
  const json run = data_of(run_of("out", three_steps));
  EXPECT_EQ(run.at("status"), "open");
  EXPECT_EQ(run.at("last_step"), 3);
  EXPECT_EQ(run.at("total_steps"), 4);
  EXPECT_EQ(run.at("tokens"), 60);
  EXPECT_EQ(run.at("tokens_per_s"), 10);
  EXPECT_EQ(run.at("clipped"), 1);
  EXPECT_EQ(run.at("skipped"), 1);
  EXPECT_EQ(run.at("skips").at(0).at("origin"), "the loss");
  EXPECT_EQ(run.at("clip_at"), 0.5);
  EXPECT_EQ(run.at("best_evaluation").at("loss"), 2.5);
  EXPECT_EQ(run.at("series").at("loss"), json::parse("[[1,2,3],[3,2,null]]"));
  EXPECT_EQ(run.at("series").at("eval_loss"), json::parse("[[0,3],[4,2.5]]"));
  EXPECT_EQ(run.at("clip_share"), json::parse("[[1,2,3],[1,0,0]]"));
  EXPECT_FALSE(run.at("series").contains("device_memory")) << "there is none on the CPU";
  EXPECT_FALSE(run.at("series").contains("host_memory")) << "it is not in the file";
  EXPECT_EQ(run.at("axis"), json::parse(R"({"step":[0,1,2,3],"tokens":[0,10,30,60],"seconds":[0,2,4,6]})"));
  EXPECT_EQ(run.at("parts").at("device"), json::parse(R"([["work",1.5]])")) << "without the first step";
  EXPECT_EQ(run.at("planned_parts").at("device"), json::parse(R"([["work",1.0]])"));
  EXPECT_EQ(run.at("memory"), json::parse(R"([["device","weights",10,null,""]])"));
  EXPECT_EQ(run.at("settings"), json::parse(R"([["max_grad_norm","0.5","file","ds.json",""]])"));
  EXPECT_EQ(run.at("figures"), json::array());

  const json ended = data_of(run_of(
      "out",
      std::string(three_steps) +
          R"({"step":3,"summary":{"step_seconds":{"planned":1,"measured":2}},"run":{"outcome":"diverged"},"memory":[)"
          R"({"kind":"device","name":"weights","planned":10,"measured":9}]})"
          "\n"));
  EXPECT_EQ(ended.at("status"), "diverged");
  EXPECT_EQ(ended.at("figures"), json::parse(R"([["step_seconds",1.0,2.0]])"));
  EXPECT_EQ(ended.at("memory").at(0).at(3), 9);
}

TEST(ReportData, SaysWhenAndHowARunEnds) {
  const auto run = [](std::int64_t total, const char* end) {
    return run_of("out", R"({"step":0,"start":{"total_steps":)" + std::to_string(total) +
                             R"(,"time":1764300000,"settings":[{"name":"load_best_model_at_end","value":"true"}]}})"
                             "\n"
                             R"({"step":1,"loss":3,"step_time_s":9})"
                             "\n"
                             R"({"step":2,"loss":2,"step_time_s":2})"
                             "\n"
                             R"({"step":3,"loss":2,"step_time_s":2})"
                             "\n" +
                             end);
  };
  constexpr const char* finished = "{\"step\":3,\"summary\":{},\"run\":{\"outcome\":\"finished\"}}\n";
  EXPECT_EQ(data_of(run(3, finished)).at("status"), "finished");
  EXPECT_EQ(data_of(run(10, finished)).at("status"), "stopped early");
  EXPECT_EQ(data_of(run(10, finished)).at("keeps_best"), true);
  EXPECT_EQ(data_of(run(10, finished)).at("started"), 1764300000);
  EXPECT_FALSE(data_of(run(10, finished)).contains("seconds_left"));
  ReportRun going = run(10, "");
  going.going_on = true;
  EXPECT_EQ(data_of(going).at("seconds_left"), 14) << "as the median step took";
  EXPECT_FALSE(data_of(run_of("out", three_steps)).contains("started")) << "no time was recorded";
}

TEST(ReportData, HasTextsByPromptAndStep) {
  ReportRun run = run_of("out", three_steps);
  EXPECT_EQ(data_of(run).at("samples"), json::array());
  std::string text;
  for (int step = 0; step <= 100; ++step)
    for (const char* prompt : {"a", "b"})
      text += json{{"step", step},     {"sample", prompt[0] - 'a' + 1},
                   {"prompt", prompt}, {"text", std::string(prompt) + std::to_string(step)},
                   {"tokens", 1},      {"finish_reason", "length"}}
                  .dump() +
              "\n";
  run.samples = read_samples_text(text);
  const json samples = data_of(run).at("samples");
  ASSERT_EQ(samples.size(), 2u);
  EXPECT_EQ(samples.at(1).at("prompt"), "b");
  const json& texts = samples.at(1).at("texts");
  EXPECT_EQ(texts.size(), 30u) << "a long run is thinned";
  EXPECT_EQ(texts.front(), json::parse(R"([0,"b0","length"])"));
  EXPECT_EQ(texts.back(), json::parse(R"([100,"b100","length"])"));
  // A long text is cut where a character begins.
  run.samples.samples = {{.step = 1, .sample = 1, .prompt = "p", .text = std::string(3999, 'x') + "\u00e9tude"}};
  const json cut = data_of(run).at("samples").at(0).at("texts");
  EXPECT_EQ(cut.at(0).at(1), std::string(3999, 'x') + "...");
  run.samples = read_samples_text("{\"step\":1}\n");
  EXPECT_EQ(data_of(run).at("notes"), json::array({"samples.jsonl: line 1 is no sample; read up to there"}));
}

TEST(ReportData, SaysWhatIsMissing) {
  EXPECT_EQ(data_of(run_of("out", "{\"step\":1,\"loss\":1}\nx\n")).at("notes"),
            json::array({"metrics.jsonl: line 2 is no JSON object; read up to there"}));
  EXPECT_EQ(data_of(run_of("out", "")).at("notes"), json::array({"no step is recorded yet"}));
  ReportRun running = run_of("out", three_steps);
  running.going_on = true;
  EXPECT_EQ(data_of(running).at("status"), "running");
}

TEST(ReportData, OfAMillionStepsIsSmall) {
  ReportRun run;
  run.metrics.steps.resize(1'000'000);
  for (std::size_t i = 0; i < run.metrics.steps.size(); ++i) {
    RecordedStep& s = run.metrics.steps[i];
    s.step = static_cast<std::int64_t>(i) + 1;
    s.loss = s.grad_norm = s.clip = s.lr = s.tokens = s.step_time_s = s.tokens_per_s = 1.0 / (1.0 + std::fmod(i, 97.0));
    s.host_memory_bytes = s.device_memory_bytes = 1e9;
  }
  const std::string data = report_data({&run, 1});
  EXPECT_LT(data.size(), 600'000u);
  EXPECT_EQ(json::parse(data).at("runs").at(0).at("mean_of"), 8334);
}

TEST(ReportPage, NothingFromARunLeavesItsPlace) {
  const std::string evil = "</script><script>alert(1)</script><!--&\"'@DATA@@STYLE@";
  ReportRun run = run_of(evil, "{\"step\":1,\"loss\":1,\"skipped\":true,\"skipped_tensor\":\"</SCRIPT><b>\"}\n");
  const std::string page = report_page({&run, 1});
  EXPECT_NE(
      page.find("<h1>&lt;/script&gt;&lt;script&gt;alert(1)&lt;/script&gt;&lt;!--&amp;&quot;&#39;@DATA@@STYLE@</h1>"),
      std::string::npos);
  EXPECT_EQ(page.find("<script>alert"), std::string::npos);
  EXPECT_EQ(page.find("</SCRIPT>"), std::string::npos);
  const std::string mark = "<script type=\"application/json\" id=\"data\">";
  const std::size_t begin = page.find(mark) + mark.size();
  const json data = json::parse(page.substr(begin, page.find("</script>", begin) - begin));
  EXPECT_EQ(data.at("runs").at(0).at("name"), evil) << "what is escaped reads back";
  EXPECT_TRUE(is_report_page(std::string_view(page).substr(0, 4096)));
  EXPECT_FALSE(is_report_page("<!doctype html><title>mine</title>"));
  for (const char* outside : {"http://www", "https://", "src=", "@import", "url(http"}) {
    const std::size_t at = page.find(outside);
    EXPECT_TRUE(at == page.npos || page.compare(at, 26, "http://www.w3.org/2000/svg") == 0) << outside;
  }
}

// Returns the answer of a server on this machine to the request.
std::string answer(int port, const std::string& request) {
  const int socket = ::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_port = htons(static_cast<std::uint16_t>(port));
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  std::string text;
  if (::connect(socket, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0 &&
      ::send(socket, request.data(), request.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(request.size()))
    for (char buffer[4096];;) {
      const ssize_t n = ::recv(socket, buffer, sizeof buffer, 0);
      if (n <= 0) break;
      text.append(buffer, static_cast<std::size_t>(n));
    }
  ::close(socket);
  return text;
}

std::string request(const char* line, const std::string& host) {
  return std::string(line) + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\n\r\n";
}

TEST(PageServer, AnswersThisMachineAlone) {
  PageServer server(0);
  ASSERT_GT(server.port(), 0);
  server.publish("the page", "{}");
  const std::string here = "127.0.0.1:" + std::to_string(server.port());
  const auto get = [&](const char* line, const std::string& host) {
    return answer(server.port(), request(line, host));
  };
  const std::string page = get("GET /", here);
  EXPECT_EQ(page.substr(0, 15), "HTTP/1.1 200 OK") << page;
  EXPECT_NE(page.find("text/html"), std::string::npos);
  EXPECT_TRUE(page.ends_with("\r\n\r\nthe page"));
  EXPECT_FALSE(server.ever_read());
  EXPECT_TRUE(get("GET /data.json", "localhost:1").ends_with("\r\n\r\n{}"));
  EXPECT_EQ(server.readers(), 1);
  server.publish("another", "{\"a\":1}");
  EXPECT_EQ(server.readers(), 0);
  EXPECT_TRUE(server.ever_read());
  EXPECT_TRUE(get("GET /", here).ends_with("another"));
  // A page of elsewhere whose name leads here.
  EXPECT_EQ(get("GET /data.json", "evil.example").substr(0, 12), "HTTP/1.1 403");
  EXPECT_EQ(get("GET /data.json", "127.0.0.1.evil.example").substr(0, 12), "HTTP/1.1 403");
  EXPECT_EQ(get("GET /../etc/passwd", here).substr(0, 12), "HTTP/1.1 404");
  EXPECT_EQ(get("POST /", here).substr(0, 12), "HTTP/1.1 405");
  EXPECT_EQ(get("HEAD /", here).substr(0, 12), "HTTP/1.1 200");
  EXPECT_EQ(server.readers(), 0);
  // Its port is taken.
  expect_in(refusal([&] { PageServer second(server.port()); }),
            {"--port " + std::to_string(server.port()), "cannot serve"});
}

}  // namespace
}  // namespace so::test
