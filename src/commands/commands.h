// The work behind each command of the program. The command line (parse.h) checks its options and calls one of these.
//
// Each returns an exit code: exit_ok, exit_interrupted, or exit_failure where numbers are not finite. Everything else
// is an exception: Error (exit_user_error), Bug (exit_internal_error); std::runtime_error where the system failed
// (exit_failure); what else the standard library throws is translated in guard.cpp. Results go to standard output, the
// rest to the log.
#pragma once

#include "options/command_options.h"
#include "options/file_options.h"
#include "options/train_options.h"

namespace so {

enum ExitCode : int {
  exit_ok = 0,
  exit_failure = 1,          // the system failed: out of memory, disk full; or a run or a loss is not finite
  exit_user_error = 2,       // so::Error
  exit_internal_error = 70,  // so::Bug; EX_SOFTWARE of sysexits.h
  exit_interrupted = 130,    // train has saved a checkpoint and stopped, upon SIGINT or another signal of interrupt.h
};

// Fine-tunes all parameters. `options` is final: the DeepSpeed file has been applied and combinations checked. What
// needs the model, the data or the machine is checked here: max_length beyond the model's limit is an error if
// origins.given("max_length"), otherwise it shrinks to that limit with a note.
int run_train(const TrainOptions& options, const OptionOrigins& origins);

// Plans what a training run would take and do on a machine that need not be there.
int run_plan(const PlanOptions& options);

// Measures this machine into a file for run_plan().
int run_profile(const ProfileOptions& options);

// Writes a model directory with random weights from a config.
int run_init(const InitOptions& options);

// Measures the mean loss and perplexity of a model on records.
int run_eval(const EvalOptions& options, const OptionOrigins& origins);

// Continues a prompt.
int run_generate(const GenerateOptions& options);

// Translates text to token ids and back.
int run_tokenize(const TokenizeOptions& options);

// Checks models and checkpoints against their checksums. exit_failure if anything is damaged.
int run_verify(const VerifyOptions& options);

// Lists token caches, or removes them.
int run_cache(const CacheOptions& options);

// Measures training steps with random weights and tokens, beside the machine's limits.
int run_bench_step(const BenchStepOptions& options);

// Measures each operation of a model's layer, beside its floor.
int run_bench_ops(const BenchOpsOptions& options);

// Measures the loading of a model, beside a plain read and copy.
int run_bench_load(const BenchLoadOptions& options);

}  // namespace so
