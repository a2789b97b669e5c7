// LocalExchange: interface to the other ranks: small reports, sums of fragments, a broadcast.
//
// LocalUpdater calls it on the thread of the training; no other thread calls it. A call that begins an exchange returns
// at once. The caller then asks for the answer with a timeout (0 for a poll), until the exchange has ended. For a
// channel and for a fragment, every rank makes the same calls in the same order; the order between channels and
// fragments is free.
// An error of a report or a broadcast ends the training. An error of a sum does not, and may differ between ranks:
// ranks then vote on the outcome. The exchange makes no decisions.
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
  int fragment = 0;  // for kSnapshot and kVote

  friend auto operator<=>(const Channel&, const Channel&) = default;  // NOLINT(modernize-use-nullptr): a false alarm
};
using Reports = std::vector<std::vector<std::byte>>;  // indexed by rank

class LocalExchange {
 public:
  LocalExchange() = default;
  LocalExchange(const LocalExchange&) = delete;
  LocalExchange& operator=(const LocalExchange&) = delete;
  virtual ~LocalExchange() = default;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;
  virtual TimePoint now() const = 0;
  // Returns whether all ranks are on one host; equal on all ranks.
  virtual bool one_host() const { return false; }
  // Returns the latency of one exchange with the farthest rank if that is on a distant host; 0 if it is near, or as
  // long as nothing is known.
  virtual Duration latency() const { return Duration(0); }

  // Sends `mine` to all ranks. Its size is the same on all ranks and in all calls of the channel.
  virtual Status post(Channel channel, ConstBytes mine) = 0;
  // Returns the reports of all ranks; nullopt if some are missing.
  virtual std::optional<Result<Reports>> received(Channel channel, Duration timeout) = 0;

  // Adds up the elements of the fragment over ranks, in place, with the same bits on all. `data` belongs to the
  // exchange until sum() has answered or abandon() has returned. `encoding` is that of Interval.
  virtual Status send(int fragment, std::span<float> data, std::int64_t encoding) = 0;
  virtual std::optional<Status> sum(int fragment, Duration timeout) = 0;
  // Ends the exchange of a fragment without an answer, because local updates end here.
  virtual void abandon(int fragment) = 0;
  // Returns the time from the first send of a rank to the sum, as this rank saw it, for the last successful sum.
  virtual Duration transfer_time(int fragment) const = 0;
  // Writes the compression error of the last send of this rank, whose encoding was not 0, and drops it: it is never
  // sent later. Call at most once after sum(); an error that is not taken is dropped with the next send.
  virtual Status take_residual(int fragment, std::span<float> out) = 0;

  // Adds a span of this rank to the trace, if tracing is on.
  virtual void mark(const std::string& name, TimePoint begin, TimePoint end) = 0;

  // Copies the bytes of the root to all ranks. Blocks until then.
  virtual Status broadcast(Rank root, Bytes data, Duration timeout) = 0;
};

}  // namespace sirtaki::local_updates
