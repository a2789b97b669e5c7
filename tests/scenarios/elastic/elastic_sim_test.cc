// Simulated elastic jobs (tests/world/elastic/sim_job.h), in which ranks are lost, given up, leave and join at every
// event of a step, of a recovery and of an admission, and at random events.
//
// A kill is tried behind every event that runs in the victim: between two of them nothing changes in it, and the others
// go on until they wait for it, or hear of its end, which comes at several times.
#include <gtest/gtest.h>

#include <array>
#include <chrono>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "tests/world/elastic/sim_job.h"
#include "tests/world/seeds.h"

namespace sirtaki::world {
namespace {

using namespace std::chrono_literals;
using Faults = std::vector<FaultAt>;

constexpr std::size_t kFirstLosses = 8;  // first losses of each rank, in tests of two losses

// Returns about as many events as a job without faults has.
std::uint64_t events_of_a_job(int ranks) {
  return 120 * static_cast<std::uint64_t>(ranks * (ranks - 1)) + 120;
}

// A run tries each stride-th event for a second loss, by ranks from 2 on: 1 or primes, so that all of these events meet
// first losses. round_of_run() chooses with which event it begins: `stride` rounds one after the other try all.
using Strides = std::array<std::uint64_t, 3>;

// Returns SIRTAKI_TEST_ROUND, or else the minute, so that each commit is tested in another round.
std::uint64_t round_of_run() {
  const char* given = std::getenv("SIRTAKI_TEST_ROUND");
  const auto now = std::chrono::system_clock::now().time_since_epoch();
  return given != nullptr ? std::strtoull(given, nullptr, 10)
                          : static_cast<std::uint64_t>(std::chrono::floor<std::chrono::minutes>(now).count());
}

// Delays of messages: without them, all that was sent arrives, in any order; with them, a killed rank takes along the
// messages that are under way from it to other ranks.
struct Pace {
  Duration data;
  Duration control;
};
constexpr Pace kPaces[] = {{0us, 0us}, {500us, 2ms}, {500us, 0us}, {0us, 2ms}};

JobOptions job_of(int ranks, std::uint64_t seed, const Pace& pace) {
  JobOptions options;
  options.ranks = ranks;
  options.seed = seed;
  options.data_delay = pace.data;
  options.control_delay = pace.control;
  return options;
}

std::string text_of(const JobOptions& options, const Faults& faults) {
  std::string text = "seed " + std::to_string(options.seed) + ", " + std::to_string(options.ranks) +
                     " ranks, at least " + std::to_string(options.min) + ", delays " +
                     std::to_string(options.data_delay.count()) + " and " +
                     std::to_string(options.control_delay.count());
  static constexpr const char* kFaults[] = {" is killed", " vanishes", " is given up", " has to leave",
                                            " and the next one are apart"};
  for (const FaultAt& at : faults) {
    text += "\n  before event " + std::to_string(at.event) + " slot " + std::to_string(at.slot) +
            kFaults[static_cast<int>(at.fault)] + ", noticed after " + std::to_string(at.notice.count());
  }
  return text;
}

void expect_well(const JobOptions& options, const Faults& faults) {
  SimJob job(options);
  const std::string problem = job.run(faults);
  EXPECT_EQ(problem, "") << text_of(options, faults) << "\n" << job.describe();
}

// Returns the loss of `slot` behind an event, in a way that depends on `variant`.
FaultAt loss(Rank slot, std::uint64_t event, std::uint64_t variant) {
  constexpr Duration kNotices[] = {0us, 300us, 5ms};
  return {event + 1, slot, variant % 4 == 3 ? JobFault::kVanish : JobFault::kKill, kNotices[variant % 3]};
}

TEST(ElasticSim, AJobWithoutFaultsTrainsToItsEnd) {
  for (std::uint64_t seed = 1; seed <= 12; ++seed) {
    JobOptions options = job_of(1 + static_cast<int>(seed % 4), seed, kPaces[seed / 4 % 4]);
    options.changes = seed % 2 == 0;
    options.metric = seed % 3 == 0;
    expect_well(options, {});
  }
}

class EveryEvent : public testing::TestWithParam<int> {};

// Kills each rank behind each of its events in [from, to), as long as nothing has failed.
void kill_each(const JobOptions& options, std::uint64_t from, std::uint64_t to, const SimJob& whole) {
  std::uint64_t index = 0;
  for (Rank victim = 0; victim < options.ranks && !testing::Test::HasFailure(); ++victim) {
    for (const std::uint64_t event : whole.events_of(victim, from, to)) {
      if (has_case(++index)) {
        expect_well(options, {loss(victim, event, index)});
      }
      if (testing::Test::HasFailure()) {
        return;
      }
    }
  }
}

TEST_P(EveryEvent, OfAStepMayBeTheLastOneOfARank) {
  for (std::uint64_t seed = 1; seed <= 6; ++seed) {
    const JobOptions options = job_of(GetParam(), seed, kPaces[seed % 4]);
    SimJob whole(options);
    ASSERT_EQ(whole.run({}), "");
    kill_each(options, whole.counted_at(0, options.ranks), whole.counted_at(1, options.ranks), whole);
  }
}

// Behind such an event two ranks lose each other: the others go on with one of them.
TEST(ElasticSim, ALinkMayBeLostBehindEveryEventOfAStep) {
  for (const int ranks : {3, 4}) {
    for (std::uint64_t seed = 1; seed <= 2; ++seed) {
      const JobOptions options = job_of(ranks, seed, kPaces[seed % 4]);
      SimJob whole(options);
      ASSERT_EQ(whole.run({}), "");
      for (std::uint64_t event = whole.counted_at(0, ranks); event < whole.counted_at(1, ranks); ++event) {
        if (has_case(event)) {
          expect_well(options, {{event, static_cast<Rank>(event) % ranks, JobFault::kApart, {}}});
        }
        if (testing::Test::HasFailure()) {
          return;
        }
      }
    }
  }
}

// Also those in which the first epoch forms and the streams open.
TEST_P(EveryEvent, OfTheStartMayBeTheLastOneOfARank) {
  const JobOptions options = job_of(GetParam(), 3, kPaces[1]);
  SimJob whole(options);
  ASSERT_EQ(whole.run({}), "");
  kill_each(options, 0, whole.counted_at(0, options.ranks), whole);
}

// The second loss comes behind each event from the first one to the next step that counts on all ranks, or a share of
// these, and the first one behind events spread over a step.
void lose_two(const JobOptions& options, const Strides& strides) {
  const std::uint64_t stride = strides.at(static_cast<std::size_t>(options.ranks) - 2);
  const std::uint64_t round = round_of_run();
  if (stride > 1) {
    std::cout << "second losses: one of " << stride << " events, SIRTAKI_TEST_ROUND=" << round << "\n";
  }
  SimJob whole(options);
  ASSERT_EQ(whole.run({}), "");
  const std::uint64_t from = whole.counted_at(0, options.ranks);
  const std::uint64_t to = whole.counted_at(1, options.ranks);
  std::uint64_t index = 0;
  for (Rank first = 0; first < options.ranks; ++first) {
    const std::vector<std::uint64_t> events = whole.events_of(first, from, to);
    for (std::size_t at = static_cast<std::size_t>(first); at < events.size(); at += 1 + events.size() / kFirstLosses) {
      const FaultAt one = loss(first, events[at], at);
      SimJob once(options);
      ASSERT_EQ(once.run({one}), "") << text_of(options, {one}) << "\n" << once.describe();
      for (Rank second = 0; second < options.ranks; ++second) {
        for (const std::uint64_t event : once.events_of(second, one.event, once.recovered_at())) {
          if ((++index + round) % stride == 0 && has_case(index / stride)) {
            expect_well(options, {one, loss(second, event, index / stride)});
          }
          if (testing::Test::HasFailure()) {
            return;
          }
        }
      }
    }
  }
}

// A run tries all events of two and three ranks, and a fifth of those of four; less under a sanitizer.
TEST_P(EveryEvent, OfARecoveryMayBeTheLastOneOfAnotherRank) {
  for (std::uint64_t seed = 4; seed <= 5; ++seed) {
    lose_two(job_of(GetParam(), seed, kPaces[seed - 4]), kSanitized ? Strides{1, 5, 17} : Strides{1, 1, 5});
  }
}

// The second one may be the process that comes for the first. A run tries all events of two and three ranks, and a
// thirteenth of those of four; less under a sanitizer.
TEST_P(EveryEvent, OfAnAdmissionMayBeTheLastOneOfARank) {
  for (std::uint64_t seed = 6; seed <= 7; ++seed) {
    JobOptions options = job_of(GetParam(), seed, kPaces[seed - 6]);
    options.max = options.ranks;
    options.changes = true;
    options.steps = 6;
    lose_two(options, kSanitized ? Strides{7, 29, 61} : Strides{1, 1, 13});
  }
}

INSTANTIATE_TEST_SUITE_P(Ranks, EveryEvent, testing::Values(2, 3, 4));

// Draws a job and faults of at most all but one of its ranks. Two ranks may lose each other in a job of three or more:
// one of them is given up, unless that is half of all who are left. So others are lost only as long as three stay.
Faults draw(std::uint64_t seed, JobOptions& options) {
  std::mt19937_64 random(seed * 7919);
  const auto below = [&random](std::uint64_t count) { return random() % count; };
  options = job_of(2 + static_cast<int>(below(3)), seed, kPaces[below(4)]);
  options.metric = below(3) == 0;
  options.replan = below(2) == 0;
  options.steps = 4;
  if (below(2) == 0) {
    options.changes = true;
    options.max = options.ranks;
  }
  const bool parts = options.ranks > 2 && below(3) == 0;
  Faults faults;
  for (std::uint64_t count = 1 + below(static_cast<std::uint64_t>(options.ranks - (parts ? 2 : 1))); count > 0;
       --count) {
    FaultAt fault;
    fault.event = below(events_of_a_job(options.ranks));
    fault.slot = static_cast<Rank>(below(static_cast<std::uint64_t>(options.ranks)));
    fault.fault = static_cast<JobFault>(below(options.changes ? 4 : 3));
    fault.notice = Duration(static_cast<std::int64_t>(below(5'000'000)));
    faults.push_back(fault);
  }
  if (parts) {
    faults[below(faults.size())].fault = JobFault::kApart;
  }
  return faults;
}

TEST(ElasticSim, FaultsAtRandomEventsBreakNoInvariant) {
  for (std::uint64_t seed = 1; seed <= last_seed(1000) && !testing::Test::HasFailure(); ++seed) {
    JobOptions options;
    const Faults faults = draw(seed, options);
    expect_well(options, faults);
  }
}

}  // namespace
}  // namespace sirtaki::world
