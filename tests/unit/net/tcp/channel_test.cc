#include "runtime/net/tcp/channel.h"

#include <gtest/gtest.h>

#include <random>

#include "tests/unit/net/tcp/channel_pair.h"

namespace sirtaki::net::testing {
namespace {

ChannelLimits small_limits() {
  ChannelLimits limits;
  limits.eager_bytes = 100;
  limits.window_bytes = 1000;
  limits.fragment_bytes = 256;
  return limits;
}

TEST(Channel, DeliversSmallAndLargeMessagesInAnyPostingOrder) {
  for (const std::size_t size : {0U, 1U, 100U, 101U, 256U, 257U, 5000U}) {
    for (const bool posted_first : {false, true}) {
      for (const std::size_t step : {1U, 7U, 4096U}) {
        ChannelPair pair(small_limits());
        const auto data = pattern(size, 1);
        std::vector<std::byte> out(size);
        Outcome sent;
        Outcome received;
        if (posted_first) {
          pair.b.channel->recv(at(1), out, received.done());
          pair.settle(step);
        }
        pair.a.channel->send(at(1), data, sent.done());
        pair.settle(step);
        if (!posted_first) {
          pair.b.channel->recv(at(1), out, received.done());
          pair.settle(step);
        }
        ASSERT_TRUE(pair.first_error.ok()) << pair.first_error.to_string();
        EXPECT_TRUE(sent.ok() && received.ok()) << size;
        EXPECT_EQ(out, data);
      }
    }
  }
}

TEST(Channel, AReceivePostedWhileItsBytesArriveGetsThem) {
  ChannelPair pair(small_limits());
  const auto data = pattern(90, 2);
  std::vector<std::byte> out(90);
  Outcome sent;
  Outcome received;
  pair.a.channel->send(at(1), data, sent.done());
  pair.step(60);
  pair.b.channel->recv(at(1), out, received.done());
  pair.settle();
  EXPECT_TRUE(received.ok());
  EXPECT_EQ(out, data);
}

TEST(Channel, CallbacksNeverRunInsideTheCall) {
  ChannelPair pair(small_limits());
  const auto data = pattern(10, 2);
  std::vector<std::byte> out(10);
  Outcome sent;
  Outcome received;
  pair.a.channel->send(at(1), data, sent.done());
  pair.settle();
  pair.b.channel->recv(at(1), out, received.done());
  EXPECT_EQ(received.calls, 0);
  pair.settle();
  EXPECT_TRUE(received.ok());
}

TEST(Channel, ManySmallMessagesWithoutReceivesStayInsideTheWindow) {
  ChannelPair pair(small_limits());
  constexpr std::size_t kMessages = 100;
  std::vector<std::vector<std::byte>> data;
  std::vector<std::vector<std::byte>> out(kMessages, std::vector<std::byte>(80));
  std::vector<Outcome> sent(kMessages);
  std::vector<Outcome> received(kMessages);
  for (std::size_t i = 0; i < kMessages; ++i) {
    data.push_back(pattern(80, static_cast<unsigned>(i)));
  }
  for (std::size_t i = 0; i < kMessages; ++i) {
    pair.a.channel->send(at(i), data[i], sent[i].done());
  }
  pair.settle();
  ASSERT_TRUE(pair.first_error.ok()) << pair.first_error.to_string();
  // Each message takes 80 + 64 bytes, so the seventh is beyond the limit of unrequested data.
  EXPECT_EQ(sent[5].calls, 1);
  EXPECT_EQ(sent[6].calls, 0);
  for (std::size_t i = kMessages; i-- > 0;) {
    pair.b.channel->recv(at(i), out[i], received[i].done());
  }
  pair.settle();
  for (std::size_t i = 0; i < kMessages; ++i) {
    EXPECT_TRUE(sent[i].ok() && received[i].ok()) << i;
  }
  EXPECT_EQ(out, data);
}

TEST(Channel, AnEmptyMessageForWhichThereIsNoWindowArrives) {
  for (const bool posted_first : {false, true}) {
    ChannelPair pair(small_limits());
    constexpr std::size_t kMessages = 100;
    std::vector<Outcome> sent(kMessages);
    std::vector<Outcome> received(kMessages);
    const auto post = [&] {
      for (std::size_t i = 0; i < kMessages; ++i) {
        pair.b.channel->recv(at(i), {}, received[i].done());
      }
    };
    if (posted_first) {
      post();
    }
    for (std::size_t i = 0; i < kMessages; ++i) {
      pair.a.channel->send(at(i), {}, sent[i].done());
    }
    pair.settle();
    if (!posted_first) {
      EXPECT_EQ(sent.back().calls, 0) << "the window holds all";
      post();
      pair.settle();
    }
    ASSERT_TRUE(pair.first_error.ok()) << pair.first_error.to_string();
    for (std::size_t i = 0; i < kMessages; ++i) {
      EXPECT_TRUE(sent[i].ok() && received[i].ok()) << i;
    }
  }
}

TEST(Channel, AnotherLengthIsAMismatchOnBothSides) {
  // Pairs of the sent and the expected size, each small or large.
  for (const auto& [size, expected] :
       std::vector<std::pair<std::size_t, std::size_t>>{{50, 51}, {50, 0}, {500, 501}, {500, 50}, {50, 500}}) {
    for (const bool posted_first : {false, true}) {
      ChannelPair pair(small_limits());
      expect_mismatch(pair, size, expected, posted_first);
    }
  }
}

TEST(Channel, AnotherCheckIsAMismatch) {
  ChannelPair pair(small_limits());
  const auto data = pattern(50, 1);
  std::vector<std::byte> out(50);
  Outcome sent;
  Outcome received;
  Envelope mine = at(1);
  mine.check = 5;
  pair.b.channel->recv(at(1), out, received.done());
  pair.a.channel->send(mine, data, sent.done());
  pair.settle();
  EXPECT_TRUE(received.failed(Code::kMismatch));
}

TEST(Channel, AnUrgentMessageGoesFirstAtTheNextFragmentBorder) {
  ChannelPair pair(small_limits());
  const auto bulk = pattern(256 * 40, 1);
  const auto urgent = pattern(256 * 2, 2);
  std::vector<std::byte> bulk_out(bulk.size());
  std::vector<std::byte> urgent_out(urgent.size());
  Outcome bulk_done;
  Outcome urgent_done;
  pair.b.channel->recv(at(1), bulk_out, bulk_done.done());
  pair.b.channel->recv(at(2), urgent_out, urgent_done.done());
  pair.settle();
  pair.a.channel->send(at(1, 0, 10), bulk, {});
  pair.step(256 + 100);  // the bulk message has begun
  pair.a.channel->send(at(2, 0, -1), urgent, {});
  int steps = 0;
  while (urgent_done.calls == 0) {
    ASSERT_TRUE(pair.step(256 + 32));
    ASSERT_LT(++steps, 8) << "the urgent message waited for the bulk";
  }
  EXPECT_EQ(bulk_done.calls, 0);
  pair.settle();
  EXPECT_TRUE(bulk_done.ok());
  EXPECT_EQ(bulk_out, bulk);
  EXPECT_EQ(urgent_out, urgent);
}

TEST(Channel, ASmallUrgentMessageOvertakesBulkInAnyQueuedState) {
  ChannelPair pair(small_limits());
  const auto bulk = pattern(256 * 40, 1);
  const auto urgent = pattern(20, 2);
  std::vector<std::byte> bulk_out(bulk.size());
  std::vector<std::byte> urgent_out(urgent.size());
  Outcome bulk_done;
  Outcome urgent_done;
  pair.b.channel->recv(at(1), bulk_out, bulk_done.done());
  pair.b.channel->recv(at(2), urgent_out, urgent_done.done());
  pair.settle();
  pair.a.channel->send(at(1, 0, 10), bulk, {});
  pair.a.channel->send(at(2, 0, 1), urgent, {});
  pair.step(1 << 20);
  EXPECT_TRUE(urgent_done.ok());
  EXPECT_EQ(bulk_done.calls, 0);
}

TEST(Channel, ASmallMessageNeverOvertakesAMoreUrgentLargeOne) {
  ChannelPair pair(small_limits());
  const auto urgent = pattern(256 * 10, 1);
  const auto small = pattern(20, 2);
  std::vector<std::byte> urgent_out(urgent.size());
  std::vector<std::byte> small_out(small.size());
  Outcome urgent_done;
  Outcome small_done;
  pair.b.channel->recv(at(1), urgent_out, urgent_done.done());
  pair.b.channel->recv(at(2), small_out, small_done.done());
  pair.settle();
  pair.a.channel->send(at(1, 0, -1), urgent, {});
  pair.a.channel->send(at(2, 0, 7), small, {});
  while (small_done.calls == 0) {
    ASSERT_TRUE(pair.step(256 + 32));
    ASSERT_TRUE(small_done.calls == 0 || urgent_done.ok());
  }
  EXPECT_EQ(urgent_out, urgent);
  EXPECT_EQ(small_out, small);
}

TEST(Channel, MessagesOfOnePriorityGoInTheOrderOfTheirSending) {
  ChannelPair pair(small_limits());
  constexpr std::size_t kMessages = 9;
  const auto data = pattern(20, 3);
  std::vector<std::vector<std::byte>> outs(kMessages, std::vector<std::byte>(data.size()));
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < kMessages; ++i) {
    pair.b.channel->recv(at(i + 1), outs[i], [&order, i](const Status& status) {
      EXPECT_TRUE(status.ok());
      order.push_back(i);
    });
  }
  for (std::size_t i = 0; i < kMessages; ++i) {
    pair.a.channel->send(at(i + 1, 0, 2 - static_cast<std::int32_t>(i % 3)), data, {});
  }
  pair.settle();
  EXPECT_EQ(order, (std::vector<std::size_t>{2, 5, 8, 1, 4, 7, 0, 3, 6}));
}

TEST(Channel, CancelLetsGoOfMemoryInTheMiddleOfAFragment) {
  for (std::uint64_t seed = 1; seed <= 400; ++seed) {
    SCOPED_TRACE(seed);
    std::mt19937_64 random(seed);
    ChannelPair pair(small_limits());
    const std::size_t size = 1 + random() % 2000;
    auto doomed = std::make_unique<std::vector<std::byte>>(pattern(size, 3));
    auto doomed_out = std::make_unique<std::vector<std::byte>>(size);
    const auto other = pattern(777, 4);
    std::vector<std::byte> other_out(777);
    Outcome sent;
    Outcome received;
    Outcome other_done;
    pair.a.channel->send(at(1), *doomed, sent.done());
    pair.b.channel->recv(at(1), *doomed_out, received.done());
    pair.a.channel->send(at(2), other, {});
    pair.b.channel->recv(at(2), other_out, other_done.done());
    for (auto steps = random() % 30; steps > 0; --steps) {
      pair.step(1 + random() % 150);
    }
    const bool sender_first = random() % 2 == 0;
    (sender_first ? pair.a : pair.b).cancel(OpTag(1));
    (sender_first ? doomed : doomed_out).reset();
    for (auto steps = random() % 5; steps > 0; --steps) {
      pair.step(1 + random() % 150);
    }
    (sender_first ? pair.b : pair.a).cancel(OpTag(1));
    (sender_first ? doomed_out : doomed).reset();
    pair.settle(1 + random() % 300);
    ASSERT_TRUE(pair.first_error.ok()) << pair.first_error.to_string();
    EXPECT_EQ(sent.calls, 1);
    EXPECT_EQ(received.calls, 1);
    EXPECT_TRUE(other_done.ok());
    EXPECT_EQ(other_out, other);
    EXPECT_EQ(pair.a.channel->queued_bytes(), 0U);
  }
}

TEST(Channel, TheWindowIsWholeAgainAfterCancelledMessages) {
  ChannelPair pair(small_limits());
  const auto data = pattern(90, 1);
  for (std::uint64_t tag = 1; tag <= 50; ++tag) {
    Outcome sent;
    pair.a.channel->send(at(tag), data, sent.done());
    pair.step(40);
    pair.b.cancel(OpTag(tag));
    pair.settle();
    ASSERT_EQ(sent.calls, 1) << "no credit came back, tag " << tag;
  }
  EXPECT_TRUE(pair.first_error.ok());
}

TEST(Channel, ByeEndsWhatCanNoLongerComeAndKeepsWhatHasCome) {
  ChannelPair pair(small_limits());
  const auto data = pattern(50, 1);
  std::vector<std::byte> out(50);
  std::vector<std::byte> never(50);
  Outcome early;
  Outcome late;
  pair.a.channel->send(at(1), data, {});
  pair.b.channel->recv(at(2), never, late.done());
  pair.settle();
  pair.a.channel->fail({Code::kShutdown, "closing"}, false);
  pair.a.channel->say_bye();
  pair.settle();
  EXPECT_TRUE(late.failed(Code::kPeerLost));
  pair.b.channel->recv(at(1), out, early.done());
  pair.settle();
  EXPECT_TRUE(early.ok());
  EXPECT_EQ(out, data);
  EXPECT_TRUE(pair.b.channel->peer_said_bye());
}

TEST(Channel, SamplesTellLargeTransfersOnBothSides) {
  ChannelPair pair(small_limits());
  const auto data = pattern(3000, 1);
  std::vector<std::byte> out(3000);
  pair.a.channel->send(at(1), data, {});
  pair.b.channel->recv(at(1), out, {});
  pair.settle();
  ASSERT_EQ(pair.a.samples.size(), 1U);
  EXPECT_TRUE(pair.a.samples[0].sent);
  EXPECT_EQ(pair.a.samples[0].bytes, 3000U);
  ASSERT_EQ(pair.b.samples.size(), 1U);
  EXPECT_EQ(pair.b.samples[0].bytes, 3000U);
  EXPECT_EQ(pair.b.samples[0].peer, 0);
  EXPECT_FALSE(pair.b.samples[0].sent);
}

TEST(Channel, NonsenseFromAPeerIsCorrupt) {
  const auto corrupt = [](const std::vector<std::byte>& bytes) {
    ChannelEnd end(1, 0, small_limits());
    return end.channel->read(bytes).code();
  };
  EXPECT_EQ(corrupt(pattern(64, 1)), Code::kCorrupt);
  EXPECT_EQ(corrupt(raw(FrameType::kEager, 101)), Code::kCorrupt) << "larger than any eager message";
  EXPECT_EQ(corrupt(raw(FrameType::kData, 257)), Code::kCorrupt) << "larger than any fragment";
  EXPECT_EQ(corrupt(raw(FrameType::kCredit, 1)), Code::kCorrupt) << "credit nobody used";
  EXPECT_EQ(corrupt(raw(FrameType::kWelcome, 0)), Code::kCorrupt);
  auto unknown = raw(FrameType::kBye, 0);
  unknown[2] = std::byte{99};
  EXPECT_EQ(corrupt(unknown), Code::kCorrupt);
  auto flags = raw(FrameType::kBye, 0);
  flags[3] = std::byte{1};
  EXPECT_EQ(corrupt(flags), Code::kCorrupt);
  auto epoch = raw(FrameType::kBye, 0);
  epoch[4] = std::byte{99};
  EXPECT_EQ(corrupt(epoch), Code::kCorrupt);
  auto after_bye = raw(FrameType::kBye, 0);
  const auto more = raw(FrameType::kRts, 5);
  after_bye.insert(after_bye.end(), more.begin(), more.end());
  EXPECT_EQ(corrupt(after_bye), Code::kCorrupt);
  std::vector<std::byte> flood;
  for (int i = 0; i < 7; ++i) {
    const auto one = raw(FrameType::kEager, 100, 100);
    flood.insert(flood.end(), one.begin(), one.end());
  }
  EXPECT_EQ(corrupt(flood), Code::kCorrupt) << "more than the window";
}

TEST(Channel, MoreThanWasPermittedIsCorruptAndStaysInsideTheMemory) {
  ChannelEnd end(1, 0, small_limits());
  std::vector<std::byte> out(300);
  end.channel->recv(at(1), out, {});
  ASSERT_TRUE(end.channel->read(raw(FrameType::kData, 256, 256)).ok());
  EXPECT_EQ(end.channel->read(raw(FrameType::kData, 45, 45)).code(), Code::kCorrupt);
}

TEST(Channel, AnEmptyFragmentOfAMessageThatIsNotEmptyIsCorrupt) {
  ChannelEnd end(1, 0, small_limits());
  std::vector<std::byte> out(300);
  end.channel->recv(at(1), out, {});
  EXPECT_EQ(end.channel->read(raw(FrameType::kData, 0)).code(), Code::kCorrupt);
}

}  // namespace
}  // namespace sirtaki::net::testing
