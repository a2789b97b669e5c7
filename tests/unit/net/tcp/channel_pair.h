// Two Channels connected in memory, for tests of the protocol without sockets, byte by byte if necessary.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <memory>
#include <vector>

#include "runtime/net/tcp/channel.h"
#include "tests/conformance/collectives_worlds.h"

namespace sirtaki::net::testing {

class ChannelEnd {
 public:
  ChannelEnd(Rank rank, Rank peer, const ChannelLimits& limits) {
    Channel::Shared shared;
    shared.rank = rank;
    shared.epoch = Epoch(3);
    shared.limits = limits;
    shared.completions = &completions_;
    shared.tombstones = &tombstones_;
    shared.clock = &loop_;
    shared.samples = &samples;
    channel = std::make_unique<Channel>(shared, peer);
  }

  void run_callbacks() {
    while (!completions_.empty()) {
      completions_.run_one();
    }
  }
  void cancel(const TagGroup& tags) {
    const Status cause(Code::kAborted, "cancelled");
    tombstones_.add(tags, cause);
    channel->cancel(tags, cause);
  }
  // Returns up to `most` bytes that the channel has to write, and removes them from it.
  std::vector<std::byte> take(std::size_t most) {
    std::array<iovec, 16> pieces{};
    const std::size_t used = channel->gather(pieces);
    std::vector<std::byte> bytes;
    for (std::size_t i = 0; i < used && bytes.size() < most; ++i) {
      const auto* const data = static_cast<const std::byte*>(pieces[i].iov_base);
      bytes.insert(bytes.end(), data, data + std::min(pieces[i].iov_len, most - bytes.size()));
    }
    channel->written(bytes.size());
    return bytes;
  }

  std::vector<TransferSample> samples;
  std::unique_ptr<Channel> channel;

 private:
  ManualLoop loop_;
  Completions completions_;
  Tombstones tombstones_;
};

struct ChannelPair {
  explicit ChannelPair(const ChannelLimits& limits) : a(0, 1, limits), b(1, 0, limits) {}

  // Delivers up to `most` bytes in each direction; returns false if there were none.
  bool step(std::size_t most) {
    const auto to_b = a.take(most);
    const auto to_a = b.take(most);
    first_error.update(b.channel->read(to_b));
    first_error.update(a.channel->read(to_a));
    a.run_callbacks();
    b.run_callbacks();
    return !to_a.empty() || !to_b.empty();
  }
  void settle(std::size_t most = 1 << 20) {
    a.run_callbacks();
    b.run_callbacks();
    while (first_error.ok() && step(most)) {
    }
  }

  ChannelEnd a;
  ChannelEnd b;
  Status first_error;
};

inline Envelope at(std::uint64_t tag, std::uint32_t slot = 0, std::int32_t priority = 0) {
  return {0, OpTag(tag), slot, 0, priority};
}

// A frame of tag 1 with a payload of zeros.
inline std::vector<std::byte> raw(FrameType type, std::uint64_t length, std::size_t payload = 0) {
  FrameHeader header;
  header.type = type;
  header.epoch = Epoch(3);
  header.tag = OpTag(1);
  header.length = length;
  const FrameBytes bytes = encode_frame(header);
  std::vector<std::byte> frame(bytes.begin(), bytes.end());
  frame.resize(frame.size() + payload);
  return frame;
}

// The calls of a callback, and its last status.
struct Outcome {
  int calls = 0;
  Status status;
  Done done() {
    return [this](Status result) {
      ++calls;
      status = std::move(result);
    };
  }
  bool ok() const { return calls == 1 && status.ok(); }
  bool failed(Code code) const { return calls == 1 && status.code() == code; }
};

inline std::vector<std::byte> pattern(std::size_t size, unsigned salt) {
  std::vector<std::byte> bytes(size);
  for (std::size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((i * 31 + salt * 7 + (i >> 8)) & 0xff);
  }
  return bytes;
}

// Sends `size` bytes to a receive of `expected`, and checks that both sides learn that they differ.
inline void expect_mismatch(ChannelPair& pair, std::size_t size, std::size_t expected, bool posted_first) {
  const auto data = pattern(size, 1);
  std::vector<std::byte> out(expected);
  std::vector<std::byte> answer(4);
  Outcome sent;
  Outcome received;
  Outcome other;  // result of the receive of the sender in the same operation
  pair.a.channel->recv(at(1, 9), answer, other.done());
  if (posted_first) {
    pair.b.channel->recv(at(1), out, received.done());
    pair.settle();
  }
  pair.a.channel->send(at(1), data, sent.done());
  pair.settle();
  if (!posted_first) {
    pair.b.channel->recv(at(1), out, received.done());
    pair.settle();
  }
  ASSERT_TRUE(pair.first_error.ok()) << pair.first_error.to_string();
  EXPECT_TRUE(received.failed(Code::kMismatch)) << size << " " << expected << " " << posted_first;
  EXPECT_EQ(received.status.blame().rank, 0);
  EXPECT_EQ(sent.calls, 1);
  EXPECT_TRUE(sent.failed(Code::kMismatch) || other.failed(Code::kMismatch)) << size << " " << expected;
}

}  // namespace sirtaki::net::testing
