// OrderedSetsTest: OrderedDeviceTest with process sets. Used by ordered_sets_test.cc and ordered_sets_end_test.cc.
#pragma once

#include <map>
#include <optional>
#include <utility>
#include <vector>

#include "tests/unit/net/device/ordered_device_fixture.h"

namespace sirtaki::net {

class OrderedSetsTest : public OrderedDeviceTest {
 protected:
  using Kind = LaunchWord::Kind;
  using Ranks = std::vector<Rank>;
  using Tags = std::vector<std::uint64_t>;
  struct Open {
    std::optional<SetOutcome> outcome;
    std::vector<LaunchSet> added;
  };

  // Lets a rank ask for a set.
  void ask(Rank rank, const Ranks& ranks, int version = 7) {
    Open& open = opens_[{rank, ranks}];
    at(rank).ordered->open_set(
        ranks, version, [&open](LaunchSet set) { open.added.push_back(set); },
        [&open](const SetOutcome& outcome) {
          EXPECT_FALSE(open.outcome) << "once";
          open.outcome = outcome;
        });
  }
  void open_on_all(const Ranks& ranks) {
    for (const Rank rank : ranks) {
      ask(rank, ranks);
    }
    run();
    finish_all();
    run();
    for (const Rank rank : ranks) {
      ASSERT_TRUE(outcome(rank, ranks) && outcome(rank, ranks)->device) << rank;
    }
  }
  const std::optional<SetOutcome>& outcome(Rank rank, const Ranks& ranks) { return opens_[{rank, ranks}].outcome; }
  DeviceCollectives& set(Rank rank, const Ranks& ranks) { return *outcome(rank, ranks)->device; }
  void start_in(Rank rank, const Ranks& ranks, std::uint64_t tag, std::int32_t priority = 1) {
    CollectiveArgs args;
    args.kind = OpKind::kBarrier;
    args.tag = OpTag(tag);
    args.priority = priority;
    Member& member = at(rank);
    set(rank, ranks).start(std::move(args), [&member, tag](Status status) {
      member.ended.push_back({OpTag(tag), std::move(status)});
    });
  }
  void start_on_set(const Ranks& ranks, std::uint64_t tag) {
    for (const Rank rank : ranks) {
      start_in(rank, ranks, tag);
    }
  }
  // Sends words to rank 1 as if they were decisions.
  void say_to_1(std::vector<LaunchWord> words) {
    const std::vector<std::byte> message = encode_launch_words(words);
    at(0).link->send({1, OpTag(1000000), 1, kLaunchWordsCheck, 0}, message, [](const Status& /*sent*/) {});
    run();
  }
  Tags launched(Rank rank) {
    Tags tags;
    for (const OpTag tag : at(rank).inner->tags) {
      tags.push_back(tag.value);
    }
    return tags;
  }

  std::map<std::pair<Rank, Ranks>, Open> opens_;
};

}  // namespace sirtaki::net
