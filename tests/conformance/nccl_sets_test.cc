// Process sets over FakeNccl, whose kernels hold a GPU until those of all peers have arrived: three ranks that launch
// operations of three sets in different orders hang, and with OrderedDevice they do not, even if a rank stops or dies
// at any message.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <functional>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/net/device/nccl/nccl_collectives.h"
#include "runtime/net/device/ordered_device.h"
#include "runtime/net/link/inproc_link.h"
#include "tests/conformance/collectives_worlds.h"
#include "tests/conformance/fake_nccl.h"
#include "tests/unit/device/fake_device.h"
#include "tests/unit/net/device/nccl/ids.h"
#include "tests/world/seeds.h"

namespace sirtaki::net::testing {
namespace {

using device::testing::FakeDevice;
using nccl::NcclCollectives;
using Ranks = std::vector<Rank>;

constexpr int kRanks = 3;
const std::array<Ranks, 3> kSets = {Ranks{0, 1}, Ranks{1, 2}, Ranks{0, 2}};

LoggerOptions silent() {
  LoggerOptions options;
  options.level = LogLevel::kOff;
  return options;
}

// The fate of a rank when so many messages have been sent.
struct Fault {
  enum class What { kNone, kStop, kDie } what = What::kNone;
  Rank rank = 0;
  int message = 0;
};

// Three ranks on one loop.
class Job {
 public:
  struct Member {
    FakeDevice device;
    std::unique_ptr<InprocEndpoint> link;
    std::unique_ptr<NcclCollectives> made;
    NcclCollectives* collectives = nullptr;
    std::unique_ptr<OrderedDevice> ordered;
    std::array<DeviceCollectives*, kSets.size()> sets{};
    std::size_t outcomes = 0;
    std::size_t started = 0;
    std::map<std::uint64_t, float> memory;
    std::map<std::uint64_t, Status> ends;
  };

  explicit Job(const Fault& fault = {}) : fault_(fault) {
    LocalOptions local;
    local.fate = [this](Rank, const Envelope&, std::size_t) {
      if (++messages_ == fault_.message) {
        loop_.post([this] { break_rank(); });
      }
      return MessageFate::kDeliver;
    };
    group_ = InprocGroup::create(kRanks, std::move(local));
    nccl::NcclOptions options;
    options.size = kRanks;
    options.timeout = std::chrono::seconds(2);
    options.end_timeout = std::chrono::seconds(20);
    for (; options.rank < kRanks; ++options.rank) {
      Member& member = at(options.rank);
      member.device.be_slow();
      member.link = group_->endpoint(options.rank, loop_);
      auto made = NcclCollectives::create({loop_, nccl_.api(), member.device, ids_, log_}, options);
      EXPECT_TRUE(made);
      member.made = std::move(*made);
      member.collectives = member.made.get();
    }
  }
  ~Job() {
    for (Member& member : members_) {
      member.ordered.reset();
      member.made.reset();
    }
    server_.reset();
    for (Member& member : members_) {
      member.link.reset();
    }
    run();
  }
  Job(const Job&) = delete;
  Job& operator=(const Job&) = delete;

  Member& at(Rank rank) { return members_[static_cast<std::size_t>(rank)]; }
  void add(Rank rank, std::size_t set, LaunchSet number) {
    const Ranks& ranks = kSets[set];
    const auto place = static_cast<Rank>(std::ranges::find(ranks, rank) - ranks.begin());
    at(rank).collectives->add_set(number, "set " + std::to_string(set), {place, static_cast<int>(ranks.size())}, ids_);
  }
  // Lets all ranks ask for all of their sets, each in another order, and calls `opened` for each answer.
  void open_in_order(const std::function<void(Rank rank, std::size_t set, const SetOutcome&)>& opened) {
    constexpr OpTag kTag(1000000);
    const auto broken = [](const Status& why) { ADD_FAILURE() << why.to_string(); };
    server_ = std::make_unique<LaunchServer>(*at(0).link, LaunchServerOptions{kTag}, broken);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      Member& member = at(rank);
      member.ordered = std::make_unique<OrderedDevice>(*member.link, std::move(member.made),
                                                       rank == 0 ? server_.get() : nullptr, kTag, broken);
      for (std::size_t i = 0; i < kSets.size(); ++i) {
        const std::size_t set = (i + static_cast<std::size_t>(rank)) % kSets.size();
        if (std::ranges::count(kSets[set], rank) > 0) {
          member.ordered->open_set(
              kSets[set], 1, [this, rank, set](LaunchSet number) { add(rank, set, number); },
              [&member, rank, set, opened](const SetOutcome& outcome) {
                ++member.outcomes;
                member.sets[set] = outcome.device;
                opened(rank, set, outcome);
              });
        }
      }
    }
  }
  // Starts a sum of the number of the rank, plus 1.
  void start(Rank rank, DeviceCollectives& collectives, DeviceWork work, std::uint64_t tag) {
    Member& member = at(rank);
    ++member.started;
    float& memory = member.memory[tag];
    memory = static_cast<float>(rank + 1);
    CollectiveArgs args;
    args.tag = OpTag(tag);
    args.in = args.out = std::as_writable_bytes(std::span(&memory, 1));
    collectives.start_work(std::move(args), std::move(work),
                           [&member, tag](Status status) { member.ends.emplace(tag, std::move(status)); });
  }
  bool all_end(std::size_t each) {
    return loop_.run([&] {
      return std::ranges::all_of(members_, [each](const Member& member) { return member.ends.size() == each; });
    });
  }
  // Runs until nothing is left to do.
  void run() {
    loop_.run([] { return false; });
  }
  int messages() const { return messages_; }
  Loop& loop() { return loop_; }
  bool run_until(const std::function<bool()>& done) { return loop_.run(done); }

 private:
  void break_rank() {
    const Status cause(Code::kAborted, "a fault");
    if (fault_.what == Fault::What::kDie) {
      group_->kill(fault_.rank, cause);
    } else if (at(fault_.rank).ordered) {
      at(fault_.rank).ordered->abort(cause);
    }
  }

  const Fault fault_;
  int messages_ = 0;
  ManualLoop loop_;
  FakeNccl nccl_;
  nccl::testing::LocalIds ids_{loop_};
  Logger log_{silent(), stderr_sink()};
  std::shared_ptr<InprocGroup> group_;
  std::unique_ptr<LaunchServer> server_;
  std::array<Member, kRanks> members_;
};

TEST(NcclSets, RanksThatLaunchInDifferentOrdersHang) {
  Job job;
  int connected = 0;
  for (std::size_t set = 0; set < kSets.size(); ++set) {
    for (const Rank rank : kSets[set]) {
      const auto number = static_cast<LaunchSet>(kFirstProcessSet + set);
      job.add(rank, set, number);
      job.at(rank).collectives->connect_set(number, [&](const Status& status) { connected += status.ok() ? 1 : 0; });
    }
  }
  ASSERT_TRUE(job.run_until([&] { return connected == 2 * static_cast<int>(kSets.size()); }));
  // Each rank begins with the set that it shares with the next one.
  for (const auto& [rank, sets] : {std::pair(0, std::array{0U, 2U}), {1, {1U, 0U}}, {2, {2U, 1U}}}) {
    for (const unsigned set : sets) {
      DeviceWork work;
      work.set = kFirstProcessSet + set;
      job.start(rank, *job.at(rank).collectives, std::move(work), set);
    }
  }
  ASSERT_TRUE(job.all_end(2));
  for (Rank rank = 0; rank < kRanks; ++rank) {
    EXPECT_EQ(job.at(rank).ends.begin()->second.code(), Code::kTimeout);
  }
}

TEST(NcclSets, WithOneOrderTheyEnd) {
  Job job;
  int open = 0;
  job.open_in_order([&](Rank, std::size_t, const SetOutcome& outcome) { open += outcome.device != nullptr ? 1 : 0; });
  ASSERT_TRUE(job.run_until([&] { return open == 2 * static_cast<int>(kSets.size()); }));
  constexpr std::uint64_t kEach = 20;
  std::mt19937_64 random(7);
  for (Rank rank = 0; rank < kRanks; ++rank) {
    std::vector<std::pair<std::size_t, std::uint64_t>> operations;
    for (std::size_t set = 0; set < kSets.size(); ++set) {
      for (std::uint64_t i = 0; i < kEach && std::ranges::count(kSets[set], rank) > 0; ++i) {
        operations.emplace_back(set, 100 * set + i);
      }
    }
    std::ranges::shuffle(operations, random);
    for (const auto& [set, tag] : operations) {
      job.loop().after(std::chrono::microseconds(random() % 2000),
                       [&job, rank, set, tag] { job.start(rank, *job.at(rank).sets[set], {}, tag); });
    }
  }
  ASSERT_TRUE(job.all_end(2 * kEach));
  for (std::size_t set = 0; set < kSets.size(); ++set) {
    for (const Rank rank : kSets[set]) {
      for (std::uint64_t i = 0; i < kEach; ++i) {
        EXPECT_TRUE(job.at(rank).ends.at(100 * set + i).ok()) << job.at(rank).ends.at(100 * set + i).to_string();
        EXPECT_EQ(job.at(rank).memory.at(100 * set + i), static_cast<float>(kSets[set][0] + kSets[set][1] + 2));
      }
    }
  }
}

// Runs two sums of each set. Returns the number of messages.
int run_with(const Fault& fault) {
  Job job(fault);
  job.open_in_order([&job](Rank rank, std::size_t set, const SetOutcome& outcome) {
    for (std::uint64_t i = 0; i < 2 && outcome.device != nullptr; ++i) {
      job.start(rank, *outcome.device, {}, 100 * set + i);
    }
  });
  job.run();
  for (Rank rank = 0; rank < kRanks; ++rank) {
    const Job::Member& member = job.at(rank);
    EXPECT_EQ(member.outcomes, 2U) << "rank " << rank << " waits for its sets";
    EXPECT_EQ(member.ends.size(), member.started) << "rank " << rank << " waits for an operation";
    for (const auto& [tag, end] : member.ends) {
      const bool itself = fault.what != Fault::What::kNone && rank == fault.rank && end.text() == "a fault";
      EXPECT_TRUE(end.ok() || itself || end.code() == Code::kPeerLost) << rank << ": " << end.to_string();
    }
  }
  return job.messages();
}

TEST(NcclSets, ARankMayStopOrDieAtAnyMessage) {
  const int messages = run_with({});
  EXPECT_GT(messages, 15);
  std::uint64_t index = 0;
  for (const Fault::What what : {Fault::What::kStop, Fault::What::kDie}) {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      for (int message = 1; message <= messages && !::testing::Test::HasFailure(); ++message) {
        if (!world::has_case(index++)) {
          continue;
        }
        SCOPED_TRACE((what == Fault::What::kStop ? "stop of rank " : "death of rank ") + std::to_string(rank) +
                     " at message " + std::to_string(message));
        run_with({what, rank, message});
      }
    }
  }
}

}  // namespace
}  // namespace sirtaki::net::testing
