#include "runtime/local_updates/choice.h"

#include <cmath>
#include <utility>

#include "runtime/base/json.h"
#include "runtime/local_updates/controller/spec.h"

namespace sirtaki::engine {
namespace {

namespace interval = scheduler::interval;

constexpr double kMillion = 1e6;
constexpr double kTera = 1e12;

// Not a number, which JSON has as null, where it is not known.
double in_units(std::int64_t value, double unit) {
  return value < 0 ? std::nan("") : static_cast<double>(value) / unit;
}

std::string round_json(const interval::RoundStats& stats, const interval::Interval& now) {
  JsonWriter json;
  json.begin_object();
  json.key("step").value(stats.step);
  json.key("steps_left").value(in_units(stats.steps_left, 1));
  json.key("interval").value(now.steps);
  json.key("delay").value(now.delay);
  json.key("mode").value(interval::mode_name(now.mode));
  json.key("lr").value(in_units(stats.lr_pico, kTera));
  json.key("loss_before").value(stats.loss_known ? in_units(stats.loss_before_e6, kMillion) : std::nan(""));
  json.key("loss").value(stats.loss_known ? in_units(stats.loss_after_e6, kMillion) : std::nan(""));
  json.key("step_seconds").value(in_units(stats.step_us, kMillion));
  json.key("transfer_seconds").value(in_units(stats.transfer_us, kMillion));
  json.key("stall_seconds").value(in_units(stats.stall_us, kMillion));
  json.key("variance").value(interval::one_step_variance(stats.merges));
  json.end_object();
  return std::move(json).take();
}

}  // namespace

Result<LocalOptions> local_options(std::string_view text) {
  SRT_ASSIGN(interval::IntervalOptions chosen, interval::parse_interval(text));
  LocalOptions options = chosen.policy == interval::PolicyId::kDiLoCo ? diloco_options() : LocalOptions();
  options.interval = std::move(chosen);
  return options;
}

LocalOptions local_options(StepsFunction steps) {
  LocalOptions options;
  options.interval.policy = interval::PolicyId::kCallable;
  options.interval.warmup = 0;
  options.interval.hook = [steps = std::move(steps)](const interval::RoundStats& stats, const interval::Interval& now) {
    return steps(round_json(stats, now));
  };
  return options;
}

}  // namespace sirtaki::engine
