#include "runtime/local_updates/controller/spec.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <functional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace sirtaki::local_updates {
namespace {

IntervalOptions parsed(const std::string& text) {
  auto options = parse_interval(text);
  EXPECT_TRUE(options) << options.status().to_string();
  return options ? std::move(*options) : IntervalOptions{};
}

TEST(IntervalSpec, EveryPolicyCanBeNamedAndItsDefaultsAreInRange) {
  for (const PolicyInfo& info : policies()) {
    SCOPED_TRACE(info.name);
    EXPECT_EQ(parsed(std::string(info.name)).policy, info.id);
    EXPECT_FALSE(info.help.empty());
    for (const KeyInfo& key : info.keys) {
      EXPECT_LE(key.least, key.initial) << key.name;
      EXPECT_LE(key.initial, key.most) << key.name;
    }
  }
}

TEST(IntervalSpec, AutoIsWhatOptionsAreWithoutAText) {
  const IntervalOptions options = parsed("auto");
  const IntervalOptions plain;
  EXPECT_EQ(options.policy, plain.policy);
  EXPECT_EQ(options.base, plain.base);
  EXPECT_EQ(options.most, plain.most);
  EXPECT_EQ(options.warmup, plain.warmup);
  EXPECT_EQ(options.delay, plain.delay);
  EXPECT_EQ(options.alpha_pico, plain.alpha_pico);
  EXPECT_EQ(options.link.gain_permille, plain.link.gain_permille);
  EXPECT_EQ(options.may_compress, plain.may_compress);
  EXPECT_TRUE(options.guard.on);
}

TEST(IntervalSpec, ANumberIsAFixedInterval) {
  const IntervalOptions options = parsed(" 12 : delay=3 ");
  EXPECT_EQ(options.policy, PolicyId::kFixed);
  EXPECT_EQ(options.base, 12);
  EXPECT_EQ(options.most, 12);
  EXPECT_EQ(options.delay, 3);
  EXPECT_EQ(options.warmup, 0);
  EXPECT_EQ(parsed("fixed:steps=5").base, 5);
}

TEST(IntervalSpec, KeysSetOptions) {
  const IntervalOptions options = parsed("auto:base=2,max=32,gain=20%,compress=on,warmup=100,guard=off");
  EXPECT_EQ(options.base, 2);
  EXPECT_EQ(options.most, 32);
  EXPECT_EQ(options.link.gain_permille, 200);
  EXPECT_EQ(options.link.rate_factor, kRateFactorSgd);
  EXPECT_EQ(parsed("auto:optimizer=sgd").link.rate_factor, kRateFactorSgd);
  EXPECT_EQ(parsed("auto:optimizer=adam").link.rate_factor, kRateFactorOthers);
  EXPECT_EQ(parsed("auto:optimizer=other").link.rate_factor, kRateFactorOthers);
  EXPECT_EQ(parsed("auto:optimizer=sgd").link.most_rate_permille, kMostRateSgd);
  EXPECT_EQ(parsed("auto:optimizer=adam").link.most_rate_permille, kMostRateOthers);
  EXPECT_TRUE(options.may_compress);
  EXPECT_EQ(options.warmup, 100);
  EXPECT_FALSE(options.guard.on);
  EXPECT_EQ(parsed("divergence:theta=2.5").theta_pico, 2'500'000'000'000);
  EXPECT_EQ(parsed("qsr:alpha=0.0175").alpha_pico, 17'500'000'000);
  EXPECT_EQ(parsed("qsr:warmup=auto").warmup, IntervalOptions::kByItself);
  EXPECT_EQ(parsed("diloco").base, 100);
  EXPECT_EQ(parsed("diloco").delay, 0);
}

TEST(IntervalSpec, ABaseThatWasNotGivenGivesWay) {
  for (const std::string name : {"auto", "qsr", "divergence"}) {
    const IntervalOptions options = parsed(name + ":max=2");
    EXPECT_EQ(options.base, 2) << name;
    EXPECT_EQ(options.most, 2) << name;
    EXPECT_FALSE(parse_interval(name + ":max=2,base=4")) << name;
  }
  EXPECT_EQ(parsed("adacomm:max=2").base, 16) << "what stands under the root is no interval";
}

TEST(IntervalSpec, ErrorsNameWhatIsWrongAndTheNearestName) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"adacom", {"local updates 'adacom'", "unknown interval policy", "did you mean adacomm?", "a number of steps"}},
      {"", {"unknown interval policy ''"}},
      {"-3", {"unknown interval policy '-3'"}},
      {"0", {"fixed: steps is '0'", "from 1 to 4096"}},
      {"99999999999999999999", {"fixed: steps is '9999"}},
      {"qsr:bse=3", {"qsr has no key 'bse'", "did you mean base?", "its keys are base, max, alpha"}},
      {"qsr:gain=5%", {"qsr has no key 'gain'"}},
      {"8:steps=4", {"key 'steps' is given twice"}},
      {"auto:base=65", {"base is 65; it must be 1 to 64, the longest interval"}},
      {"qsr:alpha=-1", {"alpha is '-1'", "a number such as 0.0175"}},
      {"auto:warmup=ever", {"warmup is 'ever'", "auto or a whole number"}},
      {"auto:warmup=-1", {"warmup is '-1'", "auto or a whole number from 0"}},
      {"divergence:base=1", {"base is '1'", "from 2 to 4096"}},
      {"divergence:max=1", {"max is '1'", "from 2 to 4096"}},
      {"auto:", {"auto: '' is not key=value"}},
      {"8:", {"fixed: '' is not key=value"}},
  };
  for (const auto& [text, parts] : cases) {
    const auto options = parse_interval(text);
    ASSERT_FALSE(options) << text;
    EXPECT_EQ(options.status().code(), Code::kInvalidArgument);
    for (const std::string& part : parts) {
      EXPECT_NE(options.status().text().find(part), std::string_view::npos)
          << part << " in " << options.status().text();
    }
  }
}

TEST(IntervalSpec, OptionsOfAProgramAreCheckedToo) {
  IntervalOptions options;
  options.policy = PolicyId::kCallable;
  EXPECT_FALSE(check(options).ok()) << "no function";
  options.hook = [](const RoundStats&, const Interval&) { return std::int64_t{4}; };
  EXPECT_TRUE(check(options).ok());
  options.policy = PolicyId::kQsr;
  EXPECT_FALSE(check(options).ok()) << "no policy would call it";
  options = {};
  options.policy = PolicyId::kDivergence;
  options.base = 1;
  EXPECT_NE(check(options).text().find("base is 1; it must be 2 to 64"), std::string_view::npos);
  for (const std::vector<std::int64_t>& bits : std::vector<std::vector<std::int64_t>>{
           {}, {32'000}, {8'000, 32'000}, {32'000, 0}, std::vector<std::int64_t>(9, 1)}) {
    options = {};
    options.link.bits_permille = bits;
    EXPECT_NE(check(options).text().find("bits"), std::string_view::npos);
  }
  options = {};
  options.guard.norm_last = Action::kRollBack;
  EXPECT_FALSE(check(options).ok());
  options = {};
  options.guard.variance_warmup_rounds = options.guard.variance_window + 1;
  EXPECT_NE(check(options).text().find("variance_warmup_rounds is 21; it must be 1 to 20"), std::string_view::npos);
}

TEST(IntervalSpec, EveryOptionIsInTheDigest) {
  const std::vector<std::function<void(IntervalOptions&)>> edits = {
      [](IntervalOptions& o) { o.policy = PolicyId::kQsr; },
      [](IntervalOptions& o) { ++o.warmup; },
      [](IntervalOptions& o) { ++o.lr_warmup; },
      [](IntervalOptions& o) { ++o.base; },
      [](IntervalOptions& o) { ++o.most; },
      [](IntervalOptions& o) { ++o.alpha_pico; },
      [](IntervalOptions& o) { ++o.theta_pico; },
      [](IntervalOptions& o) { ++o.delay; },
      [](IntervalOptions& o) { o.may_compress = true; },
      [](IntervalOptions& o) { ++o.link.gain_permille; },
      [](IntervalOptions& o) { ++o.link.rate_factor; },
      [](IntervalOptions& o) { ++o.link.most_rate_permille; },
      [](IntervalOptions& o) { ++o.link.band_permille; },
      [](IntervalOptions& o) { ++o.link.margin_permille; },
      [](IntervalOptions& o) { ++o.link.bits_permille[1]; },
      [](IntervalOptions& o) { ++o.link.drain_encoding; },
      [](IntervalOptions& o) { o.guard.on = false; },
      [](IntervalOptions& o) { o.guard.residuals = true; },
      [](IntervalOptions& o) { ++o.guard.norm.z_permille; },
      [](IntervalOptions& o) { ++o.guard.norm.clip_permille; },
      [](IntervalOptions& o) { ++o.guard.norm_resets; },
      [](IntervalOptions& o) { o.guard.norm_last = Action::kEvict; },
      [](IntervalOptions& o) { ++o.guard.variance_window; },
      [](IntervalOptions& o) { ++o.guard.loss_noise_permille; },
      [](IntervalOptions& o) { ++o.guard.late_window_us; },
      [](IntervalOptions& o) { ++o.guard.pause_steps; },
      [](IntervalOptions& o) { ++o.guard.calm_rounds; },
  };
  std::set<std::uint64_t> digests = {digest(IntervalOptions{})};
  for (const auto& edit : edits) {
    IntervalOptions options;
    edit(options);
    EXPECT_TRUE(digests.insert(digest(options)).second);
    EXPECT_EQ(digest(options), digest(IntervalOptions(options)));
  }
}

}  // namespace
}  // namespace sirtaki::local_updates
