// Relay: one node of the tree between ranks and coordinator. Merges what the ranks below it say alike, so that the
// coordinator hears a few messages instead of one a rank, and spreads the answers.
//
// The coordinator learns exactly what it would learn from the ranks themselves: who said what, each rank's words about
// one subject in their order. A first announcement waits until all ranks below have made it, as long as the others'
// keep coming: until nothing has been said for `linger`, and no longer than `longest` from the first, so that a late
// rank delays nobody's news by more than that. Reports of waiting wait up to `report_linger`; errors pass at once.
// Repetitions of what ends a use or a step are dropped: the coordinator acts on the first. Pure state machine:
// events in, actions out. Its owner (a rank's control thread, or the simulator) sends the actions in order and calls
// on_tick() at next_tick().
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "runtime/control/bundle.h"
#include "runtime/control/tree.h"

namespace sirtaki::control {

struct RelayOptions {
  Duration linger = std::chrono::milliseconds(1);
  Duration longest = std::chrono::milliseconds(50);
  Duration report_linger = std::chrono::milliseconds(25);
  std::size_t max_bytes = std::size_t{4} << 20;  // a bundle is cut before it grows beyond this by more than one message
};

class Relay {
 public:
  struct Actions {
    std::vector<Bundle> up;
    std::vector<std::pair<std::size_t, Spread>> down;  // by child
  };

  Relay(RankSet below, std::vector<RankSet> children, RelayOptions options = {});

  // From a rank below (a bundle of one) or from a relay below.
  void on_received(Bundle bundle, TimePoint now);
  // From above. What concerns no rank below is ignored.
  void on_spread(const Spread& spread);
  // A rank has left or is lost: nothing waits for it any more.
  void on_gone(Rank rank, TimePoint now);
  // Passes on what is held back.
  void flush();
  void on_tick(TimePoint now);
  std::optional<TimePoint> next_tick() const;

  Actions take_actions() { return std::exchange(actions_, {}); }

 private:
  // What has been passed on about a stream and need not be repeated.
  struct StreamNews {
    std::uint32_t attempts_asked = 0;    // requests for flags in the attempts before this one are known, or of no use
    std::uint32_t attempts_aborted = 0;  // abortions of the attempts before this one are known
  };

  struct Received {
    RankSet from;
    RankSet members;  // who may say it
  };

  bool is_repetition(const MemberMessage& message);
  void add(SourcedMessage item, TimePoint now);
  void delay(bool report, TimePoint now);
  bool is_complete(const Received& received) const { return received.from.contains(received.members.common(present_)); }
  bool complete() const;
  void flush_if_complete();
  void forget_answered(const CoordinatorMessage& message);

  const RankSet below_;
  const std::vector<RankSet> children_;
  const RelayOptions options_;
  RankSet present_;  // of below_: neither left nor lost

  std::vector<SourcedMessage> pending_;
  std::unordered_map<std::string, std::vector<std::size_t>> places_;  // subject -> places in pending_
  std::unordered_map<std::string, Received> received_;                // subject -> who has said it, also before a flush
  bool urgent_ = false;
  std::optional<TimePoint> news_due_;  // when the announcements that are held back pass on
  std::optional<TimePoint> news_end_;  // however many still come
  std::optional<TimePoint> report_due_;

  std::set<std::pair<std::string, std::uint64_t>> failed_;  // uses whose failure was passed on: the last of them
  std::deque<std::pair<std::string, std::uint64_t>> failed_order_;
  std::map<std::uint16_t, StreamNews> streams_;
  Actions actions_;
};

}  // namespace sirtaki::control
