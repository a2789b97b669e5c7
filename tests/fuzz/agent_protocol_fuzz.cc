// The agent protocol, and the offer of a host that joins: the same frames at every piece size, and every accepted
// message encodes to itself.
#include <algorithm>

#include "launcher/agent/agent_protocol.h"
#include "launcher/join/host_offer.h"
#include "runtime/base/check.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {
namespace {

using namespace launcher;

// Returns the frames encoded again, and whether the stream was accepted to its end.
std::pair<std::vector<std::byte>, bool> decode_in_pieces(ConstBytes bytes, std::size_t piece, bool expect_preamble) {
  FrameDecoder decoder(expect_preamble);
  std::vector<Frame> frames;
  bool ok = true;
  while (!bytes.empty()) {
    const std::size_t size = std::min(piece, bytes.size());
    ok = static_cast<bool>(decoder.feed(bytes.first(size), frames).ok());
    SRT_CHECK(decoder.junk().size() <= kMaxJunk);
    bytes = bytes.subspan(size);
  }
  std::vector<std::byte> out;
  for (const Frame& frame : frames) {
    const auto encoded = encode_frame(frame.type, frame.payload);
    out.insert(out.end(), encoded.begin(), encoded.end());
  }
  return {out, ok};
}

template <class Message>
void check_message(const Result<Message>& message, ConstBytes bytes) {
  if (message) {
    const std::vector<std::byte> again = encode(*message);
    SRT_CHECK(std::equal(again.begin(), again.end(), bytes.begin(), bytes.end()));
  }
}

void check_messages(ConstBytes bytes) {
  const auto hello = decode_hello(bytes);
  if (hello && hello->protocol == kProtocol) {
    check_message(hello, bytes);
  }
  check_message(decode_probe(bytes), bytes);
  check_message(decode_probed(bytes), bytes);
  check_message(decode_spawn(bytes), bytes);
  check_message(decode_spawned(bytes), bytes);
  check_message(decode_spawn_failed(bytes), bytes);
  check_message(decode_output(bytes), bytes);
  check_message(decode_exited(bytes), bytes);
  check_message(decode_kill(bytes), bytes);
  check_message(decode_signal(bytes), bytes);
  check_message(decode_signalled(bytes), bytes);
  check_message(decode_tell(bytes), bytes);
  check_message(decode_host_offer(bytes), bytes);
  static_cast<void>(decode_rank(bytes));
  static_cast<void>(decode_end_rank(bytes));
  static_cast<void>(decode_credit(bytes));
}

}  // namespace

std::vector<Input> seeds() {
  Hello hello;
  hello.version = "1.2.3";
  hello.hostname = "node";
  hello.addresses = {{"eth0", "10.0.0.1"}};
  Spawn spawn;
  spawn.ranks = {0, 3};
  spawn.most_ranks = 2;
  spawn.argv = {"python", "train.py"};
  spawn.env = {{"NAME", "value"}};
  spawn.rank_env = {{{"RANK", "0"}}, {}};
  const Output output{1, OutputStream::kStderr, std::vector<std::byte>(20)};
  std::vector<std::byte> stream = encode_frame(FrameType::kHello, encode(hello));
  for (const auto& next : {encode_frame(FrameType::kSpawn, encode(spawn)), encode_frame(FrameType::kPong, {})}) {
    stream.insert(stream.end(), next.begin(), next.end());
  }
  Input greeting = input_from(kPreamble);
  const Input frames = input_from(stream);
  greeting.insert(greeting.end(), frames.begin(), frames.end());
  return {frames,
          greeting,
          input_from(encode(hello)),
          input_from(encode(spawn)),
          input_from(encode(output)),
          input_from(encode(Probe{{"a:1"}, 3})),
          input_from(encode(Probed{0, {"no"}})),
          input_from(encode(SpawnFailed{0, 127, "no"})),
          input_from(encode(Kill{15})),
          input_from(encode(EndRank{0, 9})),
          input_from(encode(Signal{10})),
          input_from(encode(Signalled{10, {0, 3}})),
          input_from(encode(Tell{"no", 1})),
          input_from(encode(HostOffer{"node", 2}))};
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sirtaki;
  const auto bytes = std::as_bytes(std::span(data, size));
  for (const bool expect_preamble : {false, true}) {
    const auto whole = fuzz::decode_in_pieces(bytes, bytes.size() + 1, expect_preamble);
    SRT_CHECK(whole.first.size() <= bytes.size());
    SRT_CHECK(fuzz::decode_in_pieces(bytes, 1 + bytes.size() % 13, expect_preamble) == whole);
  }
  fuzz::check_messages(bytes);
  return 0;
}
