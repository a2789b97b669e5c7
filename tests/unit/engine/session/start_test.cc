// Start of a session beside a fake rank, which joins and is lost before the data connections are open.
#include <gtest/gtest.h>

#include <future>

#include "runtime/base/config/config.h"
#include "runtime/base/version.h"
#include "runtime/control/messages.h"
#include "runtime/engine/session/session.h"
#include "tests/unit/rendezvous/world.h"

namespace sirtaki::engine {
namespace {

using namespace std::chrono_literals;

class StartTest : public testing::Test {
 protected:
  // Starts a real rank 0; the fake rank 1 has joined when this returns.
  void begin() {
    started_ = std::async(std::launch::async, [this] {
      JobSpec job;
      job.rank = 0;
      job.size = 2;
      job.rendezvous = server_.address();
      job.secret = server_.secret;
      return Session::open(config_, std::move(job), {}).status();
    });
    ASSERT_TRUE(played_.connect(server_).ok());
    rendezvous::JoinRequest request = rendezvous::join_request(1, 2);
    request.version = std::string(version());
    request.agreed_options = agreed_options(*config_);
    request.fanout = static_cast<int>(config_->control.fanout);
    const auto joined = played_->join(request);
    ASSERT_TRUE(joined) << joined.status().to_string();
  }
  // Returns the status of the start of rank 0, which must end well before its own timeout.
  Status outcome() {
    if (started_.wait_for(config_->control.connect_timeout / 2) != std::future_status::ready) {
      ADD_FAILURE() << "rank 0 still waits for a rank that does not come";
    }
    return started_.get();
  }

  rendezvous::TestServer server_{2};
  rendezvous::TestClient played_;
  std::shared_ptr<const Config> config_ = std::make_shared<Config>();
  std::future<Status> started_;
};

TEST_F(StartTest, ARankThatIsLostWhileTheOthersConnectEndsTheStartAtOnce) {
  begin();
  played_.drop();
  const Status status = outcome();
  EXPECT_EQ(status.code(), Code::kPeerLost) << status.to_string();
  EXPECT_EQ(status.blame().rank, 1) << status.to_string();
}

TEST_F(StartTest, WhatAnotherRankHasFoundEndsTheStartAtOnce) {
  begin();
  const Status found(Code::kTimeout, "rank 7 cannot be reached", {7, ""});
  server_.loop().run_sync([&] { server_->send(0, control::encode(control::JobFailed{found})); });
  EXPECT_EQ(outcome().to_string(), found.to_string());
}

}  // namespace
}  // namespace sirtaki::engine
