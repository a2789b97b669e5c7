#include "launcher/restarts.h"

#include <algorithm>

namespace sirtaki::launcher {

namespace {

constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::seconds(60);
constexpr int kMostDoublings = 6;

}  // namespace

std::optional<Duration> Restarts::next(Rank rank, Duration lasted) {
  int& count = short_[rank];
  count = lasted >= kLastingStart ? 0 : count;
  if (count >= most_) {
    return std::nullopt;
  }
  const Duration pause = kFirstPause * (1 << std::min(count, kMostDoublings));
  ++count;
  return std::min(pause, kLongestPause);
}

}  // namespace sirtaki::launcher
