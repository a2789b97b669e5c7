#include "launcher/restarts.h"

#include "launcher/hosts/pauses.h"

namespace sirtaki::launcher {

namespace {

constexpr Duration kFirstPause = std::chrono::seconds(1);
constexpr Duration kLongestPause = std::chrono::seconds(60);

}  // namespace

std::optional<Duration> Restarts::next(Rank rank, Duration lasted) {
  Row& row = rows_[rank];
  row = lasted >= kLastingStart ? Row() : Row{row.starts, row.failures + 1};
  if (row.starts >= most_) {
    return std::nullopt;
  }
  return growing_pause(kFirstPause, kLongestPause, row.starts++);
}

int Restarts::failures(Rank rank) const {
  const auto found = rows_.find(rank);
  return found == rows_.end() ? 0 : found->second.failures;
}

}  // namespace sirtaki::launcher
