#include "runtime/local_updates/choice.h"

#include <cmath>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/local_updates/controller/spec.h"

namespace sirtaki::local_updates {
namespace {

constexpr double kMega = 1e6;
constexpr double kTera = 1e12;
// Moderate momentum gains at every interval; that of DiLoCo oversteps at short ones.
constexpr OuterOptions kShortIntervals{.on = true, .lr = 0.7, .momentum = 0.5, .nesterov = true};

// Unknown values are not a number, which JSON writes as null.
double value_or_nan(std::int64_t value, double unit) {
  return value < 0 ? std::nan("") : static_cast<double>(value) / unit;
}

std::string round_json(const RoundStats& stats, const Interval& now) {
  JsonWriter json;
  json.begin_object();
  json.key("step").value(stats.step);
  json.key("steps_left").value(value_or_nan(stats.steps_left, 1));
  json.key("interval").value(now.steps);
  json.key("delay").value(now.delay);
  json.key("mode").value(mode_name(now.mode));
  json.key("lr").value(value_or_nan(stats.lr_pico, kTera));
  json.key("loss_before").value(stats.loss_known ? value_or_nan(stats.loss_before_e6, kMega) : std::nan(""));
  json.key("loss").value(stats.loss_known ? value_or_nan(stats.loss_after_e6, kMega) : std::nan(""));
  json.key("step_seconds").value(value_or_nan(stats.step_us, kMega));
  json.key("transfer_seconds").value(value_or_nan(stats.transfer_us, kMega));
  json.key("stall_seconds").value(value_or_nan(stats.stall_us, kMega));
  json.key("variance").value(one_step_variance(stats.merges));
  json.end_object();
  return std::move(json).take();
}

}  // namespace

Result<LocalOptions> local_options(std::string_view text) {
  SRT_ASSIGN(IntervalOptions chosen, parse_interval(text));
  LocalOptions options;
  options.outer = kShortIntervals;
  if (chosen.policy == PolicyId::kDiLoCo) {
    options = diloco_options();
  }
  options.interval = std::move(chosen);
  set_codec(options, options.interval.may_compress ? std::string(kLadder) : std::string(options.codec));
  return options;
}

LocalOptions local_options(StepsFunction steps) {
  LocalOptions options;
  options.outer = kShortIntervals;
  options.interval.policy = PolicyId::kCallable;
  options.interval.warmup = 0;
  options.interval.hook = [steps = std::move(steps)](const RoundStats& stats, const Interval& now) {
    return steps(round_json(stats, now));
  };
  return options;
}

}  // namespace sirtaki::local_updates
