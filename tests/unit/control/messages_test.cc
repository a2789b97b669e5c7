#include "runtime/control/messages.h"

#include <gtest/gtest.h>

namespace sirtaki::control {
namespace {

OpMeta full_meta() {
  OpMeta m;
  m.kind = OpKind::kBroadcast;
  m.dtype = DType::kBF16;
  m.root = 3;
  m.prescale = 0.5;
  m.dims = {2, 0, 9};
  m.strides = {1, 2, 3};
  return m;
}

Status status() {
  return {Code::kMismatch, "why", {2, "layer"}};
}

std::vector<MemberMessage> member_messages() {
  StreamOpen open;
  open.name = "opt";
  open.plan_digest = 99;
  open.codec = "fp16";
  open.tensors = {{"w", DType::kF32, DeviceType::kCpu, {2, 3}, {}}, {"b", DType::kF64, DeviceType::kCpu, {3}, {1}}};
  Waiting waiting;
  waiting.blocked = true;
  waiting.gives_way = true;
  waiting.progress = 12;
  waiting.entries = {{WaitKind::kOp, "a", 4, 7, "allreduce"}, {WaitKind::kStreamStep, "opt", 1, 0, ""}};
  return {Announce{"a", 5, full_meta()},
          OpFailed{"a", 6, status()},
          open,
          StreamAbort{StreamId(1), 2, 3, status()},
          StreamUnused{StreamId(1), 2, 3},
          StreamClose{StreamId(9)},
          waiting,
          TraceChunk{{std::byte{1}, std::byte{2}}, true},
          TraceRequest{true, "/tmp/trace.json"},
          Leaving{{{"a", 3}, {"b", 0}}},
          Joined{{{StreamId(2), 1, 7}}, {{"a", 3}}},
          JobBroken{status()},
          Unused{{{"a", 3}}}};
}

std::vector<CoordinatorMessage> coordinator_messages() {
  return {Agreed{"a", 1, 2},
          Recall{3, 4},
          OpCancelled{"a", 5, true, status()},
          StreamAgreed{"opt", StreamId(6)},
          StreamRefused{"opt", status()},
          StreamAborted{StreamId(6), 7, 8, false, status()},
          StreamFlags{StreamId(6), 1, 2},
          JobFailed{status()},
          TraceSwitch{true},
          Query{},
          GiveWay{},
          StandIn{},
          AllJoined{3, {{StreamId(2), 1, 7}, {StreamId(4), 0, 0}}},
          RanksLeft{{3, 1}},
          SomeJoined{{0, 2}, {{"a", 3}}},
          StandInOp{"a", 5, full_meta()},
          AskUnused{{"a", "b"}},
          Forgotten{{"a"}, {"b"}}};
}

TEST(Messages, MemberMessagesSurviveTheWire) {
  const auto all = member_messages();
  ASSERT_EQ(all.size(), std::variant_size_v<MemberMessage>) << "a kind of message is not tested";
  for (const MemberMessage& message : all) {
    const auto bytes = encode(message);
    const auto decoded = decode_member_message(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(encode(*decoded), bytes);
  }
}

TEST(Messages, CoordinatorMessagesSurviveTheWire) {
  const auto all = coordinator_messages();
  ASSERT_EQ(all.size(), std::variant_size_v<CoordinatorMessage>) << "a kind of message is not tested";
  for (const CoordinatorMessage& message : all) {
    const auto bytes = encode(message);
    const auto decoded = decode_coordinator_message(bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(decoded->index(), message.index());
    EXPECT_EQ(encode(*decoded), bytes);
  }
}

TEST(Messages, FieldsKeepTheirValues) {
  const auto decoded = decode_member_message(encode(Announce{"layer.weight", 5, full_meta()}));
  ASSERT_TRUE(decoded.ok());
  const auto& announce = std::get<Announce>(*decoded);
  EXPECT_EQ(announce.name, "layer.weight");
  EXPECT_EQ(announce.use, 5U);
  EXPECT_TRUE(announce.meta.compatible(full_meta()));
  const auto failed = decode_coordinator_message(encode(JobFailed{status()}));
  ASSERT_TRUE(failed.ok());
  const Status& got = std::get<JobFailed>(*failed).status;
  EXPECT_EQ(got.code(), Code::kMismatch);
  EXPECT_EQ(got.text(), "why");
  EXPECT_EQ(got.blame().rank, 2);
  EXPECT_EQ(got.blame().tensor, "layer");
}

TEST(Messages, EveryTruncationAndEveryExtraByteIsRefused) {
  for (const MemberMessage& message : member_messages()) {
    auto bytes = encode(message);
    for (std::size_t n = 0; n < bytes.size(); ++n) {
      EXPECT_FALSE(decode_member_message(ConstBytes(bytes).first(n)).ok());
    }
    bytes.push_back(std::byte{0});
    EXPECT_FALSE(decode_member_message(bytes).ok());
  }
}

TEST(Messages, UnknownKindsAndEnumeratorsAreRefused) {
  auto bytes = encode(MemberMessage(Announce{"a", 0, full_meta()}));
  bytes[0] = std::byte{200};
  EXPECT_FALSE(decode_member_message(bytes).ok());
  bytes = encode(MemberMessage(Announce{"", 0, full_meta()}));
  bytes[1 + 4 + 8] = std::byte{77};  // the kind of operation
  EXPECT_FALSE(decode_member_message(bytes).ok());
}

}  // namespace
}  // namespace sirtaki::control
