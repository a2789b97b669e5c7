#include "runtime/base/digest.h"

#include <gtest/gtest.h>

#include <string_view>

namespace sirtaki {
namespace {

ConstBytes bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

TEST(Digest, IsXxh64) {
  EXPECT_EQ(digest_of({}), 0xEF46DB3751D8E999U);
  EXPECT_EQ(digest_of(bytes_of("abc")), 0x44BC2CF5AD770999U);
}

TEST(Digest, DependsOnTheOrderOfPieces) {
  const auto of = [](std::string_view first, std::string_view second) {
    return digest_of(bytes_of(second), digest_of(bytes_of(first)));
  };
  EXPECT_EQ(of("a", "b"), of("a", "b"));
  EXPECT_NE(of("a", "b"), of("b", "a"));
}

}  // namespace
}  // namespace sirtaki
