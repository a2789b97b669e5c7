// Urgent and bulk operations on the same links in virtual time, where every rank sends 25 MB/s.
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <vector>

#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {
namespace {

constexpr int kRanks = 4;
constexpr double kRate = 25e6;

WorldOptions slow_links() {
  WorldOptions options;
  options.local.bytes_per_second = kRate;
  return options;
}

double seconds(Duration time) {
  return std::chrono::duration<double>(time).count();
}

// One allreduce on all ranks, with its time until the last rank has finished.
struct Reduction {
  Reduction(World& world, std::uint64_t tag, std::size_t elements, std::int32_t priority)
      : world_(world), tag_(tag), priority_(priority), values_(kRanks, std::vector<float>(elements, 1.0F)) {}

  void start() {
    begin_ = now();
    for (Rank rank = 0; rank < kRanks; ++rank) {
      CollectiveArgs args;
      args.tag = OpTag(tag_);
      args.priority = priority_;
      args.in = std::as_bytes(std::span(values_[static_cast<std::size_t>(rank)]));
      args.out = std::as_writable_bytes(std::span(values_[static_cast<std::size_t>(rank)]));
      world_.at(rank).start(args, [this](const Status& status) {
        EXPECT_TRUE(status.ok()) << status.to_string();
        ++done_;
        end_ = now();
      });
    }
  }
  bool done() const { return done_ == kRanks; }
  double took() const { return seconds(end_ - begin_); }
  void expect_sums() const {
    for (const auto& values : values_) {
      EXPECT_EQ(values, std::vector<float>(values.size(), static_cast<float>(kRanks)));
    }
  }

 private:
  TimePoint now() const { return world_.link(0).loop().now(); }

  World& world_;
  const std::uint64_t tag_;
  const std::int32_t priority_;
  std::vector<std::vector<float>> values_;
  int done_ = 0;
  TimePoint begin_{};
  TimePoint end_{};
};

double wire_seconds(std::size_t elements) {
  return 2.0 * (kRanks - 1) / kRanks * 4.0 * static_cast<double>(elements) / kRate;
}

// Starts `second` when `first` has run for a tenth of its time, and waits for both.
void run_behind(World& world, Reduction& first, std::size_t elements, Reduction& second) {
  first.start();
  world.link(0).loop().after(Duration(static_cast<std::int64_t>(1e8 * wire_seconds(elements))),
                             [&second] { second.start(); });
  ASSERT_TRUE(world.wait([&] { return first.done() && second.done(); }));
  first.expect_sums();
  second.expect_sums();
}

TEST(Priority, AnUrgentReductionWaitsForAFragmentNotForBulk) {
  constexpr std::size_t kBulk = 4 << 20;
  constexpr std::size_t kUrgent = 16 * 1024;
  const auto alone_world = make_local_world(kRanks, slow_links());
  Reduction alone(*alone_world, 1, kBulk, 0);
  alone.start();
  ASSERT_TRUE(alone_world->wait([&] { return alone.done(); }));
  EXPECT_LT(alone.took(), 1.1 * wire_seconds(kBulk));

  const auto world = make_local_world(kRanks, slow_links());
  Reduction bulk(*world, 1, kBulk, 0);
  Reduction urgent(*world, 2, kUrgent, -1);
  run_behind(*world, bulk, kBulk, urgent);
  // Each half of the urgent operation may wait for a fragment of the bulk operation that is being sent.
  const double fragment = 64.0 * 1024 / kRate;
  EXPECT_LT(urgent.took(), wire_seconds(kUrgent) + 2.2 * fragment);
  EXPECT_LT(bulk.took(), 1.03 * alone.took());
}

TEST(Priority, ASmallOperationNeverOvertakesAnEarlierMoreUrgentOne) {
  constexpr std::size_t kUrgent = 1 << 20;
  constexpr std::size_t kSmall = 1024;
  const auto world = make_local_world(kRanks, slow_links());
  Reduction urgent(*world, 1, kUrgent, -5);
  Reduction small(*world, 2, kSmall, 3);
  run_behind(*world, urgent, kUrgent, small);
  // The small operation does not delay the urgent one: its bytes are sent only when a link has nothing more urgent.
  EXPECT_LT(urgent.took(), 1.03 * wire_seconds(kUrgent) + 64.0 * 1024 / kRate);
}

TEST(Priority, QueuedMessagesEndWhenTheirOperationIsCancelled) {
  const auto world = make_local_world(2, slow_links());
  std::vector<float> values(1 << 20, 1.0F);
  std::vector<Status> ends;
  CollectiveArgs args;
  args.kind = OpKind::kBroadcast;
  args.tag = OpTag(1);
  args.out = std::as_writable_bytes(std::span(values));
  world->at(0).start(args, [&](const Status& status) { ends.push_back(status); });
  world->link(0).loop().after(std::chrono::milliseconds(1),
                              [&] { world->at(0).cancel(OpTag(1), Status(Code::kAborted, "enough")); });
  ASSERT_TRUE(world->wait([&] { return ends.size() == 1; }));
  EXPECT_EQ(ends.front().code(), Code::kAborted);
}

}  // namespace
}  // namespace sirtaki::net::testing
