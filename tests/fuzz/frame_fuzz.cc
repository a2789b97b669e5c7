// The frame decoder: the same frames at every piece size, no memory beyond a frame's cap, the first error is final.
#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/rendezvous/link/frame.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {
namespace {

using namespace rendezvous;

// Returns the decoded frames encoded again: equal to the input as far as it was whole and valid.
std::vector<std::byte> decode_in_pieces(ConstBytes bytes, std::size_t piece) {
  FrameDecoder decoder;
  std::vector<std::byte> out;
  while (!bytes.empty()) {
    const Bytes room = decoder.room();
    SRT_CHECK(!room.empty() && room.size() <= kMaxMessage + 2 * kMaxInput);
    const std::size_t size = std::min({piece, room.size(), bytes.size()});
    std::copy_n(bytes.begin(), size, room.begin());
    decoder.added(size);
    bytes = bytes.subspan(size);
    while (true) {
      const auto frame = decoder.next();
      if (!frame) {
        SRT_CHECK(frame.status().code() == Code::kCorrupt && !decoder.next());
        return out;
      }
      if (!*frame) {
        break;
      }
      append_frame(out, (*frame)->type, (*frame)->payload);
    }
  }
  return out;
}

}  // namespace

std::vector<Input> seeds() {
  std::vector<std::byte> stream;
  append_frame(stream, FrameType::kPing, std::vector<std::byte>(8));
  append_frame(stream, FrameType::kMessage, std::vector<std::byte>(300, std::byte{7}));
  append_frame(stream, FrameType::kLeave, {});
  append_frame(stream, FrameType::kLeft, encode_left({1, 2}));
  append_frame(stream, FrameType::kLost, encode_lost(1, Status(Code::kPeerLost, "gone")));
  return {input_from(stream)};
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sirtaki;
  const auto bytes = std::as_bytes(std::span(data, size));
  const auto whole = fuzz::decode_in_pieces(bytes, bytes.size() + 1);
  SRT_CHECK(whole.size() <= bytes.size() && std::equal(whole.begin(), whole.end(), bytes.begin()));
  SRT_CHECK(fuzz::decode_in_pieces(bytes, 1 + bytes.size() % 13) == whole);
  return 0;
}
