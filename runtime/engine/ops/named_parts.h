// NamedParts: the pieces in which a bulk operation by name runs, and how many of them at a time.
//
// A piece is a range of elements and a collective of its own, so what is in flight of one operation, its credit, is
// kWindow pieces. Every operation has its own credit: ranks submit operations in different orders, and if they shared
// one, each could spend it on another operation and wait for the others for ever.
// Pieces start in order, and one starts only when all but the last kWindow before it are finished on this rank, so on
// one rank no two with the same tag, which are kCycle apart, are in flight together. Between ranks:
//   - a finished piece of an allreduce was started by every rank, so those in flight anywhere have different tags;
//   - a broadcast's root finishes pieces that nobody else has begun and may be any number of them ahead. That rests on
//     links that are first in, first out: messages from one rank with one tag and slot are of one priority, arrive in
//     the order of the pieces, and are received in it.
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

  NamedParts() = default;  // one piece, whatever it holds
  // Pieces of `most` elements, at least one, the last one smaller; both numbers are at least 1.
  NamedParts(std::int64_t elements, std::int64_t most) : elements_(elements), most_(most) {
    SRT_CHECK(elements >= 1 && most >= 1);
    parts_ = static_cast<std::uint32_t>((elements + most - 1) / most);
  }

  // The next piece to start, now in flight; none while the window is full, or when all have started.
  std::optional<Part> next() {
    if (next_ == parts_ || next_ - oldest_ == kWindow) {
      return std::nullopt;
    }
    const std::int64_t begin = most_ * next_;
    const std::int64_t rest = elements_ - begin;
    return Part{next_++, begin, rest < most_ ? rest : most_};
  }
  // Piece `index` is no longer in flight.
  void finished(std::uint32_t index) {
    SRT_CHECK(index >= oldest_ && index < next_ && !finished_[index % kWindow]);
    finished_[index % kWindow] = true;
    while (oldest_ < next_ && finished_[oldest_ % kWindow]) {
      finished_[oldest_++ % kWindow] = false;
    }
  }
  // No other piece starts.
  void give_up() { parts_ = next_; }

  // None is in flight and none is left to start.
  bool over() const { return oldest_ == parts_; }
  std::uint32_t count() const { return parts_; }

 private:
  std::int64_t elements_ = 0;
  std::int64_t most_ = 0;
  std::uint32_t parts_ = 1;
  std::uint32_t next_ = 0;
  std::uint32_t oldest_ = 0;                 // every piece before it is finished
  std::array<bool, kWindow> finished_ = {};  // of those from oldest_ on
};

}  // namespace sirtaki::engine
