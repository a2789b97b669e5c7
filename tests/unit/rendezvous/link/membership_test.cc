#include "runtime/rendezvous/link/membership.h"

#include <gtest/gtest.h>

#include "runtime/base/check.h"

namespace sirtaki::rendezvous {
namespace {

JoinRequest some_request() {
  JoinRequest request;
  request.rank = 2;
  request.size = 4;
  request.hostname = "node-b";
  request.host_id = "boot/net/shm";
  request.pid = 123456789012;
  request.fanout = 32;
  request.data_endpoints = {"10.0.0.3:41213", "[fd00::3]:41213"};
  request.relay_endpoints = {"10.0.0.3:41300"};
  request.version = "0.1.0+abc";
  request.agreed_options = {{"sync.mode", "step"}, {"compression.codec", ""}};
  request.report = {std::byte{1}, std::byte{2}};
  return request;
}

Membership some_membership() {
  Membership membership;
  membership.epoch = Epoch(7);
  membership.fanout = 2;
  const char* hosts[] = {"b", "a", "b", "a", "c"};
  for (int rank = 0; rank < 5; ++rank) {
    membership.members.push_back(
        {rank, std::string("node-") + hosts[rank], hosts[rank], 100 + rank, {"h:" + std::to_string(rank)}, {}});
  }
  membership.members[0].relay_endpoints = {"h:9", "i:9"};
  return membership;
}

TEST(Membership, CountsHostsInOrderOfTheirLowestRank) {
  const Membership membership = some_membership();
  EXPECT_EQ(membership.size(), 5);
  EXPECT_EQ(membership.hosts(), (std::vector<std::vector<Rank>>{{0, 2}, {1, 3}, {4}}));
  EXPECT_EQ(membership.host_count(), 3);
  EXPECT_EQ(membership.host_index(0), 0);
  EXPECT_EQ(membership.host_index(1), 1);
  EXPECT_EQ(membership.host_index(2), 0);
  EXPECT_EQ(membership.host_index(3), 1);
  EXPECT_EQ(membership.host_index(4), 2);
  EXPECT_EQ(membership.local_ranks(2), (std::vector<Rank>{0, 2}));
  EXPECT_EQ(membership.local_ranks(4), (std::vector<Rank>{4}));
  EXPECT_THROW(membership.local_ranks(5), BugError);
  EXPECT_THROW(membership.local_ranks(-1), BugError);
}

TEST(Membership, GoesOverTheWire) {
  const Membership before = some_membership();
  const auto after = decode_membership(encode(before));
  ASSERT_TRUE(after) << after.status().to_string();
  EXPECT_EQ(after->epoch, before.epoch);
  EXPECT_EQ(after->fanout, before.fanout);
  ASSERT_EQ(after->size(), before.size());
  for (std::size_t i = 0; i < before.members.size(); ++i) {
    EXPECT_EQ(after->members[i].rank, before.members[i].rank);
    EXPECT_EQ(after->members[i].hostname, before.members[i].hostname);
    EXPECT_EQ(after->members[i].host_id, before.members[i].host_id);
    EXPECT_EQ(after->members[i].pid, before.members[i].pid);
    EXPECT_EQ(after->members[i].data_endpoints, before.members[i].data_endpoints);
    EXPECT_EQ(after->members[i].relay_endpoints, before.members[i].relay_endpoints);
  }
}

TEST(Seat, GoesOverTheWireAndLiesInItsMembership) {
  const std::vector<std::byte> membership = encode(some_membership());
  const std::vector<std::byte> notice(3, std::byte{7});
  const auto seat = decode_seat(encode_seat(1, notice, membership));
  ASSERT_TRUE(seat.ok()) << seat.status().text();
  EXPECT_EQ(seat->rank, 1);
  EXPECT_EQ(seat->notice, notice);
  EXPECT_EQ(encode(seat->membership), membership);
  for (const Rank rank : {-1, some_membership().size()}) {
    EXPECT_EQ(decode_seat(encode_seat(rank, notice, membership)).status().code(), Code::kCorrupt) << rank;
  }
  EXPECT_EQ(decode_seat(ConstBytes(membership).first(3)).status().code(), Code::kCorrupt);
}

TEST(JoinRequest, GoesOverTheWire) {
  const JoinRequest before = some_request();
  const auto after = decode_join_request(encode(before));
  ASSERT_TRUE(after) << after.status().to_string();
  EXPECT_EQ(after->rank, before.rank);
  EXPECT_EQ(after->size, before.size);
  EXPECT_EQ(after->hostname, before.hostname);
  EXPECT_EQ(after->host_id, before.host_id);
  EXPECT_EQ(after->pid, before.pid);
  EXPECT_EQ(after->data_endpoints, before.data_endpoints);
  EXPECT_EQ(after->version, before.version);
  EXPECT_EQ(after->agreed_options, before.agreed_options);
  EXPECT_EQ(after->report, before.report);
}

TEST(Decoders, RefuseEveryTruncationAndEveryExtraByte) {
  for (auto bytes : {encode(some_request()), encode(some_membership())}) {
    const bool request = bytes == encode(some_request());
    auto decodes = [request](ConstBytes input) {
      return request ? decode_join_request(input).ok() : decode_membership(input).ok();
    };
    for (std::size_t size = 0; size < bytes.size(); ++size) {
      EXPECT_FALSE(decodes(ConstBytes(bytes).first(size))) << size;
    }
    EXPECT_TRUE(decodes(bytes));
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decodes(bytes));
  }
}

TEST(Decoders, RefuseTextsAndListsBeyondTheLimits) {
  JoinRequest request = some_request();
  request.hostname.assign(5000, 'h');
  EXPECT_FALSE(decode_join_request(encode(request)));
  request = some_request();
  request.data_endpoints.assign(65, "e");
  EXPECT_FALSE(decode_join_request(encode(request)));
  request = some_request();
  request.agreed_options.assign(1025, {"n", "v"});
  EXPECT_FALSE(decode_join_request(encode(request)));
}

}  // namespace
}  // namespace sirtaki::rendezvous
