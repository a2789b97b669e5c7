// Large messages that a channel to a far peer sends without permission.
#include <gtest/gtest.h>

#include <random>

#include "tests/unit/net/tcp/channel_pair.h"

namespace sirtaki::net::testing {
namespace {

using std::chrono::microseconds;

ChannelLimits pushing_limits() {
  ChannelLimits limits;
  limits.eager_bytes = 100;
  limits.window_bytes = 8192;
  limits.fragment_bytes = 256;
  return limits;
}

// Messages of 101 to 2048 bytes are pushed.
struct PushingPair : ChannelPair {
  PushingPair() : ChannelPair(pushing_limits()) {
    a.channel->set_push_exponent(11);
    b.channel->set_push_exponent(11);
  }
  // Delivers what `a` has to write, and nothing from `b`.
  void deliver_to_b() {
    for (auto bytes = a.take(1 << 20); !bytes.empty(); bytes = a.take(1 << 20)) {
      first_error.update(b.channel->read(bytes));
      a.run_callbacks();
      b.run_callbacks();
    }
  }
};

TEST(Push, TheLimitIsWhatIsCopiedInARoundTripAndAQuarterOfTheWindow) {
  const ChannelLimits defaults;
  EXPECT_EQ(push_exponent(microseconds(0), defaults), 0);
  ChannelLimits none;
  none.eager_bytes = 0;
  EXPECT_EQ(push_exponent(microseconds(0), none), 0) << "the kernel reports no round trip";
  EXPECT_EQ(push_exponent(microseconds(100), defaults), 0) << "no more than eager";
  EXPECT_EQ(push_exponent(microseconds(200), defaults), 17);
  EXPECT_EQ(push_exponent(microseconds(1100), defaults), 20);
  EXPECT_EQ(push_exponent(std::chrono::milliseconds(40), defaults), 21);
}

TEST(Push, AMessageArrivesWithoutAWordFromItsReceiver) {
  for (const std::size_t size : {101U, 256U, 257U, 2048U}) {
    for (const bool posted_first : {false, true}) {
      PushingPair pair;
      const auto data = pattern(size, 1);
      std::vector<std::byte> out(size);
      Outcome sent;
      Outcome received;
      if (posted_first) {
        pair.b.channel->recv(at(1), out, received.done());
        EXPECT_FALSE(pair.b.channel->wants_write()) << "a permission that nobody waits for";
      }
      pair.a.channel->send(at(1), data, sent.done());
      pair.deliver_to_b();
      if (!posted_first) {
        pair.b.channel->recv(at(1), out, received.done());
        pair.deliver_to_b();
        pair.b.run_callbacks();
      }
      ASSERT_TRUE(pair.first_error.ok()) << pair.first_error.to_string();
      EXPECT_TRUE(sent.ok() && received.ok()) << size << " " << posted_first;
      EXPECT_EQ(out, data);
      EXPECT_EQ(pair.a.samples.size(), 1U);
    }
  }
}

TEST(Push, AnUrgentMessagePassesBetweenFragments) {
  PushingPair pair;
  const auto bulk = pattern(2048, 1);
  const auto urgent = pattern(300, 2);
  std::vector<std::byte> bulk_out(bulk.size());
  std::vector<std::byte> urgent_out(urgent.size());
  Outcome bulk_done;
  Outcome urgent_done;
  pair.b.channel->recv(at(1), bulk_out, bulk_done.done());
  pair.b.channel->recv(at(2), urgent_out, urgent_done.done());
  pair.a.channel->send(at(1, 0, 10), bulk, {});
  pair.step(256 + 100);  // the bulk message has begun
  pair.a.channel->send(at(2, 0, -1), urgent, {});
  while (urgent_done.calls == 0) {
    ASSERT_TRUE(pair.step(256 + 32));
  }
  EXPECT_EQ(bulk_done.calls, 0);
  pair.settle();
  EXPECT_TRUE(bulk_done.ok());
  EXPECT_EQ(bulk_out, bulk);
  EXPECT_EQ(urgent_out, urgent);
}

TEST(Push, SmallMessagesFindRoomBesideAnyNumberOfPushes) {
  PushingPair pair;
  const auto bulk = pattern(2000, 1);
  const auto urgent = pattern(50, 2);
  for (std::uint64_t tag = 1; tag <= 10; ++tag) {
    pair.a.channel->send(at(tag, 0, 5), bulk, {});
  }
  std::vector<std::byte> out(urgent.size());
  Outcome received;
  pair.b.channel->recv(at(99), out, received.done());
  pair.a.channel->send(at(99, 0, -1), urgent, {});
  pair.deliver_to_b();
  EXPECT_TRUE(received.ok()) << "it waits for permission";
}

TEST(Push, AnotherLengthIsAMismatchOnBothSides) {
  for (const auto& [size, expected] :
       std::vector<std::pair<std::size_t, std::size_t>>{{500, 501}, {500, 50}, {50, 500}, {500, 5000}, {5000, 500}}) {
    for (const bool posted_first : {false, true}) {
      PushingPair pair;
      expect_mismatch(pair, size, expected, posted_first);
    }
  }
}

TEST(Push, MoreMessagesThanTheWindowHoldsArriveInOrder) {
  for (std::uint64_t seed = 1; seed <= 200; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    PushingPair pair;
    constexpr std::size_t kMessages = 40;
    std::vector<std::vector<std::byte>> data;
    std::vector<std::vector<std::byte>> out;
    std::vector<Outcome> sent(kMessages);
    std::vector<Outcome> received(kMessages);
    for (std::size_t i = 0; i < kMessages; ++i) {
      data.push_back(pattern(i % 4 == 3 ? 3000 : random() % 2049, static_cast<unsigned>(i)));
      out.emplace_back(data.back().size());
    }
    std::size_t next_send = 0;
    std::size_t next_receive = 0;
    while (next_send < kMessages || next_receive < kMessages) {
      // Few tags, so that several messages of one are under way; those of 3000 bytes have one of their own.
      const auto name = [](std::size_t i) { return at(i % 4 == 3 ? 3 : 1 + i % 2); };
      const auto act = random() % 3;
      if (act == 0 && next_send < kMessages) {
        pair.a.channel->send(name(next_send), data[next_send], sent[next_send].done());
        ++next_send;
      } else if (act == 1 && next_receive < kMessages) {
        pair.b.channel->recv(name(next_receive), out[next_receive], received[next_receive].done());
        ++next_receive;
      } else {
        pair.step(1 + random() % 700);
      }
    }
    pair.settle(1 + random() % 700);
    ASSERT_TRUE(pair.first_error.ok()) << pair.first_error.to_string();
    for (std::size_t i = 0; i < kMessages; ++i) {
      ASSERT_TRUE(sent[i].ok() && received[i].ok()) << i;
    }
    EXPECT_EQ(out, data);
  }
}

TEST(Push, CancelLetsGoOfMemoryAndTheWindowIsWholeAgain) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    PushingPair pair;
    for (std::uint64_t tag = 1; tag <= 30; ++tag) {
      const std::size_t size = 101 + random() % 1900;
      auto doomed = std::make_unique<std::vector<std::byte>>(pattern(size, 3));
      auto doomed_out = std::make_unique<std::vector<std::byte>>(size);
      Outcome sent;
      Outcome received;
      pair.a.channel->send(at(tag), *doomed, sent.done());
      pair.step(random() % 100);
      if (random() % 2 == 0) {
        pair.b.channel->recv(at(tag), *doomed_out, received.done());
      }
      for (auto steps = random() % 10; steps > 0; --steps) {
        pair.step(1 + random() % 400);
      }
      const bool sender_first = random() % 2 == 0;
      (sender_first ? pair.a : pair.b).cancel(OpTag(tag));
      (sender_first ? doomed : doomed_out).reset();
      for (auto steps = random() % 5; steps > 0; --steps) {
        pair.step(1 + random() % 150);
      }
      (sender_first ? pair.b : pair.a).cancel(OpTag(tag));
      (sender_first ? doomed_out : doomed).reset();
      pair.settle(1 + random() % 300);
      ASSERT_TRUE(pair.first_error.ok()) << pair.first_error.to_string();
      ASSERT_EQ(sent.calls, 1);
    }
    // Half of the window stays free beside a push, and less than a quarter may be on its way back.
    const auto data = pattern(1900, 5);
    Outcome sent;
    pair.a.channel->send(at(100), data, sent.done());
    pair.deliver_to_b();
    ASSERT_EQ(sent.calls, 1) << "no credit came back";
  }
}

TEST(Push, NonsenseFromAPeerIsCorrupt) {
  const auto corrupt = [](std::initializer_list<std::vector<std::byte>> frames) {
    PushingPair pair;
    Status status;
    for (const auto& bytes : frames) {
      status.update(pair.b.channel->read(bytes));
    }
    return status.code();
  };
  EXPECT_EQ(corrupt({raw(FrameType::kPush, 2049)}), Code::kCorrupt);
  EXPECT_EQ(corrupt({raw(FrameType::kPush, 100)}), Code::kCorrupt) << "small enough for an eager frame";
  const auto push = raw(FrameType::kPush, 2048);
  EXPECT_EQ(corrupt({push, push, push, push}), Code::kCorrupt) << "more than the window";
  EXPECT_EQ(corrupt({push, raw(FrameType::kPushed, 256, 256)}), Code::kOk);
  EXPECT_EQ(corrupt({push, raw(FrameType::kPushed, 257)}), Code::kCorrupt);
  EXPECT_EQ(corrupt({push, raw(FrameType::kPushed, 0)}), Code::kCorrupt);
  EXPECT_EQ(corrupt({raw(FrameType::kPushed, 257, 257)}), Code::kCorrupt) << "larger than any fragment";
  ChannelEnd near(1, 0, pushing_limits());
  EXPECT_EQ(near.channel->read(push).code(), Code::kCorrupt) << "no push was agreed on";
}

TEST(Push, TheWelcomeTellsTheExponent) {
  const auto welcome = decode_frame(encode_frame(welcome_frame(Epoch(3), 1, pushing_limits(), 21)), Epoch(3));
  ASSERT_TRUE(welcome.ok());
  EXPECT_EQ(welcome->flags, 21);
  EXPECT_EQ(limits_of_welcome(*welcome), pushing_limits());
  EXPECT_FALSE(decode_frame(encode_frame(welcome_frame(Epoch(3), 1, pushing_limits(), 41)), Epoch(3)).ok());
}

}  // namespace
}  // namespace sirtaki::net::testing
