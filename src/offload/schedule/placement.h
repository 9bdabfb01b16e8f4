// The placement of a run: for each unit who has its optimizer state and where its weights, gradients and input are, one
// row a unit. The planner chooses one, its simulator plays it, the engine is made of it, and a plan prints it. No
// threads, no device, no clock.
#pragma once

#include <compare>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/number_formats.h"
#include "offload/schedule/parameter_layout.h"
#include "offload/schedule/schedule.h"

namespace so {

// Who keeps and updates optimizer state: the host's threads in host memory, or the device in its own. `nobody` marks a
// bucket of frozen parameters: it has weights only, where its unit has them, and stays idle.
enum class Owner : std::uint8_t { host, device, nobody };
std::string_view name_of(Owner owner);

// Where the weights of a unit are between their uses. A class of offload/memory carries each kind out
// (weight_residency.h).
enum class ResidencyKind : std::uint8_t {
  resident,      // on the device, in a place of their own
  streamed,      // in host memory; they come to the device ahead of each use
  from_masters,  // nowhere: each use casts them from the fp32 master weights, which the device owns
  gathered,      // in slices, one on the device of each rank; they are gathered ahead of each use
  callers,       // in memory of the caller's, to which new ones are copied from the host's when they are required
  gathered_from_masters,  // nowhere: each rank casts its slice from its master weights ahead of each gather; those
                          // of the host travel to the device for that
  streamed_from_masters,  // nowhere: the host's fp32 master weights come to the device ahead of each use, and are cast
                          // there
};
std::string_view name_of(ResidencyKind weights);
// Whether they come over the link ahead of each use, from host memory that is pinned.
constexpr bool is_streamed(ResidencyKind kind) {
  return kind == ResidencyKind::streamed || kind == ResidencyKind::streamed_from_masters;
}
// Whether they come from all ranks for each use.
constexpr bool is_gathered(ResidencyKind kind) {
  return kind == ResidencyKind::gathered || kind == ResidencyKind::gathered_from_masters;
}

// What a backward pass finds of a unit's input.
enum class Input : std::uint8_t {
  kept,     // on the device
  on_host,  // in host memory, from which it comes back ahead of its use
  remade,   // nothing: the units before run forward once more (pass_order.h)
};
std::string_view name_of(Input input);

struct UnitPlacement {
  Owner owner = Owner::host;  // host or device
  ResidencyKind weights = ResidencyKind::resident;
  // Whether gradients move to host memory as soon as they are complete, of a unit that the host owns; a sum comes back
  // for each further micro-batch (offload/moved_gradients.h).
  bool moved = false;
  // Whether, with several ranks, each micro-batch's gradient is reduced to this rank's slices of it: of units that are
  // gathered, and of those that move.
  bool sliced = false;
  Input input = Input::kept;
  auto operator<=>(const UnitPlacement&) const = default;
};

struct Placement {
  std::vector<UnitPlacement> units;
  int ranks = 1;
  Schedule schedule = Schedule::overlapped;
  CastSide cast = CastSide::host;
  // Whether the device updates host-owned buckets too, whose state then travels over the link (offload/link_update.h).
  // It takes device memory for a few buckets, and host memory that is pinned.
  bool over_link = false;
  std::int64_t bucket_elements = 0;  // at most; a multiple of ParameterLayout::alignment
  std::int64_t spare_buckets = 0;    // that the host can have new state beside the old for
  auto operator<=>(const Placement&) const = default;

  const UnitPlacement& unit(int unit) const { return units[static_cast<std::size_t>(unit)]; }
  bool on_host(int unit) const { return this->unit(unit).owner == Owner::host; }
  bool on_device(int unit) const { return this->unit(unit).owner == Owner::device; }
  int count(Owner owner) const;
  int count(ResidencyKind weights) const;
  int streamed() const;
  int gathered() const;
  // Whether gradients of any unit move.
  bool moves() const;
  // Whether device-owned units, or host-owned ones, have weights made of masters.
  bool makes_from_masters(Owner owner) const;
  // Whether the host's optimizer state is pinned: it travels.
  bool pins_state() const { return over_link || makes_from_masters(Owner::host); }
  std::vector<bool> remade_inputs() const;
  // Whether buckets are cut within units: what a unit has on the device may be another's later, or in slices, or is
  // updated at another time.
  bool cuts_within_units(const NumberFormats& formats) const;
};

// Which of a unit's parameters are trained.
enum class Trained : std::uint8_t { none, some, all };
std::vector<Trained> trained_units(const ParameterLayout& layout);

// What a search varies and options speak of: numbers of units, which make_rows() expands. Nobody else counts.
struct Counts {
  int device_units = 0;  // units before this one belong to the device, the others to the host
  // How many of the host-owned units stream, spread evenly, so that the link has the time of the units between for
  // each.
  int streamed_units = 0;
  // With several ranks, how many units of either owner are gathered, spread evenly: a gather may begin when the
  // gathered unit before is in use, so it has the time of the units between for itself. None stream then.
  int gathered_units = 0;
  // Weights of device-owned units are made of masters, which takes time and saves device memory; with several ranks of
  // gathered ones alone, since no rank has all masters of the others.
  bool cast_weights = false;
  // Of units that the host owns and that stream, or that are gathered, masters travel to the device ahead of each use
  // and are cast there: all of a unit's, or a rank's slices of them. Saves the host memory that streamed weights lie
  // in, or gathered ones' device memory, and takes twice its bytes of the link for each use; masters are pinned. Such
  // weights are new when all of their state is: nothing is previewed.
  bool send_masters = false;
  // Takes host memory, pinned, instead of the device's, and with several micro-batches the link carries the sums to and
  // fro.
  bool move_gradients = false;
  // Weights of host-owned units lie in memory of the caller's. Goes with one rank, without units that stream.
  bool callers = false;
  auto operator<=>(const Counts&) const = default;
};

// Units that stay on the device are resident (unit_stays()), whatever is counted, and their gradients never move. A
// unit with frozen parameters has no masters of these, so it keeps its weights. `inputs`: by unit; empty: all are kept.
// Throws Bug of counts that do not go together.
std::vector<UnitPlacement> make_rows(std::span<const Trained> units, int ranks, const Counts& counts,
                                     std::span<const Input> inputs = {});

// How many may stream: those that the host owns and that need not stay; and be gathered, of either owner.
int most_streamed_units(int units, int device_units);
int most_gathered_units(int units);

// The share of the optimizer state (elements) that the host has if the device owns the first units.
double host_share(const ParameterLayout& layout, int device_units);
// The fewest device-owned units for which the host's share is at most `ratio`, in [0, 1].
int device_units_for_ratio(const ParameterLayout& layout, double ratio);

// The places of device memory in which units whose weights stream or are gathered take turns: while the device works
// with one, the next arrives.
inline constexpr int stream_places = 2, gather_places = 2;
// The places in which gradients take turns that leave theirs before the step is decided: those that move, and those
// that are in slices.
inline constexpr int gradient_slots = 2;
// With several ranks a gradient that moves leaves from this rank's slices of it. They take turns in more places than
// two, since a slice in fp32 may leave more slowly than the next backward passes come.
inline constexpr int slice_slots = 4;

// Which place each unit takes in turn with others; -1: one of its own.
struct Turns {
  std::vector<int> weights;
  std::vector<int> gradients;  // in which the model writes them
  std::vector<int> slices;     // of gradients, that this rank has
  std::vector<int> moving;     // the place that a gradient leaves when it moves: of `gradients`, or else of `slices`
};
Turns turns_of(const Placement& placement);

}  // namespace so
