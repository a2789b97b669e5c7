// A rank without more data in the steps of a stream.
#include <gtest/gtest.h>

#include "tests/unit/engine/stream/stream_alone.h"

namespace sirtaki::engine {
namespace {

// Counts the requests for zeros.
class CountsZeros final : public DensePath {
 public:
  CountsZeros(net::Collectives& net, int& asked) : net_(net), asked_(asked) {}
  void adopt(const scheduler::Plan& /*plan*/) override {}
  void discard_step() override {}
  Result<Packed> gather(const scheduler::Partition& /*partition*/, std::span<const TensorView> /*views*/) override {
    Packed packed;
    packed.in_place = memory_;
    return packed;
  }
  void start(net::CollectiveArgs args, Done done) override { net_.start(std::move(args), std::move(done)); }
  void cancel(const net::TagGroup& /*tags*/, const Status& /*cause*/) override {}
  Status scatter(const scheduler::Partition& /*partition*/, std::span<const TensorView> /*views*/,
                 BufferPool::Buffer /*packed*/) override {
    return {};
  }
  Status add_residual(const TensorView& /*gradient*/, const AddResidual& /*add*/) override { return {}; }
  Result<std::byte*> zeros(std::size_t bytes) override {
    ++asked_;
    memory_.assign(bytes, std::byte{0});
    return memory_.data();
  }
  void release_zeros() override {}
  bool on_host() const override { return true; }

 private:
  net::Collectives& net_;
  int& asked_;
  std::vector<std::byte> memory_;
};

class StreamJoined : public alone::StreamAlone {};

TEST_F(StreamJoined, BeginsNoStepBeforeThePathIsSet) {
  int asked = 0;
  stream_->block_start();
  stream_->contribute_zeros();
  loop_.run();
  EXPECT_EQ(net_.running(), 0U) << "of zeros in the host's memory";
  stream_->set_path(std::make_unique<CountsZeros>(net_, asked), nullptr);
  loop_.run();
  EXPECT_EQ(asked, 1);
  EXPECT_GT(net_.running(), 0U);
}

TEST_F(StreamJoined, ContinuesIfTheStreamKeepsItsPath) {
  stream_->block_start();
  stream_->contribute_zeros();
  stream_->set_path(nullptr, nullptr);
  loop_.run();
  const std::size_t once = net_.running();
  EXPECT_GT(once, 0U);
  net_.succeed();
  loop_.run();
  EXPECT_GT(net_.running(), 0U) << "the next step";
}

}  // namespace
}  // namespace sirtaki::engine
