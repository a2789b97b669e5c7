#include "runtime/net/device/nccl/communicator.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <optional>

#include "tests/conformance/collectives_worlds.h"
#include "tests/unit/net/device/nccl/fake_nccl.h"
#include "tests/unit/net/device/nccl/ids.h"
#include "tests/unit/net/device/nccl/local_teardown.h"

namespace sirtaki::net::nccl {
namespace {

using net::testing::ManualLoop;
using testing::FakeNccl;
using testing::Lines;
using testing::LocalIds;
using testing::LocalTeardown;

using State = Communicator::State;

// The result of a callback; a second call fails the test.
class Answer {
 public:
  Done take() {
    return [this](Status status) {
      EXPECT_FALSE(status_.has_value()) << "called twice";
      status_ = std::move(status);
    };
  }
  bool has_value() const { return status_.has_value(); }
  Status status() const { return has_value() ? *status_ : Status(Code::kBug, "no answer"); }
  Code code() const { return status().code(); }

 private:
  std::optional<Status> status_;
};

class CommunicatorTest : public ::testing::Test {
 protected:
  CommunicatorTest() { make(); }
  ~CommunicatorTest() override {
    communicator_.reset();
    loop_.run([] { return false; });
  }

  void make(int max_ctas = 0) {
    CommunicatorOptions options;
    options.name = "job";
    options.size = 2;
    options.max_ctas = max_ctas;
    options.connect_timeout = std::chrono::seconds(2);
    options.slow_connect = std::chrono::seconds(1);
    options.call_timeout = std::chrono::seconds(1);
    communicator_ = std::make_unique<Communicator>(loop_, nccl_.api(), ids_, teardown_, log_, options);
  }
  // Runs until `answer` has a value.
  Status end(const Answer& answer) {
    EXPECT_TRUE(loop_.run([&] { return answer.has_value(); })) << "no answer";
    return answer.status();
  }
  void connect() {
    Answer answer;
    communicator_->connect(answer.take());
    const Status status = end(answer);
    ASSERT_TRUE(status.ok()) << status.to_string();
    ASSERT_TRUE(communicator_->ready());
  }
  static Communicator::Call all_reduce() {
    return [](const Api& api, CommHandle comm) {
      return api.all_reduce(nullptr, nullptr, 1, Element::kF32, Reduction::kSum, comm, nullptr);
    };
  }
  static std::vector<Communicator::Call> calls(int count) {
    std::vector<Communicator::Call> group;
    for (int i = 0; i < count; ++i) {
      group.push_back(all_reduce());
    }
    return group;
  }

  std::vector<std::string> lines_;
  Logger log_{LoggerOptions{}, std::make_unique<Lines>(lines_)};
  ManualLoop loop_;
  FakeNccl nccl_;
  LocalIds ids_{loop_};
  LocalTeardown teardown_;
  std::unique_ptr<Communicator> communicator_;
};

TEST_F(CommunicatorTest, ConnectsWithoutBlocking) {
  make(4);
  nccl_.polls = 7;
  nccl_.will_return("init", {Outcome::kInProgress});
  Answer answer;
  communicator_->connect(answer.take());
  EXPECT_FALSE(answer.has_value());
  EXPECT_TRUE(end(answer).ok());
  EXPECT_EQ(ids_.keys(), std::vector<std::string>{"job"});
  EXPECT_EQ(nccl_.config().blocking, 0);
  EXPECT_EQ(nccl_.config().max_ctas, 4);
  EXPECT_EQ(communicator_->state(), State::kReady);
}

TEST_F(CommunicatorTest, TimesOutWithoutAnId) {
  ids_.silent = true;
  Answer answer;
  communicator_->connect(answer.take());
  EXPECT_EQ(end(answer).code(), Code::kTimeout);
  EXPECT_NE(answer.status().text().find("exchange of its id"), std::string::npos) << answer.status().to_string();
  EXPECT_EQ(nccl_.count("init"), 0);
}

TEST_F(CommunicatorTest, PassesAFailedExchangeOn) {
  ids_.refusal = Status(Code::kPeerLost, "rank 1 is gone");
  Answer answer;
  communicator_->connect(answer.take());
  EXPECT_EQ(end(answer).code(), Code::kPeerLost);
}

TEST_F(CommunicatorTest, TimesOutIfRanksDoNotConnect) {
  nccl_.polls = -1;
  Answer answer;
  communicator_->connect(answer.take());
  const TimePoint begin = loop_.now();
  EXPECT_EQ(end(answer).code(), Code::kTimeout);
  EXPECT_EQ(loop_.now() - begin, std::chrono::seconds(2));
  EXPECT_EQ(nccl_.count("abort"), 1);
  EXPECT_EQ(communicator_->state(), State::kAborted);
  EXPECT_EQ(communicator_->check().code(), Code::kTimeout);
}

int lines_with(const std::vector<std::string>& lines, const std::string& text) {
  return static_cast<int>(
      std::ranges::count_if(lines, [&](const std::string& line) { return line.find(text) != std::string::npos; }));
}

TEST_F(CommunicatorTest, LogsASlowConnectWithARemedy) {
  nccl_.polls = -1;
  Answer answer;
  communicator_->connect(answer.take());
  const TimePoint begin = loop_.now();
  EXPECT_TRUE(loop_.run([&] { return loop_.now() >= begin + std::chrono::milliseconds(900); }));
  EXPECT_TRUE(lines_.empty()) << "it is not slow yet";
  EXPECT_EQ(end(answer).code(), Code::kTimeout);
  EXPECT_EQ(lines_with(lines_,
                       "communicator 'job' of rank 0: connecting has taken 1000 ms so far, and is given up "
                       "after 2000 ms. Likely cause: "),
            1);
  EXPECT_NE(answer.status().text().find("'job' of rank 0: connecting is not done in 2000 ms. Likely cause: "),
            std::string::npos)
      << answer.status().to_string();
  EXPECT_NE(answer.status().text().find("NCCL_SOCKET_IFNAME"), std::string::npos);
  EXPECT_NE(answer.status().text().find("device.data"), std::string::npos);
}

TEST_F(CommunicatorTest, LogsTheEndOfASlowConnect) {
  nccl_.polls = 1500;  // of one millisecond each
  connect();
  EXPECT_EQ(lines_with(lines_, "has taken 1000 ms so far"), 1);
  EXPECT_EQ(lines_with(lines_, "communicator 'job' is connected after "), 1);
}

TEST_F(CommunicatorTest, LogsALateId) {
  ids_.silent = true;
  Answer answer;
  communicator_->connect(answer.take());
  EXPECT_EQ(end(answer).code(), Code::kTimeout);
  EXPECT_EQ(lines_with(lines_, "exchange of its id has taken 1000 ms so far"), 1);
  EXPECT_NE(answer.status().text().find("look at that rank first"), std::string::npos) << answer.status().to_string();
}

TEST_F(CommunicatorTest, FailsIfItCannotBegin) {
  nccl_.will_return("init", {Outcome::kSystemError});
  Answer answer;
  communicator_->connect(answer.take());
  EXPECT_EQ(end(answer).code(), Code::kUnavailable);
  EXPECT_NE(answer.status().text().find("a reason"), std::string::npos);
  EXPECT_EQ(nccl_.count("abort"), 0) << "there is nothing to abort";
}

TEST_F(CommunicatorTest, IsDoneWithAGroupWhenItIsOnTheStream) {
  connect();
  for (const int polls : {0, 1, 5}) {
    nccl_.polls = polls;
    nccl_.will_return("group_end", {polls == 0 ? Outcome::kSuccess : Outcome::kInProgress});
    Answer answer;
    communicator_->launch(calls(2), answer.take());
    EXPECT_FALSE(answer.has_value());
    EXPECT_EQ(communicator_->ready(), polls == 0);
    EXPECT_TRUE(end(answer).ok());
    EXPECT_TRUE(communicator_->ready());
  }
  EXPECT_EQ(nccl_.count("all_reduce"), 6);
  EXPECT_EQ(nccl_.count("group_start"), nccl_.count("group_end"));
}

TEST_F(CommunicatorTest, PollsAfterASuccessfulGroup) {
  connect();
  nccl_.polls = 3;
  Answer answer;
  communicator_->launch(calls(1), answer.take());
  EXPECT_EQ(communicator_->state(), State::kLaunching);
  EXPECT_TRUE(end(answer).ok());
}

TEST_F(CommunicatorTest, TimesOutALaunch) {
  connect();
  nccl_.polls = -1;
  Answer answer;
  communicator_->launch(calls(1), answer.take());
  const TimePoint begin = loop_.now();
  EXPECT_EQ(end(answer).code(), Code::kTimeout);
  EXPECT_EQ(loop_.now() - begin, std::chrono::seconds(1));
  EXPECT_EQ(nccl_.count("abort"), 1);
}

TEST_F(CommunicatorTest, SurvivesOneBadArgument) {
  connect();
  nccl_.will_return("all_reduce", {Outcome::kInvalidArgument});
  Answer answer;
  communicator_->launch(calls(1), answer.take());
  EXPECT_EQ(end(answer).code(), Code::kInvalidArgument);
  EXPECT_EQ(nccl_.count("group_end"), 1) << "a group ends whatever is in it";
  EXPECT_TRUE(communicator_->ready());
  EXPECT_EQ(nccl_.count("abort"), 0);
}

TEST_F(CommunicatorTest, IsAbortedByABadArgumentThatItKeeps) {
  connect();
  nccl_.will_return("all_reduce", {Outcome::kInvalidArgument});
  nccl_.async = Outcome::kInvalidArgument;
  Answer answer;
  communicator_->launch(calls(1), answer.take());
  EXPECT_EQ(end(answer).code(), Code::kInvalidArgument);
  EXPECT_EQ(communicator_->state(), State::kAborted);
  EXPECT_EQ(nccl_.count("abort"), 1);
}

TEST_F(CommunicatorTest, IsAbortedByAGroupWithABadCall) {
  connect();
  nccl_.will_return("all_reduce", {Outcome::kSuccess, Outcome::kInvalidArgument});
  Answer answer;
  communicator_->launch(calls(3), answer.take());
  EXPECT_EQ(end(answer).code(), Code::kInvalidArgument);
  EXPECT_EQ(nccl_.count("all_reduce"), 2) << "nothing more is added to a group that is lost";
  EXPECT_EQ(nccl_.count("group_end"), 1);
  EXPECT_EQ(nccl_.count("abort"), 1);
}

TEST_F(CommunicatorTest, IsAbortedByOtherErrors) {
  const std::vector<std::pair<Outcome, Code>> kinds = {{Outcome::kRemoteError, Code::kPeerLost},
                                                       {Outcome::kInvalidUsage, Code::kInvalidArgument},
                                                       {Outcome::kInternalError, Code::kUnavailable},
                                                       {Outcome::kUnhandledCudaError, Code::kUnavailable}};
  int aborted = 0;
  for (const std::string function : {"group_start", "all_reduce", "group_end"}) {
    for (const auto& [outcome, code] : kinds) {
      make();
      connect();
      nccl_.will_return(function, {outcome});
      Answer answer;
      communicator_->launch(calls(1), answer.take());
      EXPECT_EQ(end(answer).code(), code) << function;
      EXPECT_EQ(nccl_.count("abort"), ++aborted) << function;
    }
  }
}

TEST_F(CommunicatorTest, FindsErrorsWhileItLaunches) {
  connect();
  nccl_.polls = 2;
  nccl_.async = Outcome::kRemoteError;
  Answer answer;
  communicator_->launch(calls(1), answer.take());
  EXPECT_EQ(end(answer).code(), Code::kPeerLost);
  EXPECT_EQ(nccl_.count("abort"), 1);
}

TEST_F(CommunicatorTest, ReportsErrorsOfWorkOnTheDevice) {
  connect();
  EXPECT_TRUE(communicator_->check().ok());
  nccl_.async = Outcome::kRemoteError;
  const Status found = communicator_->check();
  EXPECT_EQ(found.code(), Code::kPeerLost);
  EXPECT_TRUE(communicator_->ready());
  EXPECT_EQ(nccl_.count("abort"), 0) << "the owner aborts it, together with the others";
  communicator_->abort(found);
  EXPECT_EQ(communicator_->check().code(), Code::kPeerLost) << "the cause is kept";
  EXPECT_EQ(nccl_.count("abort"), 1);
}

TEST_F(CommunicatorTest, IsUsedNoMoreWhileItsAbortWaits) {
  connect();
  nccl_.polls = -1;
  Answer launched;
  communicator_->launch(calls(1), launched.take());
  teardown_.held = true;
  communicator_->abort({Code::kAborted, "test"});
  EXPECT_EQ(end(launched).text(), "test") << "before the device is done";
  EXPECT_EQ(nccl_.count("abort"), 0);
  const auto before = nccl_.calls().size();
  EXPECT_EQ(communicator_->check().text(), "test");
  EXPECT_EQ(nccl_.calls().size(), before);
  teardown_.run();
  EXPECT_EQ(nccl_.calls().size(), before + 1);
  teardown_.held = false;
}

TEST_F(CommunicatorTest, AbortEndsALaunch) {
  connect();
  nccl_.polls = -1;
  Answer answer;
  communicator_->launch(calls(1), answer.take());
  communicator_->abort({Code::kAborted, "first"});
  EXPECT_FALSE(answer.has_value()) << "called from inside";
  communicator_->abort({Code::kBug, "second"});
  EXPECT_EQ(end(answer).text(), "first");
  EXPECT_EQ(communicator_->check().text(), "first");
  EXPECT_EQ(nccl_.count("abort"), 1);
  const std::size_t before = nccl_.calls().size();
  EXPECT_FALSE(loop_.run([] { return false; }));
  EXPECT_EQ(nccl_.calls().size(), before) << "an aborted communicator is not polled";
}

TEST_F(CommunicatorTest, AbortEndsTheExchangeAndAnIdThatComesLateIsDropped) {
  Answer answer;
  communicator_->connect(answer.take());
  communicator_->abort({Code::kAborted, "test"});
  EXPECT_EQ(end(answer).code(), Code::kAborted);
  EXPECT_FALSE(loop_.run([] { return false; }));
  EXPECT_EQ(nccl_.count("init"), 0);
}

TEST_F(CommunicatorTest, AbortEndsAConnectionThatIsMade) {
  nccl_.polls = -1;
  Answer answer;
  communicator_->connect(answer.take());
  ASSERT_TRUE(loop_.run([&] { return communicator_->state() == State::kConnecting; }));
  communicator_->abort({Code::kAborted, "test"});
  EXPECT_EQ(end(answer).code(), Code::kAborted);
  EXPECT_EQ(nccl_.count("abort"), 1);
}

TEST_F(CommunicatorTest, ClosesInOrder) {
  connect();
  nccl_.polls = 3;
  Answer answer;
  communicator_->close(answer.take());
  EXPECT_TRUE(end(answer).ok());
  EXPECT_EQ(communicator_->state(), State::kClosed);
  EXPECT_EQ(nccl_.count("finalize"), 1);
  EXPECT_EQ(nccl_.count("destroy"), 1);
  EXPECT_EQ(nccl_.count("abort"), 0);
  Answer again;
  communicator_->close(again.take());
  EXPECT_TRUE(end(again).ok());
}

TEST_F(CommunicatorTest, ClosesWithoutThoseThatDoNot) {
  connect();
  nccl_.polls = -1;
  Answer answer;
  communicator_->close(answer.take());
  EXPECT_EQ(end(answer).code(), Code::kTimeout);
  EXPECT_EQ(nccl_.count("destroy"), 0);
  EXPECT_EQ(nccl_.count("abort"), 1);
}

TEST_F(CommunicatorTest, ClosingEndsALaunch) {
  connect();
  nccl_.polls = -1;
  Answer launched;
  communicator_->launch(calls(1), launched.take());
  Answer answer;
  communicator_->close(answer.take());
  EXPECT_TRUE(end(answer).ok());
  EXPECT_EQ(launched.code(), Code::kShutdown);
}

TEST_F(CommunicatorTest, IsAbortedWhenItIsDestroyed) {
  connect();
  nccl_.polls = -1;
  Answer answer;
  communicator_->launch(calls(1), answer.take());
  communicator_.reset();
  EXPECT_EQ(nccl_.count("abort"), 1);
  EXPECT_FALSE(loop_.run([&] { return answer.has_value(); }));
}

TEST_F(CommunicatorTest, LogsAnErrorOnce) {
  connect();
  communicator_->abort({Code::kAborted, "test"});
  communicator_->abort({Code::kAborted, "again"});
  EXPECT_FALSE(communicator_->check().ok());
  EXPECT_EQ(lines_.size(), 1U);
}

}  // namespace
}  // namespace sirtaki::net::nccl
