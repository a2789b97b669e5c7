// Tests of the launcher's end of a connection to an agent: what is left of it behind its end.
#include "launcher/agent/agent_link.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/io_context.hpp>

namespace sirtaki::launcher {
namespace {

// Hosts that have joined by themselves, and their ends of the connections.
class Joined : public ::testing::Test {
 protected:
  Joined() { signal(SIGPIPE, SIG_IGN); }
  AgentLink& join() {
    int ends[2] = {-1, -1};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    AgentLink::Events events;
    events.on_failed = [this](AgentLink&, const Status&) { ++failed_; };
    links_.push_back(std::make_shared<AgentLink>(io_, Placement{"node", false, 0, 0, 1}, std::move(events)));
    links_.back()->adopt({FileDescriptor(ends[0]), FileDescriptor(dup(ends[0])), nullptr, {}});
    theirs_.emplace_back(ends[1]);
    return *links_.back();
  }
  void ping_all() {
    for (const auto& link : links_) {
      link->ping();
    }
  }
  std::size_t taken() {
    return take_spent(links_, [this](const AgentLink& link) { return &link == needed_; }).size();
  }

  boost::asio::io_context io_;
  AgentLinks links_;
  std::vector<FileDescriptor> theirs_;
  const AgentLink* needed_ = nullptr;
  std::size_t failed_ = 0;
};

TEST_F(Joined, NothingIsLeftOfHostsThatAreRefusedOrGone) {
  constexpr std::size_t kHosts = 100;
  for (std::size_t i = 0; i < kHosts; ++i) {
    AgentLink& link = join();
    if (i % 2 == 0) {
      link.give_up(unavailable("the job is full"));
    }
  }
  const std::weak_ptr<AgentLink> lives = join().weak_from_this();
  const FileDescriptor stays = std::move(theirs_.back());
  theirs_.clear();
  while (failed_ < kHosts) {
    ASSERT_GT(io_.run_one_for(std::chrono::seconds(20)), 0U);
  }
  while (io_.poll() > 0) {
  }
  std::size_t removed = 0;
  for (int pings = 0; pings < 5; ++pings) {
    ping_all();
    removed += taken();
  }
  EXPECT_EQ(removed, kHosts);
  ASSERT_EQ(links_.size(), 1U);
  EXPECT_EQ(links_.front(), lives.lock());
}

TEST_F(Joined, AHostThatIsNeededStays) {
  needed_ = &join();
  theirs_.clear();
  while (failed_ == 0) {
    ASSERT_GT(io_.run_one_for(std::chrono::seconds(20)), 0U);
  }
  for (int pings = 0; pings < 5; ++pings) {
    ping_all();
    EXPECT_EQ(taken(), 0U);
  }
  EXPECT_TRUE(links_.front()->spent());
  needed_ = nullptr;
  EXPECT_EQ(taken(), 1U);
}

}  // namespace
}  // namespace sirtaki::launcher
