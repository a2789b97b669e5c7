#include "runtime/rendezvous/auth/stream_cipher.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "runtime/rendezvous/auth/handshake.h"

namespace sirtaki::rendezvous {
namespace {

using Side = StreamCipher::Side;
using Buffer = std::vector<std::byte>;

Secret session_of(char digit) {
  return Secret::from_hex(std::string(2 * Secret::kBytes, digit)).value();
}

Buffer text_of(std::size_t size) {
  Buffer text(size);
  for (std::size_t i = 0; i < size; ++i) {
    text[i] = static_cast<std::byte>(i * 7 + i / 251);
  }
  return text;
}

TEST(StreamCipher, CarriesBytesOfAnySizeInPiecesOfAnySize) {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{333}, std::size_t{1} << 20}) {
    StreamCipher sender(session_of('a'), Side::kInitiator);
    StreamCipher receiver(session_of('a'), Side::kAcceptor);
    for (const std::size_t size : {std::size_t{1}, std::size_t{1000}, StreamCipher::kMaxRecord * 2 + 5}) {
      const Buffer sealed = sender.seal(text_of(size));
      Buffer plain;
      for (std::size_t at = 0; at < sealed.size(); at += piece) {
        const auto part = ConstBytes(sealed).subspan(at, std::min(piece, sealed.size() - at));
        ASSERT_TRUE(receiver.open(part, plain).ok());
      }
      EXPECT_EQ(plain, text_of(size));
      EXPECT_EQ(receiver.seal({}).size(), 0U);
    }
  }
}

TEST(StreamCipher, HidesTheText) {
  StreamCipher sender(session_of('a'), Side::kInitiator);
  const Buffer once = sender.seal(text_of(64));
  const Buffer again = sender.seal(text_of(64));
  EXPECT_NE(once, again);
  const Buffer text = text_of(64);
  EXPECT_EQ(std::search(once.begin(), once.end(), text.begin(), text.begin() + 8), once.end());
}

TEST(StreamCipher, RefusesEveryChangedByteForGood) {
  const Buffer sealed = StreamCipher(session_of('a'), Side::kInitiator).seal(text_of(20));
  for (std::size_t at = 0; at < sealed.size(); ++at) {
    StreamCipher receiver(session_of('a'), Side::kAcceptor);
    Buffer changed = sealed;
    changed[at] ^= std::byte{1};
    changed.resize(changed.size() + 100);  // a longer length takes these
    Buffer plain;
    const Status status = receiver.open(changed, plain);
    EXPECT_TRUE(status.code() == Code::kCorrupt || (at < 4 && plain.empty())) << at;
    EXPECT_EQ(plain.size(), 0U) << at;
    if (!status.ok()) {
      EXPECT_FALSE(receiver.open(sealed, plain).ok());
      EXPECT_EQ(plain.size(), 0U) << at;
    }
  }
}

TEST(StreamCipher, RefusesRecordsThatAreRepeatedLeftOutOrSentBack) {
  StreamCipher sender(session_of('a'), Side::kInitiator);
  const Buffer first = sender.seal(text_of(9));
  const Buffer second = sender.seal(text_of(9));
  Buffer plain;
  StreamCipher repeated(session_of('a'), Side::kAcceptor);
  EXPECT_TRUE(repeated.open(first, plain).ok());
  EXPECT_EQ(repeated.open(first, plain).code(), Code::kCorrupt);
  StreamCipher left_out(session_of('a'), Side::kAcceptor);
  EXPECT_EQ(left_out.open(second, plain).code(), Code::kCorrupt);
  StreamCipher sent_back(session_of('a'), Side::kInitiator);
  EXPECT_EQ(sent_back.open(first, plain).code(), Code::kCorrupt);
  StreamCipher other_key(session_of('b'), Side::kAcceptor);
  EXPECT_EQ(other_key.open(first, plain).code(), Code::kCorrupt);
  EXPECT_EQ(plain.size(), 9U);
}

TEST(StreamCipher, HoldsNoRecordThatIsTooLong) {
  StreamCipher receiver(session_of('a'), Side::kAcceptor);
  const std::uint32_t length = StreamCipher::kMaxRecord + 1;
  Buffer bytes(sizeof(length));
  std::memcpy(bytes.data(), &length, sizeof(length));
  Buffer plain;
  EXPECT_EQ(receiver.open(bytes, plain).code(), Code::kCorrupt);
}

// Returns the keys of the two sides of a connection.
std::pair<Secret, Secret> session_keys() {
  auto initiator = Handshake::initiator(session_of('c'), Purpose::kAgent, {});
  auto acceptor = Handshake::acceptor(session_of('c'), Purpose::kAgent);
  EXPECT_TRUE(acceptor.feed(initiator.take_output()));
  EXPECT_TRUE(initiator.feed(acceptor.take_output()));
  EXPECT_TRUE(acceptor.feed(initiator.take_output()));
  return {initiator.session_key(), acceptor.session_key()};
}

TEST(StreamCipher, EachConnectionHasAKeyOfItsOwnThatBothSidesKnow) {
  const auto [one, other] = session_keys();
  EXPECT_EQ(one.to_hex(), other.to_hex());
  EXPECT_NE(one.to_hex(), session_keys().first.to_hex());
  EXPECT_NE(one.to_hex(), session_of('c').to_hex());
}

}  // namespace
}  // namespace sirtaki::rendezvous
