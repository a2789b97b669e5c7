// Scenarios: programs of the ranks of a job, written once and run in every world.
//
// Each scenario draws its details from the seeded generator of its rank or from shared_draw(), which is the same on all
// ranks, and throws when a result is wrong.
#pragma once

#include <cstdint>
#include <random>
#include <string>

#include "tests/world/world.h"

namespace sirtaki::scenarios {

using world::RankApi;
using world::Scenario;
using world::ScenarioFn;

// Operations of every kind under several names, submitted in another order on each rank, several rounds.
ScenarioFn named_operations(std::uint64_t seed, int rounds);
// Operations as above, most of them of process sets, which reuse each other's names.
ScenarioFn process_sets(std::uint64_t seed, int rounds);
// Two ranks of a process set disagree and get an error, which no other rank gets; then all continue. Three ranks or
// more.
ScenarioFn set_mismatch();
// Adasums by name; the last rank sometimes submits another operation, and dies in the end. Two ranks or more.
ScenarioFn adasum_and_death(std::uint64_t seed, int rounds);
// Broadcasts whose root is ahead of the others by as much as it can.
ScenarioFn broadcast_ahead(std::uint64_t seed, int uses);
// One name whose shape changes between uses, equally on all ranks.
ScenarioFn changing_shapes(std::uint64_t seed, int rounds);
// In round `bad_round` one rank submits another shape: all ranks get a mismatch, then continue.
ScenarioFn mismatch_and_recover(std::uint64_t seed, int bad_round);
// Rank 0 waits for one name, the others for another: all ranks get the error of a stuck job, then continue.
ScenarioFn stuck_and_recover();
// The last rank computes for `lateness` before it takes part.
ScenarioFn late_rank(Duration lateness);
// The last rank, or `who`, dies after `rounds` allreduces; the others get an error that names it.
ScenarioFn dying_rank(int rounds, Rank who = -1);
// The last rank, or `who`, leaves after `rounds` allreduces; the others get an error that names it.
ScenarioFn leaving_rank(int rounds, Rank who = -1);
// Every rank submits `names` operations under new names, then waits for them.
ScenarioFn first_use(int names);

// A stream of all ranks beside one of some, in which ranks lack gradients and give steps up.
ScenarioFn stream_of_a_set(std::uint64_t seed, int steps);
// A stream with tensors of many sizes that become ready in another order on each rank.
ScenarioFn stream_steps(std::uint64_t seed, int steps);
// Some ranks have no gradient for some tensors.
ScenarioFn stream_unused(std::uint64_t seed, int steps);
// One rank alone has no gradients at all.
ScenarioFn stream_idle_rank(std::uint64_t seed, int steps);
// One rank has no gradients in the last step; every rank closes the stream as soon as it has that step's result.
ScenarioFn stream_closed_at_once(std::uint64_t seed, int steps);
// One rank has no gradients, first in a step that another gives up.
ScenarioFn stream_asked_in_a_void_step(std::uint64_t seed, int steps);
// Sometimes a rank gives a step up, by abort() or by a tensor of another size; all ranks get the error and continue.
ScenarioFn stream_deviations(std::uint64_t seed, int steps);
// `times` steps in a row are given up, some of which other ranks have begun; then all steps succeed.
ScenarioFn stream_given_up_often(std::uint64_t seed, int times);
// The tensors of each step are waited for in groups, in the order of a forward pass, with operations by name in
// between; some ranks have no gradient for some tensors, some steps are given up.
ScenarioFn stream_forward(std::uint64_t seed, int steps);
// Place where one rank gives a step up: before its action number `point` of program step `step`; step -1: nowhere.
struct GiveUpAt {
  int step = -1;
  int point = 0;
};
inline constexpr int kReplannedPoints = 35;  // actions of a step of stream_replanned

// Tensors become ready and are needed in another order than the first plan expects, paced by computation. After the
// step that was given up every rank runs `steps` more.
ScenarioFn stream_replanned(std::uint64_t seed, int steps, GiveUpAt at);
// Rank 0 gives a step up, or closes the stream, while it waits for tensors that the last rank withholds.
ScenarioFn stream_woken(bool closes);
// The last rank dies in a step of which the others wait for tensors.
ScenarioFn stream_dying(int steps);
// In every epoch each rank has another number of steps and joins after them; some ranks have unused tensors, some give
// steps up.
ScenarioFn uneven_epochs(std::uint64_t seed, int epochs);
// Epochs with operations by name of all kinds, some of process sets: ranks that have joined contribute zeros, or no
// rows; an operation that needs one of them ends with an error that names it.
ScenarioFn names_while_joined(std::uint64_t seed);
// Operations by name of all ranks and of process sets, under many names, some of which are reused; ranks run ahead.
ScenarioFn many_names(std::uint64_t seed, int uses);
// One rank joins with an operation in flight that no other submits.
ScenarioFn left_in_flight_before_joining(std::uint64_t seed);
// A rank gives up a step that no other has begun, then all join; afterwards all steps are complete.
ScenarioFn given_up_before_joining(std::uint64_t seed);
// The last rank dies, or leaves, while the others have joined: an error that names it.
ScenarioFn gone_while_joined(int steps, bool dies);
// A stream of gradients that are compressed by `codec`; results must be the same on all ranks. `wild`: pauses and
// stalls, and sometimes a rank gives a step up. `tiny`: few elements, for many steps.
struct CompressedRun {
  std::uint64_t seed = 1;
  int steps = 10;
  std::string codec;
  bool wild = false;
  bool tiny = false;
  bool finite_only = false;  // the option compression.nonfinite is not "propagate"
};
ScenarioFn compressed_steps(const CompressedRun& run);
// Each input of the stream is in its results or in the residual of some rank, also for a tensor whose residual was set.
ScenarioFn compressed_balance(const CompressedRun& run);
// In every other step some rank has a gradient that is not finite.
ScenarioFn compressed_poison(const CompressedRun& run);
// Streams, operations by name in between, unused tensors, pauses: all of these at once.
ScenarioFn everything(std::uint64_t seed, int steps);

}  // namespace sirtaki::scenarios
