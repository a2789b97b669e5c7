#include "launcher/join/host_offer.h"

#include <gtest/gtest.h>

#include <set>

#include "runtime/base/wire.h"
#include "runtime/rendezvous/auth/handshake.h"

namespace sirtaki::launcher {
namespace {

TEST(HostOffer, SurvivesItsEncodingWithinTheHelloOfAHandshake) {
  const std::string longest(300, 'n');
  const auto bytes = encode(HostOffer{longest, 65536});
  EXPECT_LE(bytes.size(), rendezvous::Handshake::kMaxHello);
  const auto offer = decode_host_offer(bytes);
  ASSERT_TRUE(offer);
  EXPECT_EQ(offer->name, longest.substr(0, 64));
  EXPECT_EQ(offer->slots, 65536);
  EXPECT_EQ(decode_host_offer(encode(HostOffer{"a b\n\x1b[1m", 1}))->name, "a_b___1m");
}

TEST(HostOffer, IsRefusedWhenItIsCutOrNamesNoHostOrNoSlots) {
  const auto bytes = encode(HostOffer{"node", 2});
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode_host_offer(ConstBytes(bytes.data(), size))) << size;
  }
  EXPECT_FALSE(decode_host_offer(encode(HostOffer{"", 2})));
  for (const std::int32_t slots : {0, -1, 65537}) {
    EXPECT_FALSE(decode_host_offer(encode(HostOffer{"node", slots}))) << slots;
  }
  WireWriter unprintable;
  unprintable.put_string("no\nde");
  unprintable.put(std::int32_t{1});
  EXPECT_FALSE(decode_host_offer(unprintable.bytes()));
}

TEST(HostOffer, GetsANameThatIsFree) {
  std::set<std::string> taken;
  const auto is_taken = [&](const std::string& name) { return taken.contains(name); };
  for (const char* name : {"b", "b#2", "b#3"}) {
    EXPECT_EQ(free_host_name("b", is_taken), name);
    taken.insert(name);
  }
  taken.erase("b#2");
  EXPECT_EQ(free_host_name("b", is_taken), "b#2");
}

}  // namespace
}  // namespace sirtaki::launcher
