// What ranks tell each other of local updates, as bytes of fixed sizes.
//
// Used inside runtime/local_updates only. Pure. Decoding names the rank whose report cannot be.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/exchange.h"

namespace sirtaki::local_updates {

// Times are told in whole microseconds, 0 at least.
std::int64_t micros(Duration time);

std::vector<std::byte> encode(const RankReport& report);
Result<std::vector<RankReport>> decode_snapshots(const Reports& reports);

// What came of a fragment's sum on a rank.
struct Vote {
  bool good = false;  // it has come, and is finite
  std::int64_t transfer_us = 0;
  double mean_norm2 = 0;  // of the mean difference
};
std::vector<std::byte> encode(const Vote& vote);
Result<std::vector<Vote>> decode_votes(const Reports& reports);

// What a rank measured in a round, and the digest of all decisions so far.
struct RoundReport {
  RankRound round;
  std::uint64_t decisions = 0;
};
std::vector<std::byte> encode(const RoundReport& report);
// kMismatch: ranks have decided differently before.
Result<std::vector<RankRound>> decode_rounds(const Reports& reports);

std::vector<std::byte> encode_digests(const std::vector<std::uint64_t>& digests);
// By rank, `count` of each.
Result<std::vector<std::vector<std::uint64_t>>> decode_digests(const Reports& reports, std::size_t count);

}  // namespace sirtaki::local_updates
