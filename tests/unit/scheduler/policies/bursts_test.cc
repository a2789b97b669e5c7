// AutoPolicy on links that let small payloads pass faster than larger ones.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>

#include "scheduler/policies/auto_policy.h"
#include "tests/unit/scheduler/policies/link_policy_test.h"

namespace sirtaki::scheduler {
namespace {

// A net of 1 MiB, whose compressed gradients pass through the burst of a shaper.
class SmallNetTest : public LinkPolicyTest {
 protected:
  SmallNetTest() {
    infos_.clear();
    profile_.ready_us.clear();
    profile_.need_us.clear();
    for (int i = 0; i < 4; ++i) {
      add("layer" + std::to_string(i) + ".weight", {256, 256}, 35'000 - 10'000 * i);
    }
    StepProfile link;
    link.latency_ns = 100'000;
    link.bytes_per_second = 12'500'000;
    make("auto");
    now_ = controller_->first(link, now_).value();
  }

  std::int64_t sent() const {
    std::int64_t bytes = 0;
    for (const PlannedTensor& tensor : now_) {
      bytes += tensor.wire_bytes_of(tensor.numel);
    }
    return bytes;
  }

  // One profile over a link that carries payloads up to `burst` bytes at once and others at 12.5 MB/s, but reads fast.
  bool profile_with_burst(std::int64_t burst) {
    const std::int64_t took_us = step_us(sent() > burst ? 12'500'000 : 10'000'000'000);
    profile_.bytes_per_second = 10'000'000'000;
    profile_.step_us = took_us;
    return consider();
  }
};

TEST_F(SmallNetTest, BurstsDoNotProveThatTheLinkIsFast) {
  const std::int64_t before = sent();
  ASSERT_LT(before, 300'000);
  int milder = 0;
  for (int i = 0; i < 200; ++i) {
    profile_with_burst(before);
    EXPECT_LE(sent(), 2 * before) << i << ": " << controller_->last_decision();
    milder += sent() > before ? 1 : 0;
  }
  EXPECT_GT(milder, 0) << "a trial";
  EXPECT_LT(milder, 12) << "and seldom, because it proved wrong";
}

TEST_F(SmallNetTest, ADenseTrialThatProvedWrongIsSeldomRepeated) {
  // Everything but dense gradients passes through the burst.
  const std::int64_t burst = (std::int64_t{1} << 20) - 1;
  int dense = 0;
  for (int i = 0; i < 400; ++i) {
    profile_with_burst(burst);
    dense += all_dense() ? 1 : 0;
  }
  EXPECT_GT(dense, 0);
  EXPECT_LT(dense, 8) << "and left at the first profile";
}

TEST_F(SmallNetTest, ALinkThatHasBecomeFastIsFoundLevelByLevel) {
  std::int64_t before = sent();
  for (int i = 0; i < 60; ++i) {
    profile_with_burst(std::int64_t{1} << 40);
    EXPECT_LE(sent(), 5 * before) << i;
    before = sent();
  }
  EXPECT_TRUE(all_dense()) << controller_->last_decision();
}

}  // namespace
}  // namespace sirtaki::scheduler
