// NamedParts: the pieces of a large operation by name, and the limit of pieces in flight.
//
// A piece is a range of elements with a collective of its own. At most kWindow pieces of an operation are in flight,
// its credit. Each operation has its own credit, because ranks submit operations in different orders: with a shared
// credit each rank could spend it on another operation and wait for the other ranks forever.
//
// Pieces start in order. On a rank, pieces that are not finished follow one another, at most kWindow of them; pieces
// with equal tags are kCycle apart, so one rank never has two of them in flight. Between ranks:
//   - Allreduce: every rank has started a piece that is finished on some rank, so all pieces in flight anywhere have
//     different tags.
//   - Broadcast: the root may be any number of pieces ahead, because it finishes pieces that no other rank has begun.
//     This is safe because links are first in, first out: messages from one rank with equal tag and slot have one
//     priority, so they arrive in the order of the pieces, and the receiver takes them in that order.
// Pure value; owned by an operation of NamedOps.
#pragma once

#include <array>
#include <cstdint>
#include <optional>

#include "runtime/base/check.h"

namespace sirtaki::engine {

class NamedParts {
 public:
  static constexpr std::uint32_t kWindow = 2;
  static constexpr std::uint32_t kCycle = 2 * kWindow;

  struct Part {
    std::uint32_t index = 0;
    std::int64_t begin = 0;  // elements
    std::int64_t count = 0;
  };

  NamedParts() = default;  // one piece of any content
  // Cuts `elements` into pieces of `most` elements, of which the last may be smaller. Requires both to be at least 1.
  NamedParts(std::int64_t elements, std::int64_t most) : elements_(elements), most_(most) {
    SRT_CHECK(elements >= 1 && most >= 1);
    parts_ = static_cast<std::uint32_t>((elements + most - 1) / most);
  }

  // Returns the next piece, which is in flight from now on; nullopt if the window is full or all pieces have started.
  std::optional<Part> next() {
    if (next_ == parts_ || next_ - oldest_ == kWindow) {
      return std::nullopt;
    }
    const std::int64_t begin = most_ * next_;
    const std::int64_t rest = elements_ - begin;
    return Part{next_++, begin, rest < most_ ? rest : most_};
  }
  // Notes that piece `index` is no longer in flight.
  void finished(std::uint32_t index) {
    SRT_CHECK(index >= oldest_ && index < next_ && !finished_[index % kWindow]);
    finished_[index % kWindow] = true;
    while (oldest_ < next_ && finished_[oldest_ % kWindow]) {
      finished_[oldest_++ % kWindow] = false;
    }
  }
  // Starts no other piece.
  void give_up() { parts_ = next_; }

  // Returns true if no piece is in flight and none is left to start.
  bool over() const { return oldest_ == parts_; }
  std::uint32_t count() const { return parts_; }

 private:
  std::int64_t elements_ = 0;
  std::int64_t most_ = 0;
  std::uint32_t parts_ = 1;
  std::uint32_t next_ = 0;
  std::uint32_t oldest_ = 0;                 // all pieces before this one are finished
  std::array<bool, kWindow> finished_ = {};  // flags of the pieces from oldest_ on
};

}  // namespace sirtaki::engine
