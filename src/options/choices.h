// The values of options that are one of a few names.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <utility>

#include "base/dtype.h"
#include "base/option_table.h"
#include "device/device.h"
#include "optim/lr_schedule.h"
#include "options/plan_choice.h"
#include "ranks/collectives/route.h"

namespace so {

using LrScheduler = LrScheduleKind;
enum class Precision : std::uint8_t { automatic, bf16, fp32 };
enum class StatePrecision : std::uint8_t { fp32, bf16, fp8 };  // of AdamW's moments
enum class SumPrecision : std::uint8_t { fp32, bf16 };         // of gradients that are added up
enum class Toggle : std::uint8_t { automatic, on, off };
// The published system's two modes, as a Schedule (offload/schedule/schedule.h): overlapped, and synchronous.
enum class OffloadMode : std::uint8_t { superoffload, zerooffload };
enum class CastChoice : std::uint8_t { automatic, host, device };  // as CastSide (offload/schedule/schedule.h)
enum class ProfileUse : std::uint8_t { cached, fresh };  // the machine's rates: of an earlier run, or measured now
// When a run evaluates, or saves a checkpoint, beside its end: never, every N steps, after each epoch.
enum class Cadence : std::uint8_t { no, steps, epoch };
// The two names that Hugging Face has for the loss of an evaluation.
enum class EvaluationMetric : std::uint8_t { eval_loss, loss };
enum class ColorUse : std::uint8_t { automatic, always, never };
// How a run gets more positions than config.json has (checkpoint/rope_extension.h).
enum class RopeExtension : std::uint8_t {
  automatic,  // it does not
  none,       // with the model's own rotation
  linear,     // every frequency is divided by the factor
  yarn,       // slow frequencies are [YaRN, Peng et al. 2023]
  dynamic,    // for those who use the model; within config.json's positions it changes nothing
};
enum class OptimizerDevice : std::uint8_t { cpu, none };  // where optimizer state lives; none: with the weights

template <>
struct EnumNames<LrScheduler> {
  static constexpr std::pair<LrScheduler, std::string_view> list[] = {{LrScheduler::cosine, "cosine"},
                                                                      {LrScheduler::linear, "linear"},
                                                                      {LrScheduler::constant, "constant"},
                                                                      {LrScheduler::wsd, "wsd"}};
};
template <>
struct EnumNames<Precision> {
  static constexpr std::pair<Precision, std::string_view> list[] = {
      {Precision::automatic, "auto"}, {Precision::bf16, "bf16"}, {Precision::fp32, "fp32"}};
};
template <>
struct EnumNames<StatePrecision> {
  static constexpr std::pair<StatePrecision, std::string_view> list[] = {
      {StatePrecision::fp32, "fp32"}, {StatePrecision::bf16, "bf16"}, {StatePrecision::fp8, "fp8"}};
};
template <>
struct EnumNames<SumPrecision> {
  static constexpr std::pair<SumPrecision, std::string_view> list[] = {{SumPrecision::fp32, "fp32"},
                                                                       {SumPrecision::bf16, "bf16"}};
};
template <>
struct EnumNames<DeviceChoice> {
  static constexpr std::pair<DeviceChoice, std::string_view> list[] = {
      {DeviceChoice::automatic, "auto"}, {DeviceChoice::cpu, "cpu"}, {DeviceChoice::cuda, "cuda"}};
};
template <>
struct EnumNames<CollectiveRoute> {
  static constexpr std::pair<CollectiveRoute, std::string_view> list[] = {{CollectiveRoute::automatic, "auto"},
                                                                          {CollectiveRoute::nccl, "nccl"},
                                                                          {CollectiveRoute::p2p, "p2p"},
                                                                          {CollectiveRoute::host, "host"}};
};
template <>
struct EnumNames<ColorUse> {
  static constexpr std::pair<ColorUse, std::string_view> list[] = {
      {ColorUse::automatic, "auto"}, {ColorUse::always, "always"}, {ColorUse::never, "never"}};
};
template <>
struct EnumNames<Toggle> {
  static constexpr std::pair<Toggle, std::string_view> list[] = {
      {Toggle::automatic, "auto"}, {Toggle::on, "true"}, {Toggle::off, "false"}};
};
template <>
struct EnumNames<OffloadMode> {
  static constexpr std::pair<OffloadMode, std::string_view> list[] = {{OffloadMode::superoffload, "superoffload"},
                                                                      {OffloadMode::zerooffload, "zerooffload"}};
};
template <>
struct EnumNames<CastChoice> {
  static constexpr std::pair<CastChoice, std::string_view> list[] = {
      {CastChoice::automatic, "auto"}, {CastChoice::host, "host"}, {CastChoice::device, "device"}};
};
template <>
struct EnumNames<ProfileUse> {
  static constexpr std::pair<ProfileUse, std::string_view> list[] = {{ProfileUse::cached, "cached"},
                                                                     {ProfileUse::fresh, "fresh"}};
};
template <>
struct EnumNames<Cadence> {
  static constexpr std::pair<Cadence, std::string_view> list[] = {
      {Cadence::no, "no"}, {Cadence::steps, "steps"}, {Cadence::epoch, "epoch"}};
};
template <>
struct EnumNames<EvaluationMetric> {
  static constexpr std::pair<EvaluationMetric, std::string_view> list[] = {{EvaluationMetric::eval_loss, "eval_loss"},
                                                                           {EvaluationMetric::loss, "loss"}};
};
template <>
struct EnumNames<RopeExtension> {
  static constexpr std::pair<RopeExtension, std::string_view> list[] = {{RopeExtension::automatic, "auto"},
                                                                        {RopeExtension::none, "none"},
                                                                        {RopeExtension::linear, "linear"},
                                                                        {RopeExtension::yarn, "yarn"},
                                                                        {RopeExtension::dynamic, "dynamic"}};
};
template <>
struct EnumNames<OptimizerDevice> {
  static constexpr std::pair<OptimizerDevice, std::string_view> list[] = {{OptimizerDevice::cpu, "cpu"},
                                                                          {OptimizerDevice::none, "none"}};
};
template <>
struct EnumNames<PlanChoice> {
  static constexpr std::pair<PlanChoice, std::string_view> list[] = {
      {PlanChoice::none, "none"},           {PlanChoice::split, "split"},
      {PlanChoice::residency, "residency"}, {PlanChoice::streaming, "streaming"},
      {PlanChoice::gathering, "gathering"}, {PlanChoice::activations, "activations"},
      {PlanChoice::spare, "spare"},         {PlanChoice::cast, "cast"}};
};

// None: the model's own.
std::optional<DType> asked_dtype(Precision precision);
DType moments_dtype(StatePrecision precision);
// As reports name them: torch has no name for 8-bit codes with scales.
std::string_view name_of_moments(DType moments);
// The largest adam_beta2 with which second moments, kept in that format, follow the gradients: in bf16 a step's decay
// is rounded away, all or in part, unless 1 - beta2 is above 2^-8 (optim/adamw.h); in fp8 rounding is dithered.
double largest_beta2(StatePrecision precision);

}  // namespace so
