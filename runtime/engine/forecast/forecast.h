// Forecast: predicts the steps of a gradient stream on a given link, by the planner and the policy that the stream
// would have there.
//
// Tells people the gain of a setting before they train, and needs no session. The replanner and the policy
// of a stream get profiles that their own model predicts, until they want no other plan, so no part of the model is
// repeated here. Pure functions, apart from the clock of time_codecs().
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/base/config/config.h"
#include "runtime/base/json.h"
#include "runtime/base/status.h"
#include "runtime/engine/common/requests.h"
#include "scheduler/plan/plan.h"
#include "scheduler/plan/planner.h"
#include "scheduler/plan/profile.h"
#include "scheduler/plan/wire_cost.h"

namespace sirtaki::engine {

// A training and its machines. Every rank is a host of its own.
struct Conditions {
  int ranks = 2;
  scheduler::LinkFacts link;     // payload of one rank in one direction
  std::int64_t forward_us = 0;   // a step without the backward pass
  std::int64_t backward_us = 0;  // from the first gradient to the last one
  // Times since the first gradient, indexed by tensor; empty: gradients appear in the order of the stream, each after a
  // part of the backward pass that is as large as its part of all elements.
  std::vector<std::int64_t> ready_us = {};
  scheduler::CodecCosts codec_costs = {};
};

// Returns the latency of one exchange if hosts are distant, else 0.
std::int64_t distant_latency_us(const Conditions& at);

struct StepForecast {
  scheduler::Prediction prediction;
  std::shared_ptr<const scheduler::Plan> plan;  // the last plan
  std::int64_t sent_bytes = 0;                  // payload that a rank sends in a step
  std::string policy;                           // last decision of a policy, for a person; empty without a policy
};

// Returns kInvalidArgument unless a forecast can have so many ranks; codecs are timed with a payload of each.
Status check_ranks(int ranks);

// Returns the costs of codecs for so many ranks on this machine, timed on the calling thread.
scheduler::CodecCosts time_codecs(int ranks);

// Returns the forecast of a stream with `spec.codec`, or the codec of the options if it is empty. kInvalidArgument: a
// malformed codec, tensors that cannot be planned, or conditions out of range.
Result<StepForecast> forecast_step(StreamSpec spec, const Conditions& at, const Config& config);

// Returns the time of an exchange of tensors that are all ready at once, with nothing to overlap.
Result<StepForecast> forecast_transfer(StreamSpec spec, const Conditions& at, const Config& config);

// Writes the rows of stats() on the tensors of a stream, as the forecast has them.
void write_tensors(JsonWriter& json, const StreamSpec& spec, const StepForecast& step);

}  // namespace sirtaki::engine
