// The sizes of a stream over NCCL.
#include <gtest/gtest.h>

#include "tests/unit/engine/stream/stream_alone.h"

namespace sirtaki::engine {
namespace {

class StreamSizes : public alone::StreamAlone {
 protected:
  StreamSizes()
      : StreamAlone({.layout = {.fusion_bytes = 0, .partition_bytes = 256, .alignment = 16},
                     .credit_bytes = 256,
                     .replan = false,
                     .nccl_partition_bytes = 4096,
                     .nccl_credit_bytes = 4096}) {}
  std::size_t partitions() const { return stream_->plan().partitions().size(); }
};

TEST_F(StreamSizes, ThoseOfTheHostBeginEachStream) {
  EXPECT_EQ(partitions(), 2U * alone::kTensors);
  submit(alone::kTensors);
  EXPECT_EQ(net_.running(), 1U) << "as the credit allows";
  stream_->finish(stream_->board()->finish(loop_.now()), loop_.now());
  EXPECT_TRUE(wait().ok());
}

TEST_F(StreamSizes, ThoseOfNcclComeWithItsPath) {
  int asked = 0;
  stream_->set_path(std::make_unique<alone::CountsZeros>(net_, asked), nullptr);
  EXPECT_EQ(partitions(), std::size_t{alone::kTensors}) << "no tensor is cut";
  for (int i = 0; i < 2; ++i) {
    EXPECT_TRUE(step().ok());
  }
  submit(alone::kTensors);
  EXPECT_EQ(net_.running(), std::size_t{alone::kTensors - 1}) << "all but the one after the commit point";
  stream_->finish(stream_->board()->finish(loop_.now()), loop_.now());
  EXPECT_TRUE(wait().ok());
}

}  // namespace
}  // namespace sirtaki::engine
