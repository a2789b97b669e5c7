// LocalExchange: what local updates need of the other ranks: small reports, sums of fragments, a broadcast.
//
// For: LocalUpdater, which drives it from the training's thread; nothing here is called from another one. Calls that
// begin something return at once; an answer is asked for with a timeout, 0 to look only. Every rank makes the same
// calls for a channel and for a fragment, in the same order; between channels and fragments the order is free. What has
// begun is asked for until it has ended. An error of a report or a broadcast ends the training; one of a sum does not,
// and may be another on each rank: ranks vote on what came of it.
// Not for: deciding anything.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::local_updates {

enum class ReportKind : std::uint8_t { kSnapshot, kVote, kRound, kDigest, kBuffers };
struct Channel {
  ReportKind kind = ReportKind::kRound;
  int fragment = 0;  // of kSnapshot and kVote

  friend auto operator<=>(const Channel&, const Channel&) = default;  // NOLINT(modernize-use-nullptr): a false alarm
};
using Reports = std::vector<std::vector<std::byte>>;  // by rank

class LocalExchange {
 public:
  LocalExchange() = default;
  LocalExchange(const LocalExchange&) = delete;
  LocalExchange& operator=(const LocalExchange&) = delete;
  virtual ~LocalExchange() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual TimePoint now() const = 0;

  // Tells all ranks `mine`, which has the same size on all of them and in all calls of the channel.
  virtual Status post(Channel channel, ConstBytes mine) = 0;
  // nullopt: not all have told.
  virtual std::optional<Result<Reports>> received(Channel channel, Duration timeout) = 0;

  // Adds up the fragment's elements over ranks, in place, with the same bits for all. `data` belongs to the exchange
  // until sum() has answered or let_go() has returned. `lossy`: by the codec.
  virtual Status send(int fragment, std::span<float> data, bool compressed) = 0;
  virtual std::optional<Status> sum(int fragment, Duration timeout) = 0;
  // Nobody will ask any more: local updates end here.
  virtual void abandon(int fragment) = 0;
  // From the first send of a rank to the sum, as this rank saw it; of the last sum that ended well.
  virtual Duration transfer_time(int fragment) const = 0;
  // Of what this rank sent by the codec last: what did not arrive. After sum(), once; it is never sent later.
  virtual Status take_residual(int fragment, std::span<float> out) = 0;

  // A span of this rank's in the trace, if one is written.
  virtual void mark(const std::string& name, TimePoint begin, TimePoint end) = 0;

  // Blocks: all ranks have the root's bytes.
  virtual Status broadcast(Rank root, Bytes data, Duration timeout) = 0;
};

}  // namespace sirtaki::local_updates
