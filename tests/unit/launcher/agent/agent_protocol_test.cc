#include "launcher/agent/agent_protocol.h"

#include <gtest/gtest.h>

#include <random>

namespace sirtaki::launcher {
namespace {

ConstBytes as_bytes(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

Spawn sample_spawn() {
  Spawn spawn;
  spawn.ranks = {2, 3, 7};
  spawn.most_ranks = 4;
  spawn.rendezvous = "10.0.0.1:4242";
  spawn.secret_hex = std::string(64, 'a');
  spawn.cwd = "/tmp";
  spawn.argv = {"python", "train.py", ""};
  spawn.env = {{"A", "1"}, {"B", "two\nlines"}};
  spawn.rank_env = {{{"SIRTAKI_JOB_RANK", "2"}}, {{"SIRTAKI_JOB_RANK", "3"}, {"C", ""}}, {}};
  spawn.term_grace_ms = 30'000;
  return spawn;
}

Hello sample_hello() {
  Hello hello;
  hello.version = "9.9";
  hello.hostname = "node";
  hello.cores = 4;
  hello.simd = "avx2";
  hello.launcher_address = "10.0.0.9";
  hello.addresses = {{"eth0", "10.0.0.1"}, {"eth0", "fd00::1"}};
  return hello;
}

TEST(FrameDecoder, FindsFramesWhateverThePieces) {
  std::string stream(kPreamble);
  for (int i = 0; i < 20; ++i) {
    const auto frame = encode_frame(FrameType::kPong, as_bytes(std::string(static_cast<std::size_t>(i * 7), 'x')));
    stream.append(reinterpret_cast<const char*>(frame.data()), frame.size());
  }
  for (std::size_t piece = 1; piece < 40; ++piece) {
    FrameDecoder decoder(true);
    std::vector<Frame> frames;
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      ASSERT_TRUE(decoder.feed(as_bytes(std::string_view(stream).substr(at, piece)), frames).ok());
    }
    ASSERT_EQ(frames.size(), 20U) << piece;
    EXPECT_EQ(frames[19].payload.size(), 19U * 7U);
  }
}

TEST(FrameDecoder, SkipsWhatALoginShellPrints) {
  FrameDecoder decoder(true);
  std::vector<Frame> frames;
  const auto frame = encode_frame(FrameType::kPong, {});
  ASSERT_TRUE(decoder.feed(as_bytes("Welcome!\nquota: 80%\n"), frames).ok());
  ASSERT_TRUE(decoder.feed(as_bytes(kPreamble), frames).ok());
  ASSERT_TRUE(decoder.feed(frame, frames).ok());
  EXPECT_EQ(frames.size(), 1U);
  EXPECT_EQ(decoder.junk(), "Welcome!\nquota: 80%\n");
}

TEST(FrameDecoder, GivesUpOnEndlessJunk) {
  FrameDecoder decoder(true);
  std::vector<Frame> frames;
  Status status;
  for (int i = 0; i < 20 && status.ok(); ++i) {
    status = decoder.feed(as_bytes(std::string(8192, 'j')), frames);
  }
  EXPECT_EQ(status.code(), Code::kCorrupt);
  EXPECT_LE(decoder.junk().size(), kMaxJunk);
}

TEST(FrameDecoder, RefusesImpossibleLengthsForGood) {
  for (const std::uint32_t length : {std::uint32_t{0}, static_cast<std::uint32_t>(kMaxFrame) + 1, 0xffffffffU}) {
    FrameDecoder decoder(false);
    std::vector<Frame> frames;
    EXPECT_EQ(decoder.feed(ConstBytes(reinterpret_cast<const std::byte*>(&length), 4), frames).code(), Code::kCorrupt);
    EXPECT_FALSE(decoder.feed(encode_frame(FrameType::kPong, {}), frames).ok());
    EXPECT_TRUE(frames.empty());
  }
}

TEST(AgentMessages, SurviveTheirEncoding) {
  const auto hello = decode_hello(encode(sample_hello()));
  ASSERT_TRUE(hello);
  EXPECT_EQ(hello->version, "9.9");
  EXPECT_EQ(hello->addresses.at(1).address, "fd00::1");
  const auto spawn = decode_spawn(encode(sample_spawn()));
  ASSERT_TRUE(spawn);
  EXPECT_EQ(spawn->ranks, sample_spawn().ranks);
  EXPECT_EQ(spawn->most_ranks, sample_spawn().most_ranks);
  EXPECT_EQ(spawn->argv, sample_spawn().argv);
  EXPECT_EQ(spawn->env, sample_spawn().env);
  EXPECT_EQ(spawn->rank_env, sample_spawn().rank_env);
  EXPECT_EQ(spawn->term_grace_ms, sample_spawn().term_grace_ms);
  EXPECT_EQ(spawn->secret_hex, sample_spawn().secret_hex);
  const auto output = decode_output(encode(Output{3, OutputStream::kStderr, {std::byte{0}, std::byte{255}}}));
  ASSERT_TRUE(output);
  EXPECT_EQ(output->stream, OutputStream::kStderr);
  EXPECT_EQ(output->data.size(), 2U);
  const auto exited = decode_exited(encode(Exited{1, 139}));
  ASSERT_TRUE(exited);
  EXPECT_EQ(exited->wait_status, 139);
}

template <class Decode>
void expect_all_cuts_refused(const std::vector<std::byte>& bytes, Decode decode, const char* what) {
  ASSERT_TRUE(decode(bytes)) << what;
  for (std::size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_FALSE(decode(ConstBytes(bytes.data(), size))) << what << " cut to " << size;
  }
  std::vector<std::byte> longer = bytes;
  longer.push_back(std::byte{0});
  EXPECT_FALSE(decode(longer)) << what << " with a byte too many";
}

TEST(AgentMessages, AreRefusedWhenCutOrTooLong) {
  expect_all_cuts_refused(encode(sample_hello()), decode_hello, "hello");
  expect_all_cuts_refused(encode(sample_spawn()), decode_spawn, "spawn");
  expect_all_cuts_refused(encode(Probe{{"a:1", "b:2"}, 5}), decode_probe, "probe");
  expect_all_cuts_refused(encode(Probed{-1, {"no"}}), decode_probed, "probed");
  expect_all_cuts_refused(encode(Spawned{1, 99}), decode_spawned, "spawned");
  expect_all_cuts_refused(encode(SpawnFailed{1, 127, "no"}), decode_spawn_failed, "spawn failed");
  expect_all_cuts_refused(encode(Output{0, OutputStream::kStdout, {std::byte{1}}}), decode_output, "output");
  expect_all_cuts_refused(encode(Exited{0, 0}), decode_exited, "exited");
  expect_all_cuts_refused(encode(Kill{15}), decode_kill, "kill");
  expect_all_cuts_refused(encode(EndRank{2, 15}), decode_end_rank, "end of a rank");
  expect_all_cuts_refused(encode(Signal{10}), decode_signal, "signal");
  expect_all_cuts_refused(encode(Signalled{10, {0, 3}}), decode_signalled, "signalled");
  expect_all_cuts_refused(encode(Tell{"text", 3}), decode_tell, "text for the user");
  expect_all_cuts_refused(encode_rank(3), decode_rank, "rank");
  expect_all_cuts_refused(encode_credit(3), decode_credit, "credit");
}

TEST(AgentMessages, AnotherProtocolStillTellsItsVersion) {
  Hello hello = sample_hello();
  hello.protocol = kProtocol + 1;
  std::vector<std::byte> bytes = encode(hello);
  bytes.erase(bytes.end() - 3, bytes.end());  // fields after the version may have another format there
  const auto decoded = decode_hello(bytes);
  ASSERT_TRUE(decoded);
  EXPECT_EQ(decoded->protocol, kProtocol + 1);
  EXPECT_EQ(decoded->version, "9.9");
}

TEST(AgentMessages, SpawnWithoutSenseIsRefused) {
  Spawn spawn = sample_spawn();
  spawn.argv.clear();
  EXPECT_FALSE(decode_spawn(encode(spawn)));
  spawn = sample_spawn();
  spawn.ranks.push_back(9);
  EXPECT_FALSE(decode_spawn(encode(spawn)));
  spawn = sample_spawn();
  spawn.ranks[1] = -1;
  EXPECT_FALSE(decode_spawn(encode(spawn)));
  spawn = sample_spawn();
  spawn.most_ranks = 0;
  EXPECT_FALSE(decode_spawn(encode(spawn)));
  spawn = sample_spawn();
  spawn.rank_env.pop_back();
  EXPECT_FALSE(decode_spawn(encode(spawn)));
  spawn = sample_spawn();
  spawn.term_grace_ms = -1;
  EXPECT_FALSE(decode_spawn(encode(spawn)));
  EXPECT_FALSE(decode_kill(encode(Kill{0})));
  EXPECT_FALSE(decode_kill(encode(Kill{10})));
  EXPECT_FALSE(decode_end_rank(encode(EndRank{0, 10})));
  EXPECT_FALSE(decode_signal(encode(Signal{0})));
  EXPECT_FALSE(decode_signal(encode(Signal{65})));
}

TEST(AgentMessages, RandomBytesNeverDecodeBeyondTheirInput) {
  const unsigned seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937 random(seed);
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes(random() % 64);
    for (std::byte& byte : bytes) {
      byte = static_cast<std::byte>(random());
    }
    static_cast<void>(decode_hello(bytes));
    static_cast<void>(decode_spawn(bytes));
    static_cast<void>(decode_probed(bytes));
    static_cast<void>(decode_output(bytes));
    FrameDecoder decoder(round % 2 == 0);
    std::vector<Frame> frames;
    static_cast<void>(decoder.feed(bytes, frames));
    EXPECT_LE(frames.size(), bytes.size());
  }
}

}  // namespace
}  // namespace sirtaki::launcher
