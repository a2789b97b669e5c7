#include "adapters/c/default_session.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <utility>

namespace sirtaki::adapters {
namespace {

TEST(DefaultSessionTest, OpensClosesAndOpensAgainWithAnotherGeneration) {
  DefaultSession& session = DefaultSession::instance();
  EXPECT_EQ(session.need().status().code(), Code::kShutdown);
  ASSERT_TRUE(session.init({}).ok());
  ASSERT_TRUE(session.init({}).ok());
  const auto first = session.active()->generation;
  ASSERT_TRUE(session.shutdown().ok());
  EXPECT_EQ(session.active(), nullptr);
  ASSERT_TRUE(session.init({}).ok());
  EXPECT_NE(session.active()->generation, first);
  EXPECT_EQ(session.need(first).status().code(), Code::kShutdown);
  ASSERT_TRUE(session.shutdown().ok());
  ASSERT_TRUE(session.shutdown().ok());
}

TEST(DefaultSessionTest, AJobThatIsNotElasticCannotRegroupAndStaysOpen) {
  DefaultSession& session = DefaultSession::instance();
  EXPECT_EQ(session.regroup(0).code(), Code::kShutdown);
  ASSERT_TRUE(session.init({}).ok());
  EXPECT_EQ(session.regroup(0).code(), Code::kUnsupported);
  EXPECT_NE(session.active(), nullptr);
  ASSERT_TRUE(session.shutdown().ok());
}

TEST(DefaultSessionTest, BadOptionLeavesItClosed) {
  DefaultSession& session = DefaultSession::instance();
  InitRequest request;
  request.options_toml = "net.nonsense = 1\n";
  EXPECT_EQ(session.init(request).code(), Code::kInvalidArgument);
  EXPECT_EQ(session.active(), nullptr);
}

TEST(DefaultSessionTest, ACallThatIsLateFindsTablesThatHaveEnded) {
  DefaultSession& session = DefaultSession::instance();
  ASSERT_TRUE(session.init({}).ok());
  const auto active = session.active();  // held as by a call that began before shutdown()
  engine::StreamSpec spec;
  spec.name = "late";
  spec.tensors.push_back({"weight", {4}, {}, DType::kF32, {}});
  spec.order.push_back(0);
  const auto stream = active->session->open_stream(std::move(spec), std::chrono::seconds(10));
  ASSERT_TRUE(stream.ok()) << stream.status().text();
  ASSERT_TRUE(session.shutdown().ok());
  int called = 0;
  EXPECT_EQ(active->session->stream(*stream).on_done([&] { ++called; }).code(), Code::kShutdown);
  EXPECT_EQ(called, 0);
  EXPECT_FALSE(active->session->wait_watched(1, std::chrono::seconds(10)).has_value());
}

TEST(DefaultSessionTest, ForkedChildSeesNone) {
  DefaultSession& session = DefaultSession::instance();
  ASSERT_TRUE(session.init({}).ok());
  const pid_t child = fork();
  if (child == 0) {
    const bool right = session.active() == nullptr && session.need().status().code() == Code::kShutdown &&
                       session.init({}).code() == Code::kShutdown && session.shutdown().ok() &&
                       session.unpin(1) == nullptr;
    _exit(right ? 0 : 1);
  }
  int status = -1;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(session.active(), nullptr);
  ASSERT_TRUE(session.shutdown().ok());
}

}  // namespace
}  // namespace sirtaki::adapters
