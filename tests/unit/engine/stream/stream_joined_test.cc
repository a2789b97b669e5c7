// A rank without more data in the steps of a stream.
#include <gtest/gtest.h>

#include "tests/unit/engine/stream/stream_alone.h"

namespace sirtaki::engine {
namespace {

class StreamJoined : public alone::StreamAlone {};

TEST_F(StreamJoined, BeginsNoStepBeforeThePathIsSet) {
  int asked = 0;
  stream_->block_start();
  stream_->contribute_zeros();
  loop_.run();
  EXPECT_EQ(net_.running(), 0U) << "of zeros in the host's memory";
  stream_->set_path(std::make_unique<alone::CountsZeros>(net_, asked), nullptr);
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
