#include "runtime/engine/stream/unused_param_sync.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <utility>
#include <vector>

#include "runtime/engine/common/tags.h"

namespace sirtaki::engine {
namespace {

constexpr StreamId kFlagsStream(3);

// Keeps started operations until the test ends them.
class HeldFlags : public net::Collectives {
 public:
  net::Caps caps() const override { return {}; }
  Rank rank() const override { return 0; }
  int size() const override { return 2; }
  void start(net::CollectiveArgs args, Done done) override {
    args_.emplace(args.tag.value, args);
    done_.emplace(args.tag.value, std::move(done));
  }
  void cancel(net::TagGroup tags, Status cause) override {
    for (const auto& [tag, args] : args_) {
      if (tags.contains(OpTag(tag))) {
        end(OpTag(tag), cause);
      }
    }
  }
  void abort(Status /*cause*/) override {}

  void end(OpTag tag, const Status& status) {
    if (auto node = done_.extract(tag.value); !node.empty()) {
      node.mapped()(status);
    }
  }
  bool has(std::uint32_t attempt, std::uint64_t step) const { return done_.contains(tag(attempt, step).value); }
  // Returns the flags that this rank contributes, by tensor.
  std::vector<int> flags(std::uint32_t attempt, std::uint64_t step) const {
    std::vector<int> flags;
    for (const std::byte flag : args_.at(tag(attempt, step).value).in) {
      flags.push_back(static_cast<int>(flag));
    }
    return flags;
  }
  std::size_t in_flight() const { return done_.size(); }
  static OpTag tag(std::uint32_t attempt, std::uint64_t step) {
    return stream_tag(kFlagsStream, attempt, kFlagsPosition, step);
  }

 private:
  std::map<std::uint64_t, net::CollectiveArgs> args_;
  std::map<std::uint64_t, Done> done_;
};

class UnusedParamSyncTest : public testing::Test {
 protected:
  // Reports that step `step` of `attempt` is void.
  void abort(std::uint32_t attempt, std::uint64_t step) {
    flags_.on_aborted({kFlagsStream, attempt + 1, step, true, Status(Code::kAborted, "given up")});
  }

  HeldFlags net_;
  UnusedParamSync flags_{kFlagsStream, 2, net_};
};

TEST_F(UnusedParamSyncTest, StepsThatAreOverAreAnsweredFromTheOneAskedForOn) {
  flags_.completed(0, 4, false);
  flags_.completed(0, 5, true);
  EXPECT_FALSE(flags_.over());
  flags_.on_flags({kFlagsStream, 0, 4});
  ASSERT_EQ(net_.in_flight(), 2U);
  EXPECT_EQ(net_.flags(0, 4), (std::vector<int>{1, 1}));
  EXPECT_EQ(net_.flags(0, 5), (std::vector<int>{0, 0}));
  EXPECT_FALSE(flags_.idle());
  net_.end(HeldFlags::tag(0, 4), {});
  net_.end(HeldFlags::tag(0, 5), {});
  EXPECT_TRUE(flags_.over());
}

TEST_F(UnusedParamSyncTest, LaterStepsBelongToTheStream) {
  flags_.completed(0, 4, false);
  flags_.on_flags({kFlagsStream, 0, 5});
  EXPECT_EQ(net_.in_flight(), 0U);
}

TEST_F(UnusedParamSyncTest, AnAttemptIsNotTakenForAnother) {
  flags_.completed(1, 7, false);
  flags_.on_flags({kFlagsStream, 0, 2});
  EXPECT_EQ(net_.in_flight(), 0U);
}

TEST_F(UnusedParamSyncTest, AVoidStepTakesItsFlagsAndLaterOnesWithIt) {
  flags_.completed(0, 4, false);
  flags_.completed(0, 5, false);
  flags_.on_flags({kFlagsStream, 0, 4});
  abort(0, 5);
  EXPECT_TRUE(net_.has(0, 4));
  EXPECT_FALSE(net_.has(0, 5));
}

// A rank that is slow may still be in step 4 of the attempt before, however many were given up since.
TEST_F(UnusedParamSyncTest, AStepOfALaterAttemptThatIsGivenUpLeavesEarlierFlags) {
  flags_.completed(0, 4, false);
  flags_.on_flags({kFlagsStream, 0, 4});
  abort(0, 5);
  abort(1, 0);
  EXPECT_TRUE(net_.has(0, 4));
  EXPECT_FALSE(flags_.idle());
  flags_.completed(2, 0, false);
  abort(2, 0);
  EXPECT_TRUE(net_.has(0, 4));
}

TEST_F(UnusedParamSyncTest, NoFlagsAreExchangedInAVoidStep) {
  flags_.completed(0, 0, false);
  abort(0, 0);
  EXPECT_TRUE(flags_.over());
  flags_.on_flags({kFlagsStream, 0, 0});
  EXPECT_EQ(net_.in_flight(), 0U);
}

TEST(UnusedParamSync, ExchangesInFlightMayOutliveIt) {
  HeldFlags net;
  {
    UnusedParamSync flags(kFlagsStream, 2, net);
    flags.completed(0, 0, false);
    flags.on_flags({kFlagsStream, 0, 0});
  }
  EXPECT_EQ(net.flags(0, 0), (std::vector<int>{1, 1}));
  net.end(HeldFlags::tag(0, 0), {});
  EXPECT_EQ(net.in_flight(), 0U);
}

}  // namespace
}  // namespace sirtaki::engine
