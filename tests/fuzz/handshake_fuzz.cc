// The handshake against bytes of a stranger, and against a peer that changes bytes of a true exchange in transit.
#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/rendezvous/auth/handshake.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {
namespace {

using rendezvous::Handshake;
using rendezvous::Purpose;
using rendezvous::Secret;

enum Mode : std::uint8_t { kToAcceptor = 0, kToInitiator = 1, kInTheMiddle = 2, kModes = 3 };

const Secret& secret() {
  static const Secret kSecret = Secret::from_hex(std::string(2 * Secret::kBytes, 'a')).value();
  return kSecret;
}

// A peer that does not know the secret fails, whatever the size of the pieces.
void check_stranger(Handshake handshake, ConstBytes bytes, std::size_t piece) {
  std::size_t sent = handshake.take_output().size();
  bool failed = false;
  while (!bytes.empty()) {
    const ConstBytes part = bytes.first(std::min(piece, bytes.size()));
    bytes = bytes.subspan(part.size());
    const auto used = handshake.feed(part);
    SRT_CHECK(!handshake.done());
    SRT_CHECK(!failed || !used);
    SRT_CHECK(!used || *used == part.size());
    failed = !used;
    sent += handshake.take_output().size();
  }
  SRT_CHECK(sent <= Handshake::kMaxBytes);
}

// XORs `mask` onto all bytes between the two ends: both succeed only if it changes nothing.
void check_man_in_the_middle(ConstBytes mask) {
  const std::byte hello[] = {std::byte{1}, std::byte{2}, std::byte{3}};
  Handshake initiator = Handshake::initiator(secret(), Purpose::kData, hello);
  Handshake acceptor = Handshake::acceptor(secret(), Purpose::kData);
  bool changed = false;
  auto pass = [&](Handshake& from, Handshake& to) {
    auto bytes = from.take_output();
    for (std::byte& byte : bytes) {
      if (!mask.empty()) {
        byte ^= mask.front();
        changed = changed || mask.front() != std::byte{0};
        mask = mask.subspan(1);
      }
    }
    return to.feed(bytes).ok();
  };
  const bool passed = pass(initiator, acceptor) && pass(acceptor, initiator) && pass(initiator, acceptor);
  SRT_CHECK(acceptor.done() == !changed);
  SRT_CHECK(!acceptor.done() || (passed && acceptor.peer_hello().size() == 3));
}

Input with_mode(Mode mode, std::uint8_t piece, const std::vector<std::byte>& bytes) {
  Input input = {mode, piece};
  const Input rest = input_from(bytes);
  input.insert(input.end(), rest.begin(), rest.end());
  return input;
}

}  // namespace

std::vector<Input> seeds() {
  Handshake initiator = Handshake::initiator(secret(), Purpose::kControl, {});
  Handshake acceptor = Handshake::acceptor(secret(), Purpose::kControl);
  auto to_acceptor = initiator.take_output();
  SRT_CHECK(acceptor.feed(to_acceptor).ok());
  const auto to_initiator = acceptor.take_output();
  SRT_CHECK(initiator.feed(to_initiator).ok());
  const auto proof = initiator.take_output();
  to_acceptor.insert(to_acceptor.end(), proof.begin(), proof.end());
  return {with_mode(kToAcceptor, 200, to_acceptor), with_mode(kToInitiator, 7, to_initiator),
          with_mode(kInTheMiddle, 0, std::vector<std::byte>(200))};
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sirtaki::fuzz;
  if (size < 2) {
    return 0;
  }
  const auto bytes = std::as_bytes(std::span(data, size)).subspan(2);
  const std::size_t piece = std::size_t{1} + data[1];
  switch (data[0] % kModes) {
    case kToAcceptor:
      check_stranger(Handshake::acceptor(secret(), Purpose::kControl), bytes, piece);
      break;
    case kToInitiator:
      check_stranger(Handshake::initiator(secret(), Purpose::kControl, {}), bytes, piece);
      break;
    default:
      check_man_in_the_middle(bytes);
  }
  return 0;
}
