#include "compression/codecs/catalog.h"

#include <gtest/gtest.h>

#include "runtime/base/check.h"

namespace sirtaki::compression {
namespace {

TEST(Catalog, FindsCodecsByNameAndById) {
  for (const Codec* row : codecs()) {
    EXPECT_EQ(find_codec(row->name()), row);
    EXPECT_EQ(find_codec(row->id()), row);
    EXPECT_EQ(&codec(row->id()), row);
  }
  for (const PayloadCodec* row : payload_codecs()) {
    EXPECT_EQ(find_payload_codec(row->name()), row);
    EXPECT_EQ(find_payload_codec(row->id()), row);
    EXPECT_EQ(find_codec(row->name()), nullptr);
    EXPECT_EQ(find_codec(row->id()), nullptr);
  }
  EXPECT_EQ(find_payload_codec("none"), nullptr);
  EXPECT_EQ(find_codec("fp61"), nullptr);
  EXPECT_EQ(find_codec(""), nullptr);
  EXPECT_EQ(find_codec(CodecId{65535}), nullptr);
  EXPECT_THROW(codec(CodecId{65535}), BugError);
}

// Plans and scripts contain these numbers: a change would give old ones another meaning.
TEST(Catalog, KeepsItsNumbersAndNames) {
  EXPECT_EQ(static_cast<int>(find_codec("none")->id()), 0);
  EXPECT_EQ(static_cast<int>(find_codec("fp16")->id()), 1);
  EXPECT_EQ(static_cast<int>(find_codec("bf16")->id()), 2);
  EXPECT_EQ(static_cast<int>(find_payload_codec("int8")->id()), 3);
  EXPECT_EQ(static_cast<int>(find_payload_codec("fp8_e4m3")->id()), 4);
  EXPECT_EQ(static_cast<int>(find_payload_codec("fp8_e5m2")->id()), 5);
  EXPECT_EQ(static_cast<int>(find_payload_codec("twobit")->id()), 6);
  EXPECT_EQ(static_cast<int>(find_payload_codec("onebit")->id()), 7);
  EXPECT_EQ(static_cast<int>(find_payload_codec("group_topk")->id()), 8);
  EXPECT_EQ(static_cast<int>(find_payload_codec("threshold_sparse")->id()), 9);
  EXPECT_EQ(static_cast<int>(find_payload_codec("kernel_sparse")->id()), 10);
  EXPECT_EQ(static_cast<int>(find_payload_codec("block_topk")->id()), 11);
  EXPECT_EQ(static_cast<int>(find_payload_codec("powersgd")->id()), 12);
  EXPECT_EQ(static_cast<int>(find_payload_codec("int4")->id()), 13);
  EXPECT_EQ(codec_names().substr(0, 16), "none, fp16, bf16");
}

}  // namespace
}  // namespace sirtaki::compression
