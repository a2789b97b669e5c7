// UnusedParamSync: takes part in exchanges of flags for steps of a stream that are already over on this rank.
//
// A flag says whether a rank had a gradient for a tensor. A rank that has tensors without a gradient asks all ranks for
// their flags. Other ranks may complete that step, and close the stream, before they receive the request; the rank that
// asked needs their flags all the same. Their flags are known: they had all gradients, or none in steps to which they
// contributed zeros.
//
// This rank never waits for an exchange, because every rank has started it, or starts it when it receives the request.
// The coordinator answers only the first request of a stream, and no request of a void attempt. Its message therefore
// concerns an attempt that every rank is in, or the step that a rank completed last. Exchanges in flight are found by
// attempt and step.
//
// Owned by GradientStream; by Engine after the stream is closed. Loop thread.
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

// Returns the arguments of the exchange of flags of one step; `flags`, one for each tensor, must outlive it.
net::CollectiveArgs flags_exchange(OpTag tag, std::vector<std::uint8_t>& flags);

class UnusedParamSync {
 public:
  // `net` must outlive it.
  UnusedParamSync(StreamId id, std::size_t tensors, net::Collectives& net);

  // Records that a step is over without an exchange of flags. `none`: this rank had no gradient.
  void completed(std::uint32_t attempt, std::uint64_t step, bool none);
  // Starts the exchanges that the message asks for in steps that are over.
  void on_flags(const control::StreamFlags& message);
  // Cancels the exchanges of the void step and of later ones, in the attempt before the one that the message begins.
  void on_aborted(const control::StreamAborted& message);

  // Returns whether ranks exchange flags in this step, as some rank has asked for.
  bool wanted(std::uint32_t attempt, std::uint64_t step) const { return from_ && std::pair(attempt, step) >= *from_; }
  // Returns whether nothing is in flight.
  bool idle() const { return in_flight_->empty(); }
  // Returns whether nothing is in flight and no message can start an exchange without another completed().
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
  std::optional<std::uint64_t> none_from_;  // first step of that attempt from which on this rank had no gradient
  bool asked_ = false;
  std::optional<std::pair<std::uint32_t, std::uint64_t>> from_;  // (attempt, step) from which ranks exchange flags
  std::shared_ptr<std::vector<Exchange>> in_flight_;             // shared with the collectives, which may outlive this
};

}  // namespace sirtaki::engine
