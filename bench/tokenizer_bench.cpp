// Encoding and decoding speed of a tokenizer on one core.
//
// Usage: bench_tokenizer [MODEL_DIRECTORY [TEXT_FILE...]] [Google Benchmark options]
// Default, for a run in the source directory: assets/tokenizer on the licences of /usr/share/common-licenses. Documents
// of 4 KiB, as training data has them; the time is that of the CPU, so other load on the machine matters little. Beside
// it: 1 MB of one letter (one word) and loading.
#include <benchmark/benchmark.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "base/error.h"
#include "bench_main.h"
#include "data/tokenizer/tokenizer.h"

namespace {

constexpr std::size_t document_bytes = 4096;

std::vector<std::string> documents_of(const std::vector<std::filesystem::path>& files) {
  std::vector<std::string> documents;
  for (const auto& file : files) {
    std::ifstream in(file, std::ios::binary);
    const std::string text((std::istreambuf_iterator<char>(in)), std::istreambuf_iterator<char>());
    for (std::size_t at = 0; at < text.size(); at += document_bytes)
      documents.push_back(text.substr(at, document_bytes));
  }
  return documents;
}

void bytes_per_second(benchmark::State& state, std::size_t bytes) {
  state.SetBytesProcessed(static_cast<std::int64_t>(state.iterations()) * static_cast<std::int64_t>(bytes));
}

int run(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  const std::filesystem::path directory = argc > 1 ? argv[1] : "assets/tokenizer";
  std::vector<std::filesystem::path> files(argv + std::min(argc, 2), argv + argc);
  if (files.empty()) {
    for (const auto& entry : std::filesystem::directory_iterator("/usr/share/common-licenses")) {
      if (entry.is_regular_file() && !entry.is_symlink()) files.push_back(entry.path());
    }
    std::sort(files.begin(), files.end());
  }
  const std::vector<std::string> documents = documents_of(files);
  std::size_t bytes = 0;
  for (const std::string& document : documents) bytes += document.size();
  if (bytes == 0) {
    std::fprintf(stderr, "no text to encode\n");
    return 2;
  }
  const so::Tokenizer tokenizer = so::Tokenizer::load(directory);
  std::vector<std::vector<std::int32_t>> ids;
  std::size_t count = 0;
  for (const std::string& document : documents) count += ids.emplace_back(tokenizer.encode(document, false)).size();
  std::printf("%s: %d tokens; %zu documents, %.2f MB, %.2f bytes a token\n", directory.c_str(), tokenizer.vocab_size(),
              documents.size(), static_cast<double>(bytes) / 1e6,
              static_cast<double>(bytes) / static_cast<double>(count));

  benchmark::RegisterBenchmark("encode", [&](benchmark::State& state) {
    for (auto _ : state) {
      for (const std::string& document : documents) benchmark::DoNotOptimize(tokenizer.encode(document, false));
    }
    bytes_per_second(state, bytes);
  });
  benchmark::RegisterBenchmark("decode", [&](benchmark::State& state) {
    for (auto _ : state) {
      for (const auto& sequence : ids) benchmark::DoNotOptimize(tokenizer.decode(sequence, false));
    }
    bytes_per_second(state, bytes);
  });
  const std::string one_word(1'000'000, 'a');
  benchmark::RegisterBenchmark("encode one word of 1 MB", [&](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(tokenizer.encode(one_word, false));
    bytes_per_second(state, one_word.size());
  });
  benchmark::RegisterBenchmark("load", [&](benchmark::State& state) {
    for (auto _ : state) benchmark::DoNotOptimize(so::Tokenizer::load(directory));
  });
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

}  // namespace

int main(int argc, char** argv) { return so::bench::run_program(run, argc, argv); }
