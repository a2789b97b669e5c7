// Explores the orders of events of a small elastic job with faults (roster_world.h) and checks the invariants:
// survivors commit a step all or not at all (V1), an epoch has one membership and numbers grow (V2), members with state
// are equal (V4), the job goes on if enough processes live (V6), no fresh process replaces the state of the job (V7),
// no member lacks a step that counts and comes back as a new process (V10), and members that have to leave do so as
// soon as they can, and not before (leaving).
#include <gtest/gtest.h>

#include <random>
#include <unordered_map>

#include "tests/unit/control/elastic/roster_world.h"

namespace sirtaki::control {
namespace {

using Moves = std::vector<World::Move>;

std::string text_of(const Moves& path) {
  std::string text;
  for (const World::Move& move : path) {
    text += move.text() + "\n";
  }
  return text;
}

RosterOptions options(int min, int start = 3, int max = kProcesses) {
  RosterOptions result;
  result.start = start;
  result.min = min;
  result.max = max;
  result.linger = Duration::zero();
  return result;
}

// Visits every state that some order of moves and at most `faults` faults leads to, until one is found broken.
class Explorer {
 public:
  void explore(const World& world, int faults) {
    auto [found, added] = seen_.try_emplace(std::hash<std::string>()(world.key()), -1);
    if (found->second >= faults) {
      return;
    }
    found->second = faults;
    const Moves moves = world.moves();
    if (moves.empty()) {
      ++ends_;
      check(world.check_end(), world);
    }
    for (const World::Move& move : moves) {
      follow(world, move, faults);
    }
    if (faults > 0) {
      for (const World::Move& fault : world.faults()) {
        follow(world, fault, faults - 1);
      }
    }
  }
  std::size_t states() const { return seen_.size(); }
  std::size_t ends() const { return ends_; }

 private:
  void follow(const World& world, const World::Move& move, int faults) {
    if (failed_) {
      return;
    }
    const std::size_t depth = path_.size();
    path_.push_back(move);
    World next = world;
    next.make(move);
    // Without faults to come, a state with one move needs no look.
    for (Moves moves = next.moves(); faults == 0 && moves.size() == 1; moves = next.moves()) {
      path_.push_back(moves.front());
      next.make(moves.front());
    }
    check(next.broken(), next);
    if (!failed_) {
      explore(next, faults);
    }
    path_.resize(depth);
  }
  void check(const std::string& problem, const World& world) {
    if (!problem.empty() && !std::exchange(failed_, true)) {
      ADD_FAILURE() << problem << "\n" << world.describe() << "\nafter:\n" << text_of(path_);
    }
  }

  std::unordered_map<std::size_t, int> seen_;  // hash of a state -> faults left when it was explored
  Moves path_;
  std::size_t ends_ = 0;
  bool failed_ = false;
};

TEST(RosterExplorer, TwoFaultsAtAnyMessageBreakNoInvariant) {
  Explorer explorer;
  explorer.explore(World(options(1), 2, Order::kReduced), 2);
  EXPECT_GT(explorer.states(), 100'000U);
  EXPECT_GT(explorer.ends(), 10'000U);
}

TEST(RosterExplorer, TwoFaultsBreakNoInvariantIfTheJobWaitsForMoreRanks) {
  for (const int min : {2, 3}) {
    Explorer explorer;
    explorer.explore(World(options(min), 1, Order::kReduced), 2);
    EXPECT_GT(explorer.states(), 10'000U);
  }
}

TEST(RosterExplorer, TwoCandidatesBreakNoInvariant) {
  for (const int min : {1, 2}) {
    Explorer explorer;
    explorer.explore(World(options(min, 2), 2, Order::kReduced), 2);
    EXPECT_GT(explorer.states(), 10'000U);
  }
}

TEST(RosterExplorer, ASpareBreaksNoInvariant) {
  for (const int min : {1, 2, 3}) {
    Explorer explorer;
    explorer.explore(World(options(min, 3, 3), 1, Order::kReduced), 2);
    EXPECT_GT(explorer.states(), 10'000U);
  }
}

TEST(RosterExplorer, MessagesThatArriveInAnyOrderBreakNoInvariant) {
  for (std::uint32_t seed = 1; seed <= 20'000 && !testing::Test::HasFailure(); ++seed) {
    std::mt19937 random(seed);
    const int start = seed % 4 == 0 ? 2 : 3;
    World world(options(1 + static_cast<int>(seed % static_cast<std::uint32_t>(start)), start), 3, Order::kAny);
    Moves path;
    std::uint32_t faults = seed % 5;
    for (Moves moves = world.moves(); !moves.empty() && world.broken().empty(); moves = world.moves()) {
      const Moves candidates = faults > 0 && random() % 12 == 0 ? world.faults() : Moves();
      faults -= candidates.empty() ? 0U : 1U;
      const Moves& from = candidates.empty() ? moves : candidates;
      path.push_back(from[random() % from.size()]);
      world.make(path.back());
    }
    const std::string problem = world.broken().empty() ? world.check_end() : world.broken();
    EXPECT_EQ(problem, "") << "seed " << seed << "\n" << world.describe() << "\nafter:\n" << text_of(path);
  }
}

}  // namespace
}  // namespace sirtaki::control
