// Control messages of both directions, and the coordinator fed with whatever decodes.
#include <cstdint>

#include "runtime/base/check.h"
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
  return {input_from(encode(MemberMessage(Announce{"a", 5, meta}))),
          input_from(encode(MemberMessage(OpFailed{"a", 5, status}))),
          input_from(encode(MemberMessage(open))),
          input_from(encode(MemberMessage(waiting))),
          input_from(encode(MemberMessage(StreamAbort{StreamId(1), 0, 2, status}))),
          input_from(encode(CoordinatorMessage(Agreed{"a", 5, 1}))),
          input_from(encode(CoordinatorMessage(RanksLeft{{1, 0}}))),
          input_from(encode(CoordinatorMessage(OpCancelled{"a", 5, true, status}))),
          input_from(encode(CoordinatorMessage(StreamAborted{StreamId(1), 1, 2, true, status})))};
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
