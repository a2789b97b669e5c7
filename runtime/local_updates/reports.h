// Encodings of the reports that ranks exchange, with fixed sizes.
//
// Internal to runtime/local_updates. Pure. Decoding errors name the rank whose report is invalid.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/local_updates/controller/round_stats.h"
#include "runtime/local_updates/exchange.h"

namespace sirtaki::local_updates {

// Returns a time in whole microseconds, at least 0.
std::int64_t micros(Duration time);

std::vector<std::byte> encode(const RankReport& report);
Result<std::vector<RankReport>> decode_snapshots(const Reports& reports);

// The outcome of the sum of a fragment on one rank.
struct Vote {
  bool good = false;  // the sum arrived and is finite
  std::int64_t transfer_us = 0;
  double mean_norm2 = 0;  // norm of the mean difference
};
std::vector<std::byte> encode(const Vote& vote);
Result<std::vector<Vote>> decode_votes(const Reports& reports);

// Measurements of one rank in a round, and the digest of all decisions so far.
struct RoundReport {
  RankRound round;
  std::uint64_t decisions = 0;
};
std::vector<std::byte> encode(const RoundReport& report);
// Decodes the reports of a round. kMismatch: earlier decisions of ranks differ.
Result<std::vector<RankRound>> decode_rounds(const Reports& reports);

std::vector<std::byte> encode_digests(const std::vector<std::uint64_t>& digests);
// Returns `count` digests of each rank.
Result<std::vector<std::vector<std::uint64_t>>> decode_digests(const Reports& reports, std::size_t count);

}  // namespace sirtaki::local_updates
