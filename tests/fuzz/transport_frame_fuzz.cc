// The protocol of a data connection, fed by an arbitrary peer: frames, payloads, cuts at any byte.
#include <array>

#include "runtime/base/check.h"
#include "runtime/net/tcp/channel.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {
namespace {

using namespace sirtaki::net;  // NOLINT(google-build-using-namespace)

constexpr Epoch kEpoch(1);

class StoppedClock final : public Loop {
 public:
  TimePoint now() const override { return {}; }
  bool in_loop() const override { return true; }
  void post(Task) override {}
  TimerId after(Duration, Task) override { return {}; }
  void cancel(TimerId) override {}
};

ChannelLimits limits() {
  ChannelLimits limits;
  limits.eager_bytes = 64;
  limits.window_bytes = 512;
  limits.fragment_bytes = 96;
  return limits;
}

// A channel with a few operations in flight; every callback must run exactly once.
class Target {
 public:
  Target() {
    Channel::Shared shared;
    shared.rank = 0;
    shared.epoch = kEpoch;
    shared.limits = limits();
    shared.completions = &completions_;
    shared.tombstones = &tombstones_;
    shared.clock = &clock_;
    shared.samples = &samples_;
    channel_ = std::make_unique<Channel>(shared, 1);
    channel_->set_push_exponent(7);
    for (std::size_t i = 0; i < kOperations; ++i) {
      const std::size_t size = i * 50;
      memory_[i].resize(size);
      const Envelope envelope{1, OpTag(i % 3), static_cast<std::uint32_t>(i % 2), 0, 0};
      const auto count = [this, i](const Status&) { ++calls_[i]; };
      if (i % 2 == 0) {
        channel_->recv(envelope, memory_[i], count);
      } else {
        channel_->send(envelope, memory_[i], count);
      }
    }
  }

  // The first byte chooses the cut of the input and the moment at which a tag is cancelled.
  void feed(ConstBytes input) {
    const std::size_t cut = input.empty() ? 1 : 1 + std::to_integer<std::size_t>(input[0]);
    ConstBytes rest = input.empty() ? input : input.subspan(1);
    for (int round = 0; !rest.empty(); ++round) {
      const std::size_t step = std::min(cut, rest.size());
      if (!channel_->read(rest.first(step)).ok()) {
        break;
      }
      rest = rest.subspan(step);
      drain();
      if (round == 3) {
        cancel(OpTag(2));
      }
    }
    channel_->fail({Code::kShutdown, "end"}, false);
    drain();
    for (const int calls : calls_) {
      SRT_CHECK(calls == 1);
    }
  }

 private:
  static constexpr std::size_t kOperations = 8;

  void cancel(OpTag tag) {
    const Status cause(Code::kAborted, "cancelled");
    tombstones_.add(tag, cause);
    channel_->cancel(tag, cause);
  }
  void drain() {
    std::array<iovec, 16> pieces{};
    while (channel_->wants_write()) {
      std::size_t bytes = 0;
      for (std::size_t i = channel_->gather(pieces); i-- > 0;) {
        bytes += pieces[i].iov_len;
      }
      channel_->written(bytes);
    }
    while (!completions_.empty()) {
      completions_.run_one();
    }
  }

  StoppedClock clock_;
  Completions completions_;
  Tombstones tombstones_;
  std::vector<TransferSample> samples_;
  std::array<std::vector<std::byte>, kOperations> memory_;
  std::array<int, kOperations> calls_{};
  std::unique_ptr<Channel> channel_;
};

Input frames(std::initializer_list<std::pair<FrameHeader, std::size_t>> list) {
  std::vector<std::byte> bytes{std::byte{200}};
  for (const auto& [header, payload] : list) {
    const FrameBytes encoded = encode_frame(header);
    bytes.insert(bytes.end(), encoded.begin(), encoded.end());
    bytes.resize(bytes.size() + payload, std::byte{7});
  }
  return input_from(bytes);
}

FrameHeader header(FrameType type, std::uint64_t tag, std::uint32_t slot, std::uint64_t length) {
  return {type, 0, kEpoch, OpTag(tag), slot, 0, length};
}

}  // namespace

std::vector<Input> seeds() {
  return {
      frames({{header(FrameType::kEager, 0, 0, 0), 0}}),
      frames({{header(FrameType::kEager, 5, 0, 64), 64}, {header(FrameType::kBye, 0, 0, 0), 0}}),
      frames({{header(FrameType::kRts, 2, 0, 100), 0},
              {header(FrameType::kData, 2, 0, 96), 96},
              {header(FrameType::kData, 2, 0, 4), 4}}),
      frames({{header(FrameType::kCts, 0, 1, 150), 0}, {header(FrameType::kCredit, 0, 0, 10), 0}}),
      frames({{header(FrameType::kReject, 1, 1, 3), 0}, {header(FrameType::kRts, 1, 0, 200), 0}}),
      frames({{header(FrameType::kPush, 2, 0, 100), 0},
              {header(FrameType::kPushed, 2, 0, 96), 96},
              {header(FrameType::kPushed, 2, 0, 4), 4}}),
      frames({{header(FrameType::kPush, 9, 0, 128), 0}, {header(FrameType::kPushed, 9, 0, 90), 90}}),
  };
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  sirtaki::fuzz::Target target;
  target.feed({reinterpret_cast<const std::byte*>(data), size});
  return 0;
}
