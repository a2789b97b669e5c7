// Messages of ranks about their GPUs: only the output of an encoder is accepted.
#include <algorithm>

#include "runtime/base/check.h"
#include "runtime/engine/device/device_report.h"
#include "runtime/net/device/launch_messages.h"
#include "tests/fuzz/fuzz_main.h"

namespace sirtaki::fuzz {

std::vector<Input> seeds() {
  using net::LaunchWord;
  std::vector<LaunchWord> words = {{LaunchWord::Kind::kReady, OpTag(7), -1, 3, 4096},
                                   {LaunchWord::Kind::kWithdraw, OpTag(7), 0},
                                   {LaunchWord::Kind::kGone, OpTag(), 1},
                                   {LaunchWord::Kind::kRanks, OpTag(5), 1, 4},
                                   {LaunchWord::Kind::kAble, OpTag(), 22809, 4},
                                   {LaunchWord::Kind::kConnected, OpTag(), 1, 2},
                                   {LaunchWord::Kind::kConnect, OpTag(4), 0, 2},
                                   {LaunchWord::Kind::kOpen, OpTag(4), 0, 2},
                                   {LaunchWord::Kind::kRefused, OpTag(4), 1, 2, 21801},
                                   {LaunchWord::Kind::kStopped, OpTag(), 0}};
  std::vector<Input> seeds = {input_from(net::encode_launch_words(words))};
  words.assign(net::kMostLaunchWords, {LaunchWord::Kind::kPlaced, OpTag(~std::uint64_t{0}), 1});
  seeds.push_back(input_from(net::encode_launch_words(words)));
  seeds.push_back(input_from(engine::encode_device_report({22809, false, ""})));
  seeds.push_back(input_from(engine::encode_device_report({0, true, "there is no NCCL here"})));
  return seeds;
}

}  // namespace sirtaki::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace sirtaki;
  const ConstBytes bytes(reinterpret_cast<const std::byte*>(data), size);
  if (const auto words = net::decode_launch_words(bytes)) {
    SRT_CHECK(std::ranges::equal(net::encode_launch_words(*words), bytes));
  }
  if (const auto report = engine::decode_device_report(bytes)) {
    SRT_CHECK(std::ranges::equal(engine::encode_device_report(*report), bytes));
  }
  return 0;
}
