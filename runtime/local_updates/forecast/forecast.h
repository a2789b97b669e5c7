// Forecast: predicts the steps of a training with local updates on a given link, by the controller that it would have.
//
// Needs no session. Transfers of fragments are forecasts of their streams (runtime/engine/forecast/forecast.h). A new
// IntervalController decides from these transfers, round by round, until nothing changes, so none of its rules is
// repeated here. Averages of the state of the optimizer are not part of it, because adapters make them. Pure functions.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/base/config/config.h"
#include "runtime/base/status.h"
#include "runtime/engine/forecast/forecast.h"
#include "runtime/local_updates/controller/interval.h"
#include "runtime/local_updates/options.h"

namespace sirtaki::local_updates {

struct LocalForecast {
  Interval interval;             // Mode::kSync: gradients are averaged, as in `synchronous`
  std::string codec;             // codec of differences; "none" is float32
  std::int64_t step_us = 0;      // mean over a round, with waits for merges
  std::int64_t transfer_us = 0;  // a merge of all fragments with that codec
  std::int64_t dense_us = 0;     // the same as float32
  std::int64_t sent_bytes = 0;   // payload that a rank sends in a step, on average
  engine::StepForecast synchronous;
};

// Returns the forecast after the warm-up, with the learning rate at its highest. `spec` holds the parameters in the
// order of the forward pass, and the codec of averaged gradients. kInvalidArgument as in forecast_step(), or options
// that no forecast knows: a function of the program.
Result<LocalForecast> forecast(const engine::StreamSpec& spec, const engine::Conditions& at, const Config& config,
                               const LocalOptions& options);

}  // namespace sirtaki::local_updates
