// Control messages of both directions, and the coordinator fed with every message that decodes.
#include <cstdint>

#include "runtime/base/check.h"
#include "runtime/control/bundle.h"
#include "runtime/control/coordinator.h"
#include "runtime/control/messages.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {

std::vector<Input> seeds() {
  using namespace control;
  OpMeta meta;
  meta.dims = {2, 3};
  meta.strides = {1, 2};
  StreamOpen open;
  open.name = "opt";
  open.tensors = {{"w", DType::kF32, DeviceType::kCpu, {2, 3}, {}}};
  Waiting waiting;
  waiting.blocked = true;
  waiting.entries = {{WaitKind::kOp, "a", 4, 7, "allreduce"}, {WaitKind::kStreamStep, "opt", 1, 0, ""}};
  const Status status(Code::kMismatch, "why", {1, "w"});
  const StreamId stream(1);
  const std::vector<Leaving::Count> counts = {{"a", 5}};
  const std::vector<MemberMessage> from_members = {
      Announce{"a", 5, meta},
      OpFailed{"a", 5, status},
      open,
      StreamAbort{stream, 0, 2, status},
      StreamUnused{stream, 1, 3},
      StreamClose{stream},
      waiting,
      TraceChunk{{std::byte{9}}, true},
      TraceRequest{true, "trace.json"},
      Leaving{counts},
      Joined{{{stream, 1, 3}}, counts},
      JobBroken{status},
      Unused{counts},
  };
  const std::vector<CoordinatorMessage> from_coordinator = {
      Agreed{"a", 5, 1},
      Recall{1, 6},
      OpCancelled{"a", 5, true, status},
      StreamAgreed{"opt", stream},
      StreamRefused{"opt", status},
      StreamAborted{stream, 1, 2, true, status},
      StreamFlags{stream, 1, 3},
      JobFailed{status},
      TraceSwitch{true},
      Query{},
      StandIn{},
      AllJoined{2, {{stream, 1, 3}}},
      RanksLeft{{1, 0}},
      SomeJoined{{1}, counts},
      StandInOp{"a", 5, meta},
      GiveWay{},
      AskUnused{{"a", "b"}},
      Forgotten{{"a"}, {"b"}},
  };
  // One message of each type: the goldens cover the whole format.
  SRT_CHECK(from_members.size() == std::variant_size_v<MemberMessage>);
  SRT_CHECK(from_coordinator.size() == std::variant_size_v<CoordinatorMessage>);
  std::vector<Input> inputs;
  for (const MemberMessage& message : from_members) {
    inputs.push_back(input_from(encode(message)));
  }
  for (const CoordinatorMessage& message : from_coordinator) {
    inputs.push_back(input_from(encode(message)));
  }
  inputs.push_back(input_from(encode(Bundle{{RankSet::of(3), from_members.front()}})));
  inputs.push_back(input_from(encode(Spread{{RankSet::of(3), from_coordinator.front()}})));
  return inputs;
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sirtaki;
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto message = control::decode_coordinator_message(bytes)) {
    SRT_CHECK(control::encode(*message).size() == size);
  }
  if (const auto message = control::decode_member_message(bytes)) {
    SRT_CHECK(control::encode(*message).size() == size);
    control::Coordinator coordinator(2, {});
    const TimePoint begin(std::chrono::seconds(1));
    coordinator.on_message(0, *message, begin);
    coordinator.on_message(1, *message, begin);
    coordinator.on_left(1, begin);
    coordinator.on_tick(begin + std::chrono::hours(1));
    for (const auto& action : coordinator.take_actions().sends) {
      SRT_CHECK(control::decode_coordinator_message(control::encode(action.message)).ok());
    }
  }
  return 0;
}
