#include "launcher/restarts.h"

#include <algorithm>

namespace sirtaki::launcher {

namespace {

constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::seconds(60);
constexpr int kPauseDoublings = 6;

}  // namespace

std::optional<Duration> Restarts::next(Rank rank, Duration lasted) {
  Row& row = rows_[rank];
  row = lasted >= kLastingStart ? Row() : Row{row.starts, row.failures + 1};
  if (row.starts >= most_) {
    return std::nullopt;
  }
  const Duration pause = kFirstPause * (1 << std::min(row.starts, kPauseDoublings));
  ++row.starts;
  return std::min(pause, kLongestPause);
}

int Restarts::failures(Rank rank) const {
  const auto found = rows_.find(rank);
  return found == rows_.end() ? 0 : found->second.failures;
}

}  // namespace sirtaki::launcher
