#include "runtime/local_updates/controller/spec.h"

#include <algorithm>
#include <functional>
#include <span>
#include <string>
#include <utility>

#include "runtime/base/codec_id.h"
#include "runtime/base/digest.h"
#include "runtime/local_updates/controller/range_check.h"

namespace sirtaki::local_updates {
namespace {

constexpr std::int64_t kMostSteps = 1'000'000'000;
constexpr std::int64_t kByItself = IntervalOptions::kByItself;
constexpr std::string_view kFixedName = "fixed";

// The interval of INTELLECT-1; the paper of DiLoCo has 500.
constexpr std::int64_t kDiLoCoSteps = 100;

KeyInfo steps(std::string_view name, std::int64_t initial, std::int64_t least = 1) {
  return {name, KeyKind::kCount, initial, least, kLongestInterval};
}

KeyInfo decimal(std::string_view name) {
  return {name, KeyKind::kDecimal, 0, 0, RoundStats::kMaxRate};
}

// Returns the common keys of policies and the own ones.
std::vector<KeyInfo> with_common(std::initializer_list<KeyInfo> own, std::int64_t warmup, std::int64_t delay) {
  std::vector<KeyInfo> keys = own;
  keys.push_back({"warmup", KeyKind::kCountOrAuto, warmup, kByItself, kMostSteps});
  keys.push_back({"delay", KeyKind::kCountOrAuto, delay, kByItself, kLongestInterval - 1});
  keys.push_back({"guard", KeyKind::kSwitch, 1, 0, 1});
  return keys;
}

std::vector<PolicyInfo> all_policies() {
  const IntervalOptions defaults;
  return {
      {PolicyId::kAuto, "auto",
       "synchronous where the link is fast enough, else base steps, more where the link needs it",
       with_common({steps("base", defaults.base),
                    steps("max", defaults.most),
                    {"gain", KeyKind::kPart, (params::kOne + 5) / 10, 0, params::kOne},
                    choice("optimizer", kOptimizerKinds),
                    {"compress", KeyKind::kSwitch, 0, 0, 1}},
                   kByItself, kByItself)},
      {PolicyId::kQsr, "qsr", "(alpha / learning rate)^2 steps, at least base",
       with_common({steps("base", defaults.base), steps("max", defaults.most), decimal("alpha")}, kByItself,
                   kByItself)},
      {PolicyId::kAdaComm, "adacomm", "sqrt(base * loss / first loss * first learning rate / learning rate) steps",
       with_common({steps("base", 16), steps("max", 16)}, kByItself, kByItself)},
      {PolicyId::kDivergence, "divergence", "as many steps as keep the variance of the ranks' differences below theta",
       with_common({steps("base", defaults.base, 2), steps("max", defaults.most, 2), decimal("theta")}, kByItself,
                   kByItself)},
      {PolicyId::kFixed, kFixedName, "always that many steps", with_common({steps("steps", 8)}, 0, kByItself)},
      {PolicyId::kDiLoCo, "diloco", "100 steps, for an outer optimizer with Nesterov's momentum",
       with_common({steps("steps", kDiLoCoSteps)}, 0, 0)},
  };
}

Result<const PolicyInfo*> policy_named(std::string_view name) {
  const auto found = std::ranges::find(policies(), name, &PolicyInfo::name);
  if (found != policies().end()) {
    return &*found;
  }
  std::vector<std::string_view> names;
  for (const PolicyInfo& policy : policies()) {
    names.push_back(policy.name);
  }
  return unknown_name("unknown interval policy '" + std::string(name) + "'", name, names,
                      "it must be a number of steps, or one of");
}

bool is_number(std::string_view text) {
  return !text.empty() && text.find_first_not_of("0123456789") == std::string_view::npos;
}

IntervalOptions options_of(const PolicyInfo& policy, const std::vector<std::int64_t>& values) {
  IntervalOptions options;
  options.policy = policy.id;
  const auto take = [&](std::string_view name, std::int64_t& into) {
    if (const auto key = std::ranges::find(policy.keys, name, &KeyInfo::name); key != policy.keys.end()) {
      into = values[static_cast<std::size_t>(key - policy.keys.begin())];
    }
  };
  take("warmup", options.warmup);
  take("delay", options.delay);
  take("base", options.base);
  take("steps", options.base);
  take("max", options.most);
  take("alpha", options.alpha_pico);
  take("theta", options.theta_pico);
  std::int64_t part = options.link.gain_permille * params::kOne / 1000;
  take("gain", part);
  options.link.gain_permille = (part * 1000 + params::kOne / 2) / params::kOne;
  std::int64_t optimizer = 0;
  take("optimizer", optimizer);
  options.link.rate_factor = optimizer == 0 ? kRateFactorSgd : kRateFactorOthers;
  options.link.most_rate_permille = optimizer == 0 ? kMostRateSgd : kMostRateOthers;
  std::int64_t on = 0;
  take("compress", on);
  options.may_compress = on != 0;
  take("guard", on);
  options.guard.on = on != 0;
  if (policy.id == PolicyId::kFixed || policy.id == PolicyId::kDiLoCo) {
    options.most = options.base;
  }
  return options;
}

// A default base is reduced to a shorter longest interval.
Result<std::vector<std::int64_t>> read_values(const PolicyInfo& policy, std::string_view keys) {
  constexpr std::int64_t kNotGiven = 0;
  std::vector<std::int64_t> values = initial_values(policy.keys);
  const auto base = std::ranges::find(policy.keys, "base", &KeyInfo::name);
  if (base == policy.keys.end() || policy.id == PolicyId::kAdaComm) {
    SRT_TRY(read_keys(policy.name, policy.keys, keys, values));
    return values;
  }
  std::int64_t& steps = values[static_cast<std::size_t>(base - policy.keys.begin())];
  steps = kNotGiven;
  SRT_TRY(read_keys(policy.name, policy.keys, keys, values));
  if (steps == kNotGiven) {
    steps = std::min(base->initial, values[key_index(policy.keys, "max")]);
  }
  return values;
}

Result<IntervalOptions> parse(std::string_view text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = trimmed(text.substr(0, colon));
  const bool number = is_number(name);
  SRT_ASSIGN(const PolicyInfo* policy, policy_named(number ? kFixedName : name));
  std::string keys = number ? "steps=" + std::string(name) : "";
  std::vector<std::int64_t> values = initial_values(policy->keys);
  if (colon != std::string_view::npos) {
    keys += (number ? "," : "") + std::string(text.substr(colon + 1));
  }
  if (number || colon != std::string_view::npos) {
    SRT_ASSIGN(values, read_values(*policy, keys));
  }
  IntervalOptions options = options_of(*policy, values);
  SRT_TRY(check(options));
  return options;
}

}  // namespace

const std::vector<PolicyInfo>& policies() {
  static const std::vector<PolicyInfo> kAll = all_policies();
  return kAll;
}

Result<IntervalOptions> parse_interval(std::string_view text) {
  auto options = parse(trimmed(text));
  return options ? std::move(options)
                 : Result<IntervalOptions>(
                       options.status().with_context("local updates '" + std::string(trimmed(text)) + "'"));
}

Status check(const IntervalOptions& options) {
  const std::int64_t least = options.policy == PolicyId::kDivergence ? 2 : 1;
  const std::string error = out_of_range({
      {"warmup", options.warmup, kByItself, kMostSteps},
      {"lr_warmup", options.lr_warmup, 0, kMostSteps},
      {"max", options.most, least, kLongestInterval},
      {"alpha", options.alpha_pico, 0, RoundStats::kMaxRate},
      {"theta", options.theta_pico, 0, RoundStats::kMaxRate},
      {"delay", options.delay, kByItself, kLongestInterval - 1},
      {"gain", options.link.gain_permille, 0, 1000},
      {"rate_factor", options.link.rate_factor, 1, 1000},
      {"most_rate_permille", options.link.most_rate_permille, 0, 1000},
      {"band_permille", options.link.band_permille, 0, 1000},
      {"margin_permille", options.link.margin_permille, 1000, 100'000},
  });
  if (!error.empty()) {
    return invalid_argument(error);
  }
  const std::vector<std::int64_t>& bits = options.link.bits_permille;
  const auto count = static_cast<std::int64_t>(bits.size());
  if (count < 2 || count > RoundStats::kMaxEncoding + 1 || !std::ranges::is_sorted(bits, std::greater_equal<>()) ||
      bits.back() <= 0) {
    return invalid_argument("the bits of the encodings of differences have to fall from those of float32, above 0");
  }
  // The base of adacomm is a value under a root, not an interval.
  const std::int64_t most_base = options.policy == PolicyId::kAdaComm ? kLongestInterval : options.most;
  if (options.base < least || options.base > most_base) {
    return invalid_argument("base is " + std::to_string(options.base) + "; it must be " + std::to_string(least) +
                            " to " + std::to_string(most_base) + ", the longest interval");
  }
  if ((options.hook != nullptr) != (options.policy == PolicyId::kCallable)) {
    return invalid_argument("a function and the policy that asks it go together");
  }
  return check(options.guard);
}

std::uint64_t digest(const IntervalOptions& options) {
  const GuardOptions& guard = options.guard;
  std::vector<std::int64_t> values = {
      static_cast<std::int64_t>(options.policy),
      options.warmup,
      options.lr_warmup,
      options.base,
      options.most,
      options.alpha_pico,
      options.theta_pico,
      options.delay,
      std::int64_t{options.may_compress},
      options.link.gain_permille,
      options.link.rate_factor,
      options.link.most_rate_permille,
      options.link.band_permille,
      options.link.margin_permille,
      options.link.drain_encoding,
      std::int64_t{guard.on},
      std::int64_t{guard.residuals},
      std::int64_t{guard.norm.on},
      guard.norm.z_permille,
      guard.norm.deviation_permille,
      guard.norm.memory_rounds,
      guard.norm.warmup_rounds,
      guard.norm.clip_permille,
      guard.norm_strikes,
      guard.norm_resets,
      static_cast<std::int64_t>(guard.norm_last),
      guard.variance_permille,
      guard.variance_window,
      guard.variance_warmup_rounds,
      guard.variance_strikes,
      guard.loss_yellow_permille,
      guard.loss_red_permille,
      guard.loss_strikes,
      guard.loss_noise_permille,
      guard.late_strikes,
      guard.late_window_us,
      guard.pause_steps,
      guard.calm_rounds,
      std::int64_t{options.hook != nullptr},
  };
  values.insert(values.end(), options.link.bits_permille.begin(), options.link.bits_permille.end());
  return digest_of(std::as_bytes(std::span(values)));
}

}  // namespace sirtaki::local_updates
