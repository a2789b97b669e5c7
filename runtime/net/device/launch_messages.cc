#include "runtime/net/device/launch_messages.h"

#include <algorithm>
#include <limits>
#include <string>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/base/wire.h"

namespace sirtaki::net {
namespace {

using Kind = LaunchWord::Kind;

constexpr const char* kSubject = "a message on the order of launches";

constexpr std::size_t kWordBytes = 1 + 4 + 8 + 4 + 8;
static_assert(4 + kMostLaunchWords * kWordBytes <= kLaunchWordsBytes);

bool valid(const LaunchWord& word) {
  const bool about_set = word.kind >= Kind::kRanks && word.kind <= Kind::kRefused;
  if (word.bytes != 0 && word.kind != Kind::kReady && word.kind != Kind::kRefused) {
    return false;
  }
  if (word.set != kJobSet && word.kind != Kind::kReady && !about_set) {
    return false;
  }
  switch (word.kind) {
    case Kind::kReady:
      return true;
    case Kind::kWithdraw:
    case Kind::kWithdrawn:
    case Kind::kConnect:
    case Kind::kOpen:
      return word.number == 0;
    case Kind::kPlaced:
      return word.number == 0 || word.number == 1;
    case Kind::kGone:
    case Kind::kAble:
      return word.tag.value == 0 && word.number >= 0;
    case Kind::kRanks:
      return word.tag.value != 0 && word.number >= 0;
    case Kind::kConnected:
      return word.tag.value == 0 && (word.number == 0 || word.number == 1);
    case Kind::kRefused:
      return word.number >= 0 && word.bytes <= std::numeric_limits<std::int32_t>::max();
    case Kind::kStopped:
      return word.tag.value == 0 && word.number == 0;
  }
  return false;
}

Result<LaunchWord> read_word(WireReader& in) {
  const auto kind = in.get<std::uint8_t>();
  LaunchWord word;
  word.set = in.get<LaunchSet>();
  word.tag = OpTag(in.get<std::uint64_t>());
  word.number = in.get<std::int32_t>();
  word.bytes = in.get<std::uint64_t>();
  if (kind < static_cast<std::uint8_t>(Kind::kReady) || kind > static_cast<std::uint8_t>(Kind::kStopped)) {
    return corrupt(std::string(kSubject) + " has a word of kind " + std::to_string(kind));
  }
  word.kind = static_cast<Kind>(kind);
  if (!valid(word)) {
    return corrupt(std::string(kSubject) + " has a word of kind " + std::to_string(kind) + " with set " +
                   std::to_string(word.set) + ", tag " + std::to_string(word.tag.value) + ", number " +
                   std::to_string(word.number) + " and " + std::to_string(word.bytes) + " bytes");
  }
  return word;
}

}  // namespace

std::vector<std::byte> encode_launch_words(std::span<const LaunchWord> words) {
  SRT_CHECK(!words.empty() && words.size() <= kMostLaunchWords);
  WireWriter out;
  out.put(static_cast<std::uint32_t>(words.size()));
  for (const LaunchWord& word : words) {
    out.put(word.kind);
    out.put(word.set);
    out.put(word.tag.value);
    out.put(word.number);
    out.put(word.bytes);
  }
  std::vector<std::byte> bytes = std::move(out).take();
  bytes.resize(kLaunchWordsBytes);
  return bytes;
}

Result<std::vector<LaunchWord>> decode_launch_words(ConstBytes bytes) {
  if (bytes.size() != kLaunchWordsBytes) {
    return corrupt(std::string(kSubject) + " has " + std::to_string(bytes.size()) + " bytes, not " +
                   std::to_string(kLaunchWordsBytes));
  }
  WireReader in(bytes);
  const auto count = in.get<std::uint32_t>();
  if (count == 0 || count > kMostLaunchWords) {
    return corrupt(std::string(kSubject) + " has " + std::to_string(count) + " words, not 1 to " +
                   std::to_string(kMostLaunchWords));
  }
  std::vector<LaunchWord> words;
  for (std::uint32_t i = 0; i < count; ++i) {
    SRT_ASSIGN(const LaunchWord word, read_word(in));
    words.push_back(word);
  }
  if (std::ranges::any_of(in.get_raw(in.remaining()), [](std::byte byte) { return byte != std::byte{0}; })) {
    return corrupt(std::string(kSubject) + " has bytes behind its last word");
  }
  return words;
}

}  // namespace sirtaki::net
