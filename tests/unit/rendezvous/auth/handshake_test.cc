#include "runtime/rendezvous/auth/handshake.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <string_view>

namespace sirtaki::rendezvous {
namespace {

std::vector<std::byte> bytes_of(std::string_view text) {
  std::vector<std::byte> out(text.size());
  std::memcpy(out.data(), text.data(), text.size());
  return out;
}

Secret secret_of(char digit) {
  return Secret::from_hex(std::string(2 * Secret::kBytes, digit)).value();
}

void expect_refused(const Result<std::size_t>& result) {
  ASSERT_FALSE(result);
  EXPECT_NE(result.status().text().find("wrong job secret or not a Sirtaki peer"), std::string::npos)
      << result.status().to_string();
}

// Runs both sides of a handshake in pieces of `piece` bytes; returns true if both are done.
bool shake(Handshake& initiator, Handshake& acceptor, std::size_t piece) {
  for (int round = 0; round < 3; ++round) {
    for (auto [from, to] : {std::pair(&initiator, &acceptor), std::pair(&acceptor, &initiator)}) {
      const auto output = from->take_output();
      for (std::size_t at = 0; at < output.size(); at += piece) {
        const ConstBytes part = ConstBytes(output).subspan(at, std::min(piece, output.size() - at));
        const auto used = to->feed(part);
        if (!used || *used != part.size()) {
          return false;
        }
      }
    }
  }
  return initiator.done() && acceptor.done();
}

TEST(Handshake, ProvesTheSecretAndCarriesTheHelloInPiecesOfAnySize) {
  for (const std::size_t piece : {std::size_t{1}, std::size_t{7}, std::size_t{4096}}) {
    for (const std::size_t size : {std::size_t{0}, std::size_t{5}, Handshake::kMaxHello}) {
      const std::vector<std::byte> hello(size, std::byte{42});
      auto initiator = Handshake::initiator(secret_of('a'), Purpose::kData, hello);
      auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kData);
      ASSERT_TRUE(shake(initiator, acceptor, piece));
      EXPECT_EQ(acceptor.peer_hello(), hello);
    }
  }
}

TEST(Handshake, LeavesWhatFollowsItToTheCaller) {
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, {});
  auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  ASSERT_TRUE(acceptor.feed(initiator.take_output()));
  ASSERT_TRUE(initiator.feed(acceptor.take_output()));
  auto last = initiator.take_output();
  const std::size_t own = last.size();
  last.resize(own + 9);
  const auto used = acceptor.feed(last);
  ASSERT_TRUE(used);
  EXPECT_EQ(*used, own);
  EXPECT_TRUE(acceptor.done());
  EXPECT_EQ(*acceptor.feed(last), 0u);
}

TEST(Handshake, TheInitiatorRefusesAnAcceptorWithAnotherSecret) {
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, {});
  auto acceptor = Handshake::acceptor(secret_of('b'), Purpose::kControl);
  ASSERT_TRUE(acceptor.feed(initiator.take_output()));
  expect_refused(initiator.feed(acceptor.take_output()));
  EXPECT_FALSE(initiator.done());
  EXPECT_TRUE(initiator.take_output().empty());
}

TEST(Handshake, TheAcceptorRefusesAProofMadeWithAnotherSecret) {
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, {});
  auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  ASSERT_TRUE(acceptor.feed(initiator.take_output()));
  ASSERT_TRUE(initiator.feed(acceptor.take_output()));
  auto proof = initiator.take_output();
  proof.back() ^= std::byte{1};
  expect_refused(acceptor.feed(proof));
  EXPECT_FALSE(acceptor.done());
  expect_refused(acceptor.feed(proof));
}

TEST(Handshake, ARecordedSessionCannotBeReplayed) {
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, bytes_of("rank 1"));
  auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  const auto greeting = initiator.take_output();
  ASSERT_TRUE(acceptor.feed(greeting));
  const auto answer = acceptor.take_output();
  ASSERT_TRUE(initiator.feed(answer));
  const auto proof = initiator.take_output();
  ASSERT_TRUE(acceptor.feed(proof));
  ASSERT_TRUE(acceptor.done());

  auto second_acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  ASSERT_TRUE(second_acceptor.feed(greeting));
  expect_refused(second_acceptor.feed(proof));
  auto second_initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, bytes_of("rank 1"));
  expect_refused(second_initiator.feed(answer));
}

TEST(Handshake, AnEchoOfTheAcceptorsOwnProofIsRefused) {
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, {});
  auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  ASSERT_TRUE(acceptor.feed(initiator.take_output()));
  const auto answer = acceptor.take_output();
  expect_refused(acceptor.feed(ConstBytes(answer).last(32)));
}

TEST(Handshake, AnotherHelloThanTheProvenOneIsRefused) {
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, bytes_of("rank 1"));
  auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  auto greeting = initiator.take_output();
  greeting.back() ^= std::byte{3};
  ASSERT_TRUE(acceptor.feed(greeting));
  expect_refused(initiator.feed(acceptor.take_output()));
}

TEST(Handshake, AnotherPurposeIsRefused) {
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kData, {});
  auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  expect_refused(acceptor.feed(initiator.take_output()));
  EXPECT_TRUE(acceptor.take_output().empty());
}

TEST(Handshake, AnUnsetSecretIsRefusedOnBothSides) {
  auto initiator = Handshake::initiator(Secret(), Purpose::kControl, {});
  EXPECT_TRUE(initiator.take_output().empty());
  EXPECT_EQ(initiator.feed(bytes_of("x")).status().code(), Code::kInvalidArgument);
  auto acceptor = Handshake::acceptor(Secret(), Purpose::kControl);
  EXPECT_EQ(acceptor.feed(bytes_of("x")).status().code(), Code::kInvalidArgument);
}

TEST(Handshake, AnotherProtocolVersionIsNamedOnBothSides) {
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, {});
  auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  auto greeting = initiator.take_output();
  greeting[8] = std::byte{9};
  const auto result = acceptor.feed(greeting);
  ASSERT_EQ(result.status().code(), Code::kMismatch);
  EXPECT_NE(result.status().text().find("protocol 9"), std::string::npos);

  auto old_initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, {});
  auto answer = acceptor.take_output();
  ASSERT_EQ(answer.size(), 10u);
  answer[8] = std::byte{7};
  EXPECT_NE(old_initiator.feed(answer).status().text().find("the peer speaks protocol 7"), std::string::npos);
}

TEST(Handshake, JunkIsRefusedAtItsFirstWrongByteWithoutAnAnswer) {
  auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  expect_refused(acceptor.feed(bytes_of("G")));
  EXPECT_TRUE(acceptor.take_output().empty());
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, {});
  expect_refused(initiator.feed(bytes_of("HTTP/1.1 400 Bad Request\r\n")));
}

TEST(Handshake, AnOversizeHelloIsRefusedBeforeItIsRead) {
  auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, {});
  auto greeting = initiator.take_output();
  const std::uint16_t size = Handshake::kMaxHello + 1;
  std::memcpy(greeting.data() + greeting.size() - 2, &size, 2);
  auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
  expect_refused(acceptor.feed(greeting));
}

TEST(Handshake, EveryOneBitFlipIsRefusedBySomebody) {
  for (std::size_t at = 0; at < 400; ++at) {
    auto initiator = Handshake::initiator(secret_of('a'), Purpose::kControl, bytes_of("rank 1"));
    auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
    std::size_t sent = 0;
    bool flipped = false;
    auto pass = [&](Handshake& from, Handshake& to) {
      auto output = from.take_output();
      if (at >= sent && at < sent + output.size()) {
        output[at - sent] ^= static_cast<std::byte>(1u << (at % 8));
        flipped = true;
      }
      sent += output.size();
      return to.feed(output).ok();
    };
    const bool passed = pass(initiator, acceptor) && pass(acceptor, initiator) && pass(initiator, acceptor);
    if (!flipped) {
      EXPECT_TRUE(passed && acceptor.done());
      EXPECT_EQ(at, sent);
      return;
    }
    EXPECT_FALSE(acceptor.done()) << "flip at byte " << at;
  }
}

TEST(Handshake, RandomBytesNeverPass) {
  std::mt19937 random(std::random_device{}());
  const auto seed = random();
  SCOPED_TRACE("seed " + std::to_string(seed));
  random.seed(seed);
  for (int i = 0; i < 300; ++i) {
    auto acceptor = Handshake::acceptor(secret_of('a'), Purpose::kControl);
    auto good = Handshake::initiator(secret_of('a'), Purpose::kControl, {}).take_output();
    good.resize(good.size() + 64);
    for (std::size_t j = random() % good.size(); j < good.size(); ++j) {
      good[j] = static_cast<std::byte>(random());
    }
    const auto used = acceptor.feed(good);
    EXPECT_FALSE(acceptor.done());
    EXPECT_LE(acceptor.take_output().size(), Handshake::kMaxBytes);
  }
}

}  // namespace
}  // namespace sirtaki::rendezvous
