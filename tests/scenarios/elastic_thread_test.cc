// An elastic job in one process, with real threads and sockets: ranks are lost, and the survivors go on as fewer ranks
// over the same connections.
#include <gtest/gtest.h>

#include <algorithm>
#include <condition_variable>
#include <functional>
#include <latch>
#include <mutex>
#include <thread>
#include <vector>

#include "runtime/base/config/config_load.h"
#include "runtime/base/version.h"
#include "runtime/engine/epoch/control_line.h"
#include "runtime/engine/session/session.h"
#include "runtime/hub/coordinator_server.h"
#include "tests/world/seeds.h"

namespace sirtaki::engine {
namespace {

using namespace std::chrono_literals;

// The coordinator of a job, and what it tells its owner.
class Hub {
 public:
  Hub(int size, int min, const std::string& silence = "30s") : all(size), size_(size) {
    ConfigSources sources;
    sources.program = "elastic.min = " + std::to_string(min) + "\nelastic.silence = \"" + silence + "\"\n";
    config = load_config(sources).value();
    secret = rendezvous::Secret::generate().value();
    hub::CoordinatorServerOptions options = hub::coordinator_options(*config);
    options.server.size = size;
    options.server.secret = secret;
    hub::CoordinatorServerEvents events;
    events.on_survived = [this](const hub::Survived& survived) {
      note("slot " + std::to_string(survived.slot) + " survived by " + std::to_string(survived.remaining) +
           " as epoch " + std::to_string(survived.next.value));
    };
    events.on_over = [this](const Status& why) { note("over: " + why.to_string()); };
    server_ = hub::CoordinatorServer::start(std::move(options), std::move(events)).value();
  }

  std::string address() const { return "127.0.0.1:" + std::to_string(server_->port()); }
  int size() const { return size_; }
  void report_exit(Rank slot, const std::string& what) { server_->report_exit(slot, what); }
  // Waits until as many events have come and returns them sorted: some have no order.
  std::vector<std::string> events(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 20s, [&] { return events_.size() >= count; });
    std::vector<std::string> sorted = events_;
    std::ranges::sort(sorted);
    return sorted;
  }

  std::shared_ptr<const Config> config;
  rendezvous::Secret secret;
  std::latch all;  // for a program that waits for the other ranks, which have what they need of it then

 private:
  void note(std::string event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }

  const int size_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
  std::unique_ptr<hub::CoordinatorServer> server_;
};

// A process of the job, as DefaultSession has it.
class Process {
 public:
  Process(Hub& hub, Rank slot) : hub_(hub), slot_(slot) {}

  // Connects and joins the first epoch.
  Status init() {
    SRT_TRY(connect());
    return open();
  }
  Status connect() {
    SRT_ASSIGN(line_, ControlLine::connect(*hub_.config, hub_.address(), hub_.secret, {}));
    return {};
  }
  Status regroup() {
    session_->drop();
    return open();
  }
  Status open() {
    while (true) {
      JobSpec job{slot_, hub_.size(), hub_.address(), hub_.secret};
      job.line = line_;
      auto opened = Session::open(hub_.config, std::move(job), {});
      if (opened || opened.status().code() != Code::kRanksChanged) {
        session_ = opened ? *std::move(opened) : nullptr;
        return opened.status();
      }
    }
  }
  // Ends like a process that is killed: its sockets close.
  void die() {
    if (session_) {
      session_->drop();
      session_.reset();
    }
    line_.reset();
  }
  void shutdown() { session_->close(); }

  // Sums a number that tells which processes take part.
  Status sum(float& total) {
    float value = static_cast<float>(1 << slot_);
    OpSpec spec;
    spec.name = "members";
    spec.reduce_op = ReduceOp::kSum;
    spec.input = {reinterpret_cast<std::byte*>(&value), 1, DType::kF32, {}};
    spec.output = {reinterpret_cast<std::byte*>(&total), 1, DType::kF32, {}};
    spec.dims = {1};
    std::vector<OpSpec> ops;
    ops.push_back(std::move(spec));
    SRT_ASSIGN(const auto ids, session_->submit(std::move(ops)));
    Status status = *session_->wait(ids.front(), Duration(-1));
    session_->release(ids.front());
    return status;
  }
  // Opens a stream of one tensor, whose gradient tells which processes take part.
  Status open_stream(std::uint64_t first_step) {
    StreamSpec spec;
    spec.name = "gradients";
    spec.tensors.push_back({"weight", {1}, {}, DType::kF32, {}});
    spec.reduce_op = ReduceOp::kSum;
    spec.first_step = first_step;
    SRT_ASSIGN(stream_, session_->open_stream(std::move(spec), 20s));
    return {};
  }
  void submit() {
    gradient_ = static_cast<float>(1 << slot_);
    const StreamHandle stream = session_->stream(stream_);
    EXPECT_TRUE(stream.ready(0, {reinterpret_cast<std::byte*>(&gradient_), 1, DType::kF32, {}}, false).ok());
    EXPECT_TRUE(stream.finish().ok());
  }
  Status step() {
    submit();
    return *session_->stream(stream_).wait(Duration(-1));
  }
  float gradient() const { return gradient_; }
  // After regroup(): returns whether the step in progress counts.
  bool committed() { return line_->take_committed().contains(stream_); }
  // Works until the epoch has ended and returns its error.
  Status work() {
    while (true) {
      float total = 0;
      if (Status status = sum(total); !status.ok()) {
        return status;
      }
    }
  }

  Session& session() { return *session_; }
  ControlLine& line() { return *line_; }
  Rank slot() const { return slot_; }

 private:
  Hub& hub_;
  const Rank slot_;
  std::shared_ptr<ControlLine> line_;
  float gradient_ = 0;
  StreamId stream_;
  std::unique_ptr<Session> session_;
};

// Runs a program on each rank, on a thread of its own.
void run(Hub& hub, const std::function<void(Process&)>& program) {
  std::vector<std::jthread> threads;
  for (Rank slot = 0; slot < hub.size(); ++slot) {
    threads.emplace_back([&, slot] {
      Process process(hub, slot);
      program(process);
    });
  }
}

bool contains(const Status& status, const std::string& part) {
  return std::string(status.text()).find(part) != std::string::npos;
}

// Expects that the present epoch consists of these slots, in this order.
void expect_members(Process& process, const std::vector<Rank>& slots) {
  float expected = 0;
  for (const Rank slot : slots) {
    expected += static_cast<float>(1 << slot);
  }
  ASSERT_EQ(process.session().membership().size(), static_cast<int>(slots.size()));
  EXPECT_EQ(slots[static_cast<std::size_t>(process.session().rank())], process.slot());
  float total = 0;
  const Status status = process.sum(total);
  EXPECT_TRUE(status.ok()) << status.to_string();
  EXPECT_EQ(total, expected);
}

class LostRankTest : public testing::TestWithParam<Rank> {};

TEST_P(LostRankTest, TheOthersGoOnAsFewerRanks) {
  const Rank victim = GetParam();
  Hub hub(4, 2);
  std::vector<Rank> rest = {0, 1, 2, 3};
  std::erase(rest, victim);
  run(hub, [&](Process& process) {
    const Status opened = process.init();
    ASSERT_TRUE(opened.ok()) << opened.to_string();
    expect_members(process, {0, 1, 2, 3});
    hub.all.arrive_and_wait();
    if (process.slot() == victim) {
      return process.die();
    }
    const Status lost = process.work();
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    EXPECT_EQ(lost.blame().rank, victim);
    EXPECT_TRUE(contains(lost, "rank " + std::to_string(victim) + " (host ")) << lost.text();
    EXPECT_TRUE(contains(lost, "; 3 ranks go on as epoch 2")) << lost.text();
    float total = 0;
    EXPECT_EQ(process.sum(total).to_string(), lost.to_string());
    const Status regrouped = process.regroup();
    ASSERT_TRUE(regrouped.ok()) << regrouped.to_string();
    expect_members(process, rest);
    process.shutdown();
  });
  const std::vector<std::string> events = hub.events(2);
  ASSERT_EQ(events.size(), 2U);
  EXPECT_EQ(events[0].substr(0, 17), "over: shut down: ") << events[0];
  EXPECT_EQ(events[1], "slot " + std::to_string(victim) + " survived by 3 as epoch 2");
}

INSTANTIATE_TEST_SUITE_P(EachRank, LostRankTest, testing::Values(0, 2, 3));

// Where a rank is lost.
enum class Place { kBetweenSteps, kInItsStep, kTwoInTheirSteps };

class LostStepTest : public testing::TestWithParam<Place> {};

// Steps of the survivors end in the same way, whatever the loss meets: all count or none.
TEST_P(LostStepTest, SurvivorsCommitTheSameSteps) {
  constexpr int kSteps = 3;
  for (std::uint64_t round = 0; round < world::last_seed(20); ++round) {
    Hub hub(4, 1);
    std::mutex mutex;
    std::vector<int> committed;
    const auto note = [&](int steps) {
      const std::lock_guard lock(mutex);
      committed.push_back(steps);
    };
    run(hub, [&](Process& process) {
      ASSERT_EQ(process.init().to_string(), "ok");
      ASSERT_EQ(process.open_stream(0).to_string(), "ok");
      hub.all.arrive_and_wait();
      const bool victim = process.slot() == 1 || (process.slot() == 2 && GetParam() == Place::kTwoInTheirSteps);
      int steps = 0;
      Status status;
      while (status.ok()) {
        if (victim && steps == kSteps) {
          if (GetParam() != Place::kBetweenSteps) {
            process.submit();
          }
          return process.die();
        }
        status = process.step();
        steps += status.ok() ? 1 : 0;
      }
      EXPECT_EQ(status.code(), Code::kRanksChanged) << status.to_string();
      if (victim) {
        return process.die();  // the loss of the other victim has come first
      }
      ASSERT_EQ(process.regroup().to_string(), "ok");
      if (process.committed()) {
        EXPECT_EQ(process.gradient(), 15.0F);
        ++steps;
      }
      note(steps);
      ASSERT_EQ(process.open_stream(static_cast<std::uint64_t>(steps)).to_string(), "ok");
      EXPECT_EQ(process.step().to_string(), "ok");
      process.shutdown();
    });
    ASSERT_EQ(committed.size(), GetParam() == Place::kTwoInTheirSteps ? 2U : 3U);
    for (const int steps : committed) {
      EXPECT_EQ(steps, committed.front());
      EXPECT_GE(steps, kSteps - 1);  // a step that only the lost rank has passed is void
      EXPECT_LE(steps, GetParam() == Place::kBetweenSteps ? kSteps : kSteps + 1);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(EachPlace, LostStepTest,
                         testing::Values(Place::kBetweenSteps, Place::kInItsStep, Place::kTwoInTheirSteps));

// A step counts on a rank whose program has not waited for it, because another survivor has passed it.
TEST(ElasticTest, AStepThatOneRankHasPassedCountsOnAll) {
  Hub hub(3, 1);
  std::latch passed(1);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    ASSERT_EQ(process.open_stream(0).to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      process.submit();
    } else {
      EXPECT_EQ(process.step().to_string(), "ok");
    }
    if (process.slot() == 0) {
      passed.count_down();
    }
    if (process.slot() == 2) {
      passed.wait();
      return process.die();
    }
    EXPECT_EQ(process.session().await_failure(20s).code(), Code::kRanksChanged);
    ASSERT_EQ(process.regroup().to_string(), "ok");
    EXPECT_EQ(process.gradient(), 7.0F);  // of all three
    EXPECT_EQ(process.committed(), process.slot() == 1);
    process.shutdown();
  });
}

TEST(ElasticTest, LossesDuringARegroupAreLeftOutUntilOneRankIsLeft) {
  Hub hub(4, 1);
  std::latch both(2);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      return process.die();
    }
    EXPECT_EQ(process.work().code(), Code::kRanksChanged);
    if (process.slot() == 3) {
      return process.die();  // while the others wait for it
    }
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 2});
    both.arrive_and_wait();
    if (process.slot() == 0) {
      return process.die();
    }
    EXPECT_EQ(process.work().code(), Code::kRanksChanged);
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {2});
    process.shutdown();
  });
  EXPECT_EQ(hub.events(4).size(), 4U);
}

TEST(ElasticTest, TwoRanksLostAtOnceAreNamedByOneErrorAndLeftOut) {
  Hub hub(4, 2);
  std::mutex mutex;
  std::vector<std::string> errors;
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 0 || process.slot() == 2) {
      return process.die();
    }
    const Status lost = process.work();
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    {
      const std::lock_guard lock(mutex);
      errors.push_back(lost.to_string());
    }
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {1, 3});
    process.shutdown();
  });
  ASSERT_EQ(errors.size(), 2U);
  EXPECT_EQ(errors[0], errors[1]);
}

TEST(ElasticTest, ARankLostBetweenItsSeatAndTheDataConnectionsIsLeftOut) {
  Hub hub(3, 2);
  run(hub, [&](Process& process) {
    if (process.slot() != 1) {
      ASSERT_EQ(process.init().to_string(), "ok");
      expect_members(process, {0, 2});
      return process.shutdown();
    }
    ASSERT_EQ(process.connect().to_string(), "ok");
    rendezvous::JoinRequest request;
    request.rank = 1;
    request.size = 3;
    request.version = std::string(version());
    request.agreed_options = agreed_options(*hub.config);
    request.data_endpoints = {"127.0.0.1:1"};
    ASSERT_TRUE(process.line().client().join(request).ok());
    process.die();
  });
  EXPECT_EQ(hub.events(2).size(), 2U);
}

TEST(ElasticTest, TooFewRanksEndTheJobWithTheLosses) {
  Hub hub(2, 2);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 0) {
      return process.die();
    }
    const Status lost = process.work();
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    EXPECT_TRUE(contains(lost, "too few ranks: 1 of at least 2 (elastic.min)")) << lost.text();
    const Status regrouped = process.regroup();
    EXPECT_EQ(regrouped.code(), Code::kPeerLost) << regrouped.to_string();
    EXPECT_TRUE(contains(regrouped, "too few ranks: 1 of at least 2 (elastic.min); lost: rank 0 (host "))
        << regrouped.text();
  });
  ASSERT_EQ(hub.events(1).size(), 1U);
  EXPECT_EQ(hub.events(1)[0].substr(0, 28), "over: peer lost: too few ran");
}

TEST(ElasticTest, AProcessThatNeverComesIsLeftOut) {
  Hub hub(3, 2);
  run(hub, [&](Process& process) {
    if (process.slot() == 1) {
      return hub.report_exit(1, "exit code 1");
    }
    ASSERT_EQ(process.init().to_string(), "ok");
    expect_members(process, {0, 2});
    process.shutdown();
  });
  ASSERT_EQ(hub.events(2).size(), 2U);
  EXPECT_EQ(hub.events(2)[1], "slot 1 survived by 2 as epoch 1");
}

TEST(ElasticTest, AStoppedRankThatWakesUpHasNoPlaceAnyMore) {
  Hub hub(3, 1, "1s");
  std::latch regrouped(2);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    hub.all.arrive_and_wait();
    if (process.slot() == 1) {
      process.line().loop().post([&] { regrouped.wait(); });
      regrouped.wait();
      const Status given_up = process.session().await_failure(20s);
      EXPECT_EQ(given_up.code(), Code::kPeerLost) << given_up.to_string();
      const Status again = process.regroup();
      EXPECT_EQ(again.code(), Code::kPeerLost) << again.to_string();
      return;
    }
    const Status lost = process.session().await_failure(20s);
    EXPECT_EQ(lost.code(), Code::kRanksChanged) << lost.to_string();
    EXPECT_TRUE(contains(lost, "has been silent for")) << lost.text();
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 2});
    regrouped.count_down();
    process.shutdown();
  });
}

TEST(ElasticTest, ARankThatCannotContinueTheEpochStartsTheNextOneWithAll) {
  Hub hub(3, 2);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    expect_members(process, {0, 1, 2});
    hub.all.arrive_and_wait();
    if (process.slot() != 1) {
      const Status ended = process.work();
      EXPECT_EQ(ended.code(), Code::kRanksChanged) << ended.to_string();
      EXPECT_TRUE(contains(ended, "rank 1 cannot continue the epoch; 3 ranks go on as epoch 2")) << ended.text();
    }
    ASSERT_EQ(process.regroup().to_string(), "ok");
    expect_members(process, {0, 1, 2});
    process.shutdown();
  });
  EXPECT_EQ(hub.events(1).size(), 1U);
}

TEST(ElasticTest, ARankThatComesToTheEndOfTheProgramEndsTheJobForThoseWhoRegroup) {
  Hub hub(3, 1);
  std::latch done(1);
  run(hub, [&](Process& process) {
    ASSERT_EQ(process.init().to_string(), "ok");
    expect_members(process, {0, 1, 2});
    hub.all.arrive_and_wait();
    if (process.slot() == 0) {
      process.shutdown();
      return done.count_down();
    }
    done.wait();
    if (process.slot() == 1) {
      return process.die();
    }
    EXPECT_FALSE(process.work().ok());
    const Status ended = process.session().await_failure(20s);
    EXPECT_EQ(ended.code(), Code::kRanksChanged) << ended.to_string();
    EXPECT_TRUE(contains(ended, "; the job has come to its end")) << ended.text();
    EXPECT_EQ(process.regroup().code(), Code::kShutdown);
  });
}

}  // namespace
}  // namespace sirtaki::engine
