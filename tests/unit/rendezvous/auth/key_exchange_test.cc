#include "runtime/rendezvous/auth/key_exchange.h"

#include <gtest/gtest.h>

#include <string>

namespace sirtaki::rendezvous {
namespace {

Secret hex(const std::string& digits) {
  return *Secret::from_hex(digits);
}

// The test vector is that of RFC 7748, section 6.1.
TEST(KeyExchange, GivesTheKeyOfTheStandard) {
  const Secret bob = hex("5dab087e624a8a4b79e17f8b83800ee66f3bb1292618b6fd1c2f8b27ff88e0eb");
  const Secret alice = hex("8520f0098930a754748b7ddcb43ef75a0dbf3a0d26381af4eba4a98eaa9b4e6a");
  const auto made = shared_key(bob, alice);
  ASSERT_TRUE(made) << made.status().to_string();
  EXPECT_EQ(made->to_hex(), "4a5d9d5ba4ce2de1728e3bf480350f25e07e21c947d19e3376f09b3c1e161742");
}

TEST(KeyExchange, BothSidesGetOneKeyAndAThirdAnother) {
  const auto one = make_key_pair();
  const auto other = make_key_pair();
  const auto third = make_key_pair();
  ASSERT_TRUE(one && other && third);
  EXPECT_NE(one->own.to_hex(), one->shown.to_hex());
  const std::string key = shared_key(one->own, other->shown)->to_hex();
  EXPECT_EQ(shared_key(other->own, one->shown)->to_hex(), key);
  EXPECT_NE(shared_key(third->own, one->shown)->to_hex(), key);
  EXPECT_NE(key, one->shown.to_hex());
}

TEST(KeyExchange, PointsThatGiveAwayTheKeyAreRefused) {
  const auto pair = make_key_pair();
  ASSERT_TRUE(pair);
  const Status refused = shared_key(pair->own, hex("01" + std::string(62, '0'))).status();
  EXPECT_EQ(refused.code(), Code::kInvalidArgument) << refused.to_string();
}

}  // namespace
}  // namespace sirtaki::rendezvous
