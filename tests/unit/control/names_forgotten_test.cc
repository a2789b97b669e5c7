// Names without further uses, on the coordinator and on ranks that exchange messages with it.
#include <gtest/gtest.h>

#include <deque>
#include <utility>
#include <variant>
#include <vector>

#include "runtime/control/coordinator.h"
#include "runtime/control/names.h"
#include "tests/unit/control/ops.h"

namespace sirtaki::control {
namespace {

constexpr std::size_t kNames = 64;

// Ranks whose operations are over as soon as they begin.
class Job {
 public:
  explicit Job(int size) : coordinator_(size, {}, {}, {false, kNames}), ranks_(static_cast<std::size_t>(size)) {}

  Names& rank(Rank r) { return ranks_[static_cast<std::size_t>(r)]; }
  const Coordinator& coordinator() const { return coordinator_; }

  // One use on each of `users`; the number it has there.
  std::uint64_t use(const std::string& name, const std::vector<Rank>& users) {
    std::uint64_t number = 0;
    for (const Rank r : users) {
      EXPECT_FALSE(rank(r).is_blocked(name));
      const auto submitted = rank(r).submit(name, meta({2}));
      number = submitted.use;
      if (submitted.announce) {
        coordinator_.on_message(r, *submitted.announce, at({}));
      }
      in_flight_.push_back({r, name, submitted.use});
    }
    deliver_all();
    return number;
  }
  void finish() {
    for (const auto& [r, name, number] : std::exchange(in_flight_, {})) {
      rank(r).finished(name, number);
    }
  }
  void deliver_all() {
    for (auto sends = coordinator_.take_actions().sends; !sends.empty(); sends = coordinator_.take_actions().sends) {
      for (const Coordinator::Send& send : sends) {
        for (const Rank r : send.to.ranks()) {
          deliver(r, send.message);
        }
      }
    }
  }

 private:
  struct InFlight {
    Rank rank;
    std::string name;
    std::uint64_t use;
  };

  void deliver(Rank r, const CoordinatorMessage& message) {
    if (const auto* agreed = std::get_if<Agreed>(&message)) {
      (void)rank(r).on_agreed(*agreed);
      finish_of(r, agreed->name);
    } else if (const auto* ask = std::get_if<AskUnused>(&message)) {
      coordinator_.on_message(r, rank(r).on_ask_unused(*ask), at({}));
    } else if (const auto* forgotten = std::get_if<Forgotten>(&message)) {
      rank(r).on_forgotten(*forgotten);
    }
  }
  void finish_of(Rank r, const std::string& name) {
    std::erase_if(in_flight_, [&](const InFlight& one) {
      const bool its = one.rank == r && one.name == name;
      if (its) {
        rank(r).finished(name, one.use);
      }
      return its;
    });
  }

  Coordinator coordinator_;
  std::vector<Names> ranks_;
  std::vector<InFlight> in_flight_;
};

TEST(ForgottenNames, AHundredThousandNamesTakeNoMoreMemoryThanAFew) {
  Job job(2);
  for (int i = 0; i < 100'000; ++i) {
    job.use("metric" + std::to_string(i), {0, 1});
    if (i % 16 == 0) {
      job.use("loss", {0, 1});
      job.finish();
    }
    ASSERT_LE(job.coordinator().names(), 2 * kNames);
    ASSERT_LE(job.rank(0).size(), 2 * kNames);
    ASSERT_LE(job.rank(1).size(), 2 * kNames);
  }
  EXPECT_EQ(job.use("loss", {0, 1}), 6250U) << "a name in use was forgotten";
}

TEST(ForgottenNames, BeginAnewOnAllRanks) {
  Job job(2);
  job.use("old", {0, 1});
  for (std::size_t i = 0; i < 4 * kNames; ++i) {
    job.use("new" + std::to_string(i), {0, 1});
  }
  EXPECT_TRUE(job.rank(0).submit("old", meta({2})).announce);
  EXPECT_EQ(job.rank(1).submit("old", meta({2})).use, 0U);
}

TEST(ForgottenNames, NotWhileARankIsAheadOfTheOthers) {
  Job job(2);
  job.use("weights", {0, 1});
  job.use("weights", {0});  // as the root of a broadcast, which needs no other rank
  job.finish();
  for (std::size_t i = 0; i < 8 * kNames; ++i) {
    job.use("new" + std::to_string(i), {0, 1});
  }
  EXPECT_EQ(job.use("weights", {1}), 1U);
}

TEST(ForgottenNames, OfAProcessSetConcernItsRanksAlone) {
  Job job(3);
  for (std::size_t i = 0; i < 8 * kNames; ++i) {
    job.use("metric" + std::to_string(i) + " of ranks 0, 2", {0, 2});
  }
  EXPECT_EQ(job.rank(1).size(), 0U);
  EXPECT_LE(job.rank(2).size(), 2 * kNames);
}

}  // namespace
}  // namespace sirtaki::control
