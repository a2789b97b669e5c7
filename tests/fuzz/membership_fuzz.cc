// The decoders of join requests, memberships, seats and lost-rank notices: accepted bytes encode to the same bytes
// again.
#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/rendezvous/link/frame.h"
#include "runtime/rendezvous/link/membership.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {
namespace {

using namespace rendezvous;

void check_same(ConstBytes before, const std::vector<std::byte>& after) {
  SRT_CHECK(std::equal(before.begin(), before.end(), after.begin(), after.end()));
}

void check_membership(ConstBytes bytes) {
  const auto membership = decode_membership(bytes);
  if (!membership) {
    SRT_CHECK(membership.status().code() == Code::kCorrupt);
    return;
  }
  check_same(bytes, encode(*membership));
  for (const Member& member : membership->members) {
    const auto local = membership->local_ranks(member.rank);
    SRT_CHECK(std::count(local.begin(), local.end(), member.rank) == 1);
    SRT_CHECK(membership->host_index(member.rank) < membership->host_count());
  }
}

}  // namespace

std::vector<Input> seeds() {
  JoinRequest request;
  request.rank = 2;
  request.size = 4;
  request.hostname = "node-b";
  request.host_id = "boot/net/shm";
  request.pid = 4711;
  request.fanout = 32;
  request.data_endpoints = {"10.0.0.3:41213", "[fd00::3]:41213"};
  request.relay_endpoints = {"10.0.0.3:41300"};
  request.version = "1.0";
  request.agreed_options = {{"sync.mode", "step"}, {"a", ""}};
  request.report = {std::byte{1}, std::byte{2}};
  Membership membership;
  membership.epoch = Epoch(7);
  membership.members = {
      {0, "a", "host-1", 1, {"x:1"}, {"r:1"}}, {1, "b", "host-2", 2, {}, {}}, {2, "c", "host-1", 3, {"y:2", "z"}, {}}};
  const Status status(Code::kPeerLost, "gone", {1, "layer1.weight"});
  return {input_from(encode(request)), input_from(encode(membership)), input_from(encode_lost(1, status)),
          input_from(encode_seat(2, request.report, encode(membership)))};
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sirtaki;
  const auto bytes = std::as_bytes(std::span(data, size));
  if (const auto request = rendezvous::decode_join_request(bytes); request) {
    fuzz::check_same(bytes, rendezvous::encode(*request));
  }
  fuzz::check_membership(bytes);
  if (const auto seat = rendezvous::decode_seat(bytes); seat) {
    SRT_CHECK(seat->rank >= 0 && seat->rank < seat->membership.size());
    fuzz::check_same(bytes, rendezvous::encode_seat(seat->rank, seat->notice, rendezvous::encode(seat->membership)));
  }
  if (const auto lost = rendezvous::decode_lost(bytes); lost && !lost->status.ok()) {
    fuzz::check_same(bytes, rendezvous::encode_lost(lost->rank, lost->status));
  }
  return 0;
}
