// Faults of callers of NCCL, each of which a property of FakeNccl shows.
#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <future>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "runtime/net/device/nccl/nccl_collectives.h"
#include "runtime/net/device/ordered_device.h"
#include "runtime/net/link/inproc_link.h"
#include "runtime/rendezvous/link/asio_loop.h"
#include "tests/conformance/collectives_worlds.h"
#include "tests/conformance/fake_nccl.h"
#include "tests/unit/device/fake_device.h"
#include "tests/unit/net/device/nccl/ids.h"

namespace sirtaki::net::testing {
namespace {

using device::testing::FakeDevice;
using nccl::NcclCollectives;

constexpr int kRanks = 2;
constexpr std::size_t kElements = 8;

LoggerOptions silent() {
  LoggerOptions options;
  options.level = LogLevel::kOff;
  return options;
}

DeviceWork work(bool on_host, bool more = false) {
  DeviceWork work;
  work.on_host = on_host;
  work.more = more;
  return work;
}

// Two ranks of one host, each with a device, on one loop.
class Ranks {
 public:
  struct Member {
    FakeDevice device;
    std::unique_ptr<NcclCollectives> collectives;
    std::map<std::uint64_t, std::array<float, kElements>> memory;
    std::map<std::uint64_t, Status> ends;
  };

  // On the loop, as all methods.
  explicit Ranks(Loop& loop) : loop_(loop), ids_(loop), host_ids_(loop) {
    nccl::NcclOptions options;
    options.size = options.host_size = kRanks;
    options.credit_bytes = 8 * kElements * sizeof(float);
    options.timeout = std::chrono::seconds(2);
    options.end_timeout = std::chrono::seconds(20);
    for (Member& member : members_) {
      member.device.be_slow();
      auto made = NcclCollectives::create({loop_, nccl_.api(), member.device, ids_, log_, &host_ids_}, options);
      EXPECT_TRUE(made);
      member.collectives = std::move(*made);
      options.host_rank = ++options.rank;
    }
  }

  Member& at(Rank rank) { return members_[static_cast<std::size_t>(rank)]; }
  void connect() {
    for (Member& member : members_) {
      member.collectives->connect_set(kJobSet, [this](const Status& status) { connected += status.ok() ? 1 : 0; });
    }
  }
  // Starts a sum of the number of the rank, plus 1.
  void start(Rank rank, std::uint64_t tag, DeviceWork how) { start(rank, tag, std::move(how), *at(rank).collectives); }
  void start(Rank rank, std::uint64_t tag, DeviceWork how, DeviceCollectives& collectives) {
    Member& member = at(rank);
    auto& memory = member.memory[tag];
    memory.fill(static_cast<float>(rank + 1));
    CollectiveArgs args;
    args.tag = OpTag(tag);
    args.in = args.out = std::as_writable_bytes(std::span(memory));
    collectives.start_work(std::move(args), std::move(how), [&member, tag](Status status) {
      EXPECT_FALSE(member.ends.contains(tag)) << "called twice";
      member.ends.emplace(tag, std::move(status));
    });
  }

  void start(Rank rank, CollectiveArgs args) {
    Member& member = at(rank);
    const std::uint64_t tag = args.tag.value;
    member.collectives->start(std::move(args),
                              [&member, tag](Status status) { member.ends.emplace(tag, std::move(status)); });
  }

  std::atomic<int> connected = 0;
  FakeNccl nccl_;

 private:
  Loop& loop_;
  nccl::testing::LocalIds ids_;
  nccl::testing::LocalIds host_ids_;
  Logger log_{silent(), stderr_sink()};
  std::array<Member, kRanks> members_;
};

class NcclFaults : public ::testing::Test {
 protected:
  ~NcclFaults() override {
    for (Rank rank = 0; rank < kRanks; ++rank) {
      ranks_.at(rank).collectives.reset();
    }
    loop_.run([] { return false; });
  }
  void connect() {
    ranks_.connect();
    ASSERT_TRUE(loop_.run([&] { return ranks_.connected == kRanks; }));
  }
  // Waits until all ranks have an end of each of these operations.
  bool ended(const std::vector<std::uint64_t>& tags) {
    return loop_.run([&] {
      for (Rank rank = 0; rank < kRanks; ++rank) {
        for (const std::uint64_t tag : tags) {
          if (!ranks_.at(rank).ends.contains(tag)) {
            return false;
          }
        }
      }
      return true;
    });
  }
  Status end(Rank rank, std::uint64_t tag) { return ranks_.at(rank).ends.at(tag); }

  ManualLoop loop_;
  Ranks ranks_{loop_};
};

// The event of an operation that is recorded before its work is on the stream would be over at once.
TEST_F(NcclFaults, WorkReachesTheStreamSomePollsAfterItsGroup) {
  connect();
  for (const int poll : {1, 2, 7}) {
    ranks_.nccl_.launch_at_poll(poll);
    const auto tag = static_cast<std::uint64_t>(poll);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      ranks_.start(rank, tag, {});
    }
    ASSERT_TRUE(ended({tag}));
    for (Rank rank = 0; rank < kRanks; ++rank) {
      EXPECT_TRUE(end(rank, tag).ok()) << end(rank, tag).to_string();
      EXPECT_EQ(ranks_.at(rank).memory[tag].front(), 3.0F) << "before the device is done";
    }
  }
}

// A kernel of one communicator cannot begin beside that of another one, which waits for a rank that has begun the
// other.
TEST_F(NcclFaults, ARankThatLaunchesInAnotherOrderHangs) {
  connect();
  ranks_.start(0, 1, work(true));
  ranks_.start(0, 2, work(false));
  ranks_.start(1, 2, work(false));
  ranks_.start(1, 1, work(true));
  ASSERT_TRUE(ended({1, 2}));
  EXPECT_EQ(end(0, 1).code(), Code::kTimeout);
  EXPECT_EQ(end(1, 2).code(), Code::kTimeout);
}

TEST_F(NcclFaults, GroupsThatDifferAreAnError) {
  connect();
  for (Rank rank = 0; rank < kRanks; ++rank) {
    ranks_.start(rank, 1, work(false, rank == 0));
    ranks_.start(rank, 2, work(false));
  }
  ASSERT_TRUE(ended({1, 2}));
  EXPECT_FALSE(end(0, 1).ok());
  EXPECT_FALSE(end(1, 2).ok());
}

class NcclSends : public NcclFaults, public ::testing::WithParamInterface<std::int64_t> {};

// Rank 0 has blocks of its own elements for itself and for rank 1, which expects so many from it.
TEST_P(NcclSends, MeetReceivesOfTheirSize) {
  constexpr std::uint64_t kTag = 10;
  const std::int64_t expected = GetParam();
  connect();
  for (Rank rank = 0; rank < kRanks; ++rank) {
    auto& memory = ranks_.at(rank).memory[kTag];
    CollectiveArgs args;
    args.kind = OpKind::kAlltoall;
    args.tag = OpTag(kTag);
    const bool first = rank == 0;
    args.send_counts = first ? std::vector<std::int64_t>{1, 3} : std::vector<std::int64_t>{0, 0};
    args.recv_counts = first ? std::vector<std::int64_t>{1, 0} : std::vector<std::int64_t>{expected, 0};
    const auto all = std::as_writable_bytes(std::span(memory));
    const auto bytes = [](std::int64_t count) { return static_cast<std::size_t>(count) * sizeof(float); };
    args.in = all.first(bytes(first ? 4 : 0));
    args.out = all.subspan(bytes(4), bytes(first ? 1 : expected));
    memory.fill(static_cast<float>(rank + 1));
    ranks_.start(rank, std::move(args));
  }
  ASSERT_TRUE(ended({kTag}));
  EXPECT_EQ(end(0, kTag).ok(), expected == 3) << end(0, kTag).to_string();
  EXPECT_EQ(end(1, kTag).ok(), expected != 2) << "a rank without blocks waits for none";
  if (expected == 3) {
    EXPECT_EQ(ranks_.at(1).memory[kTag], (std::array<float, kElements>{2, 2, 2, 2, 1, 1, 1, 2}));
  }
}

INSTANTIATE_TEST_SUITE_P(Sizes, NcclSends, ::testing::Values(3, 2, 0));

// NCCL writes the handle once more at the end of a connection, here by its abort.
TEST_F(NcclFaults, AHandleThatIsWrittenLateIsNotUsed) {
  nccl::testing::LocalIds ids(loop_);
  Logger log(silent(), stderr_sink());
  FakeDevice device;
  nccl::ThreadTeardown teardown(device, log, std::chrono::seconds(20));
  nccl::CommunicatorOptions options;
  options.size = kRanks;
  nccl::Communicator alone(loop_, ranks_.nccl_.api(), ids, teardown, log, options);
  alone.connect([](const Status& /*status*/) {});
  ASSERT_TRUE(loop_.run([&] { return alone.state() == nccl::Communicator::State::kConnecting; }));
  alone.abort({Code::kAborted, "test"});
  EXPECT_TRUE(wait_until([&] { return teardown.done(); }));
  alone.close([](const Status& /*status*/) {});
  EXPECT_TRUE(wait_until([&] { return teardown.done(); }));
  EXPECT_EQ(ranks_.nccl_.aborts(), 1);
}

// Two ranks that call NCCL themselves, over two communicators with a stream each and no order between the streams.
class NcclKernels : public ::testing::Test {
 protected:
  struct Member {
    FakeDevice device;
    std::array<nccl::CommHandle, 2> comms{};
    std::array<device::Stream, 2> streams;
    std::array<device::Event, 2> ends;
    std::array<float, 2> memory{};
  };

  NcclKernels() {
    for (std::size_t comm = 0; comm < 2; ++comm) {
      nccl::UniqueId id{};
      nccl_.api().get_unique_id(&id);
      for (int rank = 0; rank < kRanks; ++rank) {
        Member& member = at(rank);
        member.device.be_slow();
        member.streams[comm] = *member.device.make_stream(device::Priority::kHigh);
        member.ends[comm] = *member.device.make_event();
        nccl::Config config;
        nccl_.api().comm_init_rank_config(&member.comms[comm], kRanks, id, rank, &config);
      }
    }
  }
  ~NcclKernels() override {
    for (Member& member : members_) {
      for (const nccl::CommHandle comm : member.comms) {
        nccl_.api().comm_destroy(comm);
      }
    }
  }

  Member& at(int rank) { return members_[static_cast<std::size_t>(rank)]; }
  void launch(int rank, std::size_t comm) {
    const nccl::Api& api = nccl_.api();
    Member& member = at(rank);
    float* const memory = &member.memory[comm];
    api.group_start();
    api.all_reduce(memory, memory, 1, nccl::Element::kF32, nccl::Reduction::kSum, member.comms[comm],
                   member.streams[comm].native);
    api.group_end();
    nccl::Outcome state = nccl::Outcome::kInProgress;
    while (state == nccl::Outcome::kInProgress) {
      api.comm_get_async_error(member.comms[comm], &state);
    }
    EXPECT_EQ(state, nccl::Outcome::kSuccess);
    EXPECT_TRUE(member.device.record(member.ends[comm], member.streams[comm]).ok());
  }
  // Lets much time pass, and returns whether all four kernels have ended.
  bool all_end() {
    bool all = false;
    for (int i = 0; i < 100; ++i) {
      all = true;
      for (Member& member : members_) {
        for (const device::Event end : member.ends) {
          all = *member.device.done(end) && all;
        }
      }
    }
    return all;
  }

  FakeNccl nccl_;
  std::array<Member, kRanks> members_;
};

TEST_F(NcclKernels, InOneOrderTheyEnd) {
  for (const int rank : {0, 1}) {
    launch(rank, 0);
    launch(rank, 1);
  }
  EXPECT_TRUE(all_end());
}

TEST_F(NcclKernels, InTwoOrdersEachOccupiesItsDeviceForEver) {
  launch(0, 0);
  EXPECT_FALSE(all_end()) << "it begins";
  launch(0, 1);
  launch(1, 1);
  EXPECT_FALSE(all_end());
  launch(1, 0);
  EXPECT_FALSE(all_end());
}

// ---- OrderedDevice keeps the order and the groups equal ----

class OrderedNccl : public NcclFaults {
 protected:
  OrderedNccl() {
    constexpr OpTag kTag(1000000);
    for (Rank rank = 0; rank < kRanks; ++rank) {
      links_[static_cast<std::size_t>(rank)] = group_->endpoint(rank, loop_);
    }
    connect();
    server_ = std::make_unique<LaunchServer>(*links_[0], LaunchServerOptions{kTag, 4 * kElements * sizeof(float)},
                                             [](const Status&) {});
    for (Rank rank = 0; rank < kRanks; ++rank) {
      const auto at = static_cast<std::size_t>(rank);
      ordered_[at] = std::make_unique<OrderedDevice>(*links_[at], std::move(ranks_.at(rank).collectives),
                                                     rank == 0 ? server_.get() : nullptr, kTag,
                                                     [](const Status& why) { ADD_FAILURE() << why.to_string(); });
    }
  }
  ~OrderedNccl() override {
    ordered_ = {};
    server_.reset();
    links_ = {};
  }
  void start(Rank rank, std::uint64_t tag, bool on_host) {
    ranks_.start(rank, tag, work(on_host), *ordered_[static_cast<std::size_t>(rank)]);
  }
  void expect_sums(const std::vector<std::uint64_t>& tags) {
    ASSERT_TRUE(ended(tags));
    for (Rank rank = 0; rank < kRanks; ++rank) {
      for (const std::uint64_t tag : tags) {
        EXPECT_TRUE(end(rank, tag).ok()) << end(rank, tag).to_string();
        EXPECT_EQ(ranks_.at(rank).memory[tag].front(), 3.0F);
      }
    }
  }

  std::shared_ptr<InprocGroup> group_ = InprocGroup::create(kRanks);
  std::array<std::unique_ptr<InprocEndpoint>, kRanks> links_;
  std::unique_ptr<LaunchServer> server_;
  std::array<std::unique_ptr<OrderedDevice>, kRanks> ordered_;
};

TEST_F(OrderedNccl, RanksMayStartInDifferentOrders) {
  start(0, 1, true);
  start(0, 2, false);
  start(1, 2, false);
  start(1, 1, true);
  expect_sums({1, 2});
}

// A step of twelve partitions that become ready together costs three launches of at most four, not twelve; NCCL starts
// a thread for each.
TEST_F(OrderedNccl, AStepCostsALaunchForEachGroup) {
  std::vector<std::uint64_t> tags;
  for (std::uint64_t tag = 1; tag <= 12; ++tag) {
    tags.push_back(tag);
  }
  for (const Rank rank : {1, 0}) {
    for (const std::uint64_t tag : tags) {
      start(rank, tag, false);
    }
  }
  expect_sums(tags);
  EXPECT_EQ(ranks_.nccl_.groups(), kRanks * 3);
}

// Each rank gives NCCL no more than the credit, in the groups of rank 0: FakeNccl refuses others.
TEST_F(OrderedNccl, TheCreditHoldsTwoGroups) {
  constexpr std::size_t kGroup = 4 * kElements * sizeof(float);
  std::vector<std::uint64_t> tags;
  for (std::uint64_t tag = 1; tag <= 40; ++tag) {
    tags.push_back(tag);
  }
  for (const std::uint64_t tag : tags) {
    start(0, tag, false);
    start(1, 41 - tag, false);
  }
  std::array<std::size_t, kRanks> most{};
  const bool ended = loop_.run([&] {
    bool all = true;
    for (std::size_t rank = 0; rank < kRanks; ++rank) {
      const std::size_t bytes = static_cast<NcclCollectives&>(ordered_[rank]->inner()).bytes_in_flight();
      most[rank] = std::max(most[rank], bytes);
      all = all && ranks_.at(static_cast<Rank>(rank)).ends.size() == tags.size();
    }
    return all;
  });
  ASSERT_TRUE(ended);
  expect_sums(tags);
  EXPECT_EQ(most, (std::array<std::size_t, kRanks>{2 * kGroup, 2 * kGroup}));
}

// ---- aborts ----

// The stream of a rank holds work of two communicators, for which another rank never comes. An abort of one of them
// returns only after that of the other.
TEST(NcclAborts, TheLoopGoesOnWhileAbortsWaitForTheDevice) {
  rendezvous::AsioLoop loop("nccl-aborts");
  std::unique_ptr<Ranks> ranks;
  loop.run_sync([&] {
    ranks = std::make_unique<Ranks>(loop);
    ranks->connect();
  });
  ASSERT_TRUE(wait_until([&] { return ranks->connected == kRanks; }));
  loop.run_sync([&] {
    for (const bool on_host : {true, false}) {
      ranks->start(0, on_host ? 1 : 2, work(on_host));
    }
  });
  ASSERT_TRUE(wait_until([&] {
    bool queued = false;
    loop.run_sync([&] { queued = ranks->at(0).collectives->waiting() == 0; });
    return queued;
  }));
  loop.post([&] { ranks->at(0).collectives->abort({Code::kAborted, "test"}); });
  std::promise<void> promise;
  auto answered = promise.get_future();
  loop.post([&] { promise.set_value(); });
  const bool answers = answered.wait_for(std::chrono::seconds(10)) == std::future_status::ready;
  EXPECT_TRUE(answers) << "an abort blocks the loop; aborts that wait: " << ranks->nccl_.waiting_aborts();
  if (!answers) {
    ranks->nccl_.give_up();
  }
  std::atomic<bool> closed = false;
  loop.run_sync([&] {
    ranks->at(0).collectives->close([&](const Status& /*status*/) {
      closed = true;
      notify();
    });
  });
  EXPECT_TRUE(wait_until([&] { return closed.load(); }));
  EXPECT_EQ(ranks->nccl_.aborts(), 2);
  EXPECT_EQ(ranks->nccl_.waiting_aborts(), 0) << "each has ended the work for which the other waits";
  loop.run_sync([&] {
    const auto& ends = ranks->at(0).ends;
    EXPECT_TRUE(ends.size() == 2 && ends.at(1).text() == "test" && ends.at(2).text() == "test");
    for (Rank rank = 0; rank < kRanks; ++rank) {
      ranks->at(rank).collectives.reset();
    }
  });
  loop.stop();
}

}  // namespace
}  // namespace sirtaki::net::testing
