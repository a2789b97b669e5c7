// CodecController: interface of the policies that change the compression of tensors while a stream runs, by its
// profiles.
//
// The replanner owns the controller and asks it after every profile; all ranks adopt the answer by an exchange of
// digests. Answers follow from the profiles since the last restart() alone, in integers, so all ranks decide alike.
// Pure: no I/O, no thread, no clock. planner.h decides on partitions and their order.
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

  // Returns true if first() needs the link to be measured.
  virtual bool begins_by_link() const { return false; }
  // Returns a limit of the policy that follows from its settings and tensors alone, in one sentence for the log; empty:
  // none.
  virtual std::string limit() const { return {}; }
  // Returns the tensors for the first steps, in the same order, by a profile of the link and the costs of codecs alone,
  // before any step; nullopt: `now`, the decisions without measurements. restart() returns to the result. Call at most
  // once, first.
  virtual std::optional<std::vector<PlannedTensor>> first(const StepProfile& /*link*/,
                                                          const std::vector<PlannedTensor>& /*now*/) {
    return std::nullopt;
  }
  // Returns the tensors with the wanted decisions in the same order; nullopt: no change. Requires a profile that knows
  // its link. `now` holds the tensors of the plan in force.
  virtual std::optional<std::vector<PlannedTensor>> consider(std::uint64_t step, const StepProfile& profile,
                                                             const std::vector<PlannedTensor>& now) = 0;
  // Returns the number of steps from one profile to the next unless at_rest(): a power of two.
  virtual std::uint64_t profile_every() const { return 8; }
  // Returns true if the last answer came from a policy that waits for no further profile: profiles may come less often.
  virtual bool at_rest() const { return false; }
  // Returns true if profiles have to contain the losses of all ranks.
  virtual bool wants_losses() const { return false; }
  // Returns inputs and reason of the last answer, for a person.
  virtual const std::string& last_decision() const = 0;
  // Drops all that was learnt, after a step was given up: the first plan is in force again.
  virtual void restart() = 0;
};

// A tensor and the method of its rule. The controller leaves a tensor without method as it is.
struct Controlled {
  TensorInfo info;
  std::optional<Method> method;
};

// ---- helpers of all controllers ----

// Returns the first method. Requires that a tensor has one.
const Method& controlled_method(const std::vector<Controlled>& tensors);

// Returns the network as measured. Requires a profile that knows its link.
Circumstances circumstances(const StepProfile& profile, int ranks);

// "12500 kB/s and 100 us"
std::string link_text(const StepProfile& profile);

// Returns the controller that the rules of the spec ask for. With auto or importance (decide() refuses both in one
// spec), tensors of other methods keep the decisions of the first plan; else a follower, if the link may change a
// decision; else nullptr.
std::unique_ptr<CodecController> make_controller(const Spec& spec, const std::vector<TensorInfo>& tensors,
                                                 const PlannerOptions& planner,
                                                 std::shared_ptr<const CodecFacts> facts);

}  // namespace sirtaki::scheduler
