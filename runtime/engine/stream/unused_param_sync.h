// UnusedParamSync: a rank's part in exchanges of flags for steps of a stream that are over here.
//
// A rank that has tensors without a gradient asks for flags; others may complete that step, and close the stream,
// before they hear of it. The one that asked counts on them: they had every gradient, or none where they stood in. All
// ranks have started what is in flight here, or will when they hear of it, so nobody waits for it on this rank. The
// coordinator answers the first request of a stream and none of an attempt that is void, so what it says is of an
// attempt in which every rank is, or of the step it completed last; what is in flight is known by attempt and step.
// Owned by GradientStream; by Engine when the stream is closed. Loop thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "runtime/base/types.h"
#include "runtime/control/messages.h"
#include "runtime/net/collectives/collectives.h"

namespace sirtaki::engine {

// The exchange of flags of one step; `flags`, one for each tensor, outlives it.
net::CollectiveArgs flags_exchange(OpTag tag, std::vector<std::uint8_t>& flags);

class UnusedParamSync {
 public:
  // `net` outlives it.
  UnusedParamSync(StreamId id, std::size_t tensors, net::Collectives& net);

  // The step is over, and without flags. `none`: this rank had no gradient.
  void completed(std::uint32_t attempt, std::uint64_t step, bool none);
  // Starts what the message asks for of steps that are over.
  void on_flags(const control::StreamFlags& message);
  // Nobody asks for flags of the void step and of those after it any more, in the attempt before the message's.
  void on_aborted(const control::StreamAborted& message);

  // Returns whether ranks exchange flags in this step, as some rank has asked for.
  bool wanted(std::uint32_t attempt, std::uint64_t step) const { return from_ && std::pair(attempt, step) >= *from_; }
  // Nothing is in flight.
  bool idle() const { return in_flight_->empty(); }
  // Nothing is in flight, and no message can change that without another completed().
  bool over() const { return idle() && (asked_ || !last_); }

 private:
  struct Exchange {
    std::uint32_t attempt = 0;
    std::uint64_t step = 0;
    OpTag tag;
  };

  const StreamId id_;
  const std::size_t tensors_;
  net::Collectives& net_;
  std::optional<std::pair<std::uint32_t, std::uint64_t>> last_;  // (attempt, step) completed last
  std::optional<std::uint64_t> none_from_;                       // from this step of that attempt on, none was there
  bool asked_ = false;
  std::optional<std::pair<std::uint32_t, std::uint64_t>> from_;  // (attempt, step) from which ranks exchange flags
  std::shared_ptr<std::vector<Exchange>> in_flight_;             // shared with the collectives, which may outlive this
};

}  // namespace sirtaki::engine
