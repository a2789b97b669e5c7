// CodecController: changes how tensors travel while a stream runs, from what its steps looked like.
//
// Owned by: the replanner, which asks it after every profile and has all ranks adopt what it wants by the exchange of
// digests. Pure: no I/O, no thread, no clock; what it says follows from the profiles since the last restart() alone, in
// integers, so all ranks decide alike. Not for: partitions and their order (planner.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scheduler/plan/plan.h"
#include "scheduler/plan/planner.h"
#include "scheduler/plan/profile.h"
#include "scheduler/policies/policy.h"

namespace sirtaki::scheduler {

class CodecController {
 public:
  CodecController() = default;
  CodecController(const CodecController&) = delete;
  CodecController& operator=(const CodecController&) = delete;
  virtual ~CodecController() = default;

  // `profile` knows its link; `now`: the tensors of the plan in force. The tensors as they shall travel, in the same
  // order; nullopt: as now.
  virtual std::optional<std::vector<PlannedTensor>> consider(std::uint64_t step, const StepProfile& profile,
                                                             const std::vector<PlannedTensor>& now) = 0;
  // Steps from one profile to the next, unless at_rest(): a power of two.
  virtual std::uint64_t profile_every() const { return 8; }
  // Whether the last answer came from a policy at rest, which waits for nothing: profiles may come less often.
  virtual bool at_rest() const { return false; }
  // Whether profiles shall have every rank's loss.
  virtual bool wants_losses() const { return false; }
  // Inputs and reason of the last answer, for a person.
  virtual const std::string& last_decision() const = 0;
  // A step was given up: the first plan is in force again, and what was learnt is forgotten.
  virtual void restart() = 0;
};

// A tensor that the controller decides on, by the method of its rule; those without one stay as they are.
struct Controlled {
  TensorInfo info;
  std::optional<Method> method;
};

// ---- what controllers share ----

// The method of the first tensor that has one; there is one.
const Method& controlled_method(const std::vector<Controlled>& tensors);

// What a profile that knows its link says of the network.
Circumstances circumstances(const StepProfile& profile, int ranks);

// "12500 kB/s and 100 us"
std::string link_text(const StepProfile& profile);

// The controller that the spec's rules ask for: auto or importance (decide() refuses both in one spec), beside which
// tensors of other methods stay as the first plan has them; else a follower, if the link may change anything; nullptr.
std::unique_ptr<CodecController> make_controller(const Spec& spec, const std::vector<TensorInfo>& tensors,
                                                 const PlannerOptions& planner,
                                                 std::shared_ptr<const CodecFacts> facts);

}  // namespace sirtaki::scheduler
