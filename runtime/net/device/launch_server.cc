#include "runtime/net/device/launch_server.h"

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <string>

#include "runtime/base/check.h"

namespace sirtaki::net {
namespace {

using Kind = LaunchWord::Kind;

}  // namespace

LaunchServer::LaunchServer(PointToPoint& link, const LaunchServerOptions& options,
                           std::function<void(const Status&)> broken)
    : link_(link),
      options_(options),
      broken_(std::move(broken)),
      sequencer_(link.size()),
      agreement_(link.size()),
      line_(link, options.tag,
            {[this](Rank peer, std::span<const LaunchWord> words) { return apply_all(peer, words); },
             [this](Rank peer, const Status& /*why*/) { lose(peer); }, [this](const Status& status) { fail(status); }}),
      speaks_(static_cast<std::size_t>(link.size())),
      gone_(static_cast<std::size_t>(link.size())) {
  SRT_IN_LOOP(link_.loop());
  SRT_CHECK(link_.rank() == 0);
}

LaunchServer::~LaunchServer() {
  self_.reset();
}

void LaunchServer::take(const LaunchWord& word) {
  if (const Status status = apply_all(0, {&word, 1}); !status.ok()) {
    fail(status);
  }
}

Status LaunchServer::apply_all(Rank from, std::span<const LaunchWord> words) {
  flush_later();
  for (const LaunchWord& word : words) {
    SRT_TRY(apply(from, word));
  }
  return {};
}

Status LaunchServer::apply(Rank from, const LaunchWord& word) {
  const bool spoke = speaks_[static_cast<std::size_t>(from)];
  speaks_[static_cast<std::size_t>(from)] = true;
  if (failed_) {
    if (!spoke && from != link_.rank()) {
      say_over(from);
    }
    return {};
  }
  switch (word.kind) {
    case Kind::kReady:
      SRT_TRY(sequencer_.ready(from, {word.tag, word.number, word.set, word.bytes}));
      if (const std::optional<Rank> lost = sequencer_.lost_of(word.set)) {
        unsent_gone_.emplace_back(from, *lost);
      }
      return {};
    case Kind::kWithdraw:
      sequencer_.withdraw(from, word.tag);
      return {};
    case Kind::kRanks:
    case Kind::kAble:
    case Kind::kConnected:
      return agreement_.take(from, word, sequencer_);
    case Kind::kStopped:
      lose(from);
      return {};
    default:
      return corrupt("it sends word " + std::to_string(static_cast<int>(word.kind)) + " with number " +
                     std::to_string(word.number) + ", which only rank 0 may send");
  }
}

void LaunchServer::flush_later() {
  if (!std::exchange(flush_posted_, true)) {
    link_.loop().post([weak = std::weak_ptr(self_)] {
      if (const auto self = weak.lock()) {
        (*self)->flush_posted_ = false;
        (*self)->flush();
      }
    });
  }
}

// Takes the decisions that are due. The groups must be equal on all ranks, since NCCL chooses its algorithm by the
// whole group; they consist of operations that get their places together, up to the limit.
std::vector<LaunchServer::Decision> LaunchServer::decide() {
  std::vector<Decision> decisions;
  std::optional<std::size_t> last;  // last decision of the group that may grow
  std::size_t bytes = 0;
  for (const LaunchNotice& notice : sequencer_.take()) {
    if (notice.kind == LaunchNotice::Kind::kPlaced) {
      const bool joins = last && decisions[*last].notice.set == notice.set && notice.bytes <= options_.group_bytes &&
                         bytes <= options_.group_bytes - notice.bytes;
      if (joins) {
        decisions[*last].more = true;
      }
      bytes = notice.bytes + (joins ? bytes : 0);
      last = decisions.size();
    }
    decisions.push_back({notice});
  }
  return decisions;
}

void LaunchServer::flush() {
  if (failed_) {
    return;
  }
  std::vector<std::vector<LaunchWord>> words(static_cast<std::size_t>(link_.size()));
  const auto to = [&words](Rank rank) -> std::vector<LaunchWord>& { return words[static_cast<std::size_t>(rank)]; };
  for (const auto& [notice, more] : decide()) {
    if (notice.kind == LaunchNotice::Kind::kWithdrawn) {
      to(notice.to).push_back({Kind::kWithdrawn, notice.tag, 0});
      continue;
    }
    for (const Rank rank : sequencer_.ranks_of(notice.set)) {
      to(rank).push_back(notice.kind == LaunchNotice::Kind::kConnect
                             ? agreement_.connect_word(notice.set, rank)
                             : LaunchWord{Kind::kPlaced, notice.tag, more ? 1 : 0});
    }
  }
  for (const auto& [rank, word] : agreement_.take_answers()) {
    to(rank).push_back(word);
  }
  for (const auto& [rank, gone] : std::exchange(unsent_gone_, {})) {
    to(rank).push_back({Kind::kGone, OpTag(), gone});
  }
  send(std::move(words));
}

void LaunchServer::send(std::vector<std::vector<LaunchWord>> words) {
  const auto batch = std::make_shared<Batch>();
  for (Rank peer = 1; peer < link_.size(); ++peer) {
    if (!gone_[static_cast<std::size_t>(peer)]) {
      batch->sending += line_.send(peer, words[static_cast<std::size_t>(peer)], [this, batch] {
        --batch->sending;
        pass_on_batches();
      });
    }
  }
  batch->words = std::move(words.front());
  batches_.push_back(batch);
  pass_on_batches();
}

void LaunchServer::pass_on_batches() {
  while (!batches_.empty() && batches_.front()->sending == 0) {
    const auto batch = std::move(batches_.front());
    batches_.pop_front();
    if (member_.words) {
      member_.words(batch->words);
    }
  }
}

void LaunchServer::lose(Rank rank) {
  const auto place = static_cast<std::size_t>(rank);
  if (gone_[place]) {
    return;
  }
  gone_[place] = true;
  std::set<Rank> told;
  for (const LaunchSet set : sequencer_.lose(rank)) {
    const std::vector<Rank>& ranks = sequencer_.ranks_of(set);
    std::ranges::copy_if(ranks, std::inserter(told, told.end()), [this](Rank one) {
      return speaks_[static_cast<std::size_t>(one)] && !gone_[static_cast<std::size_t>(one)];
    });
  }
  for (const Rank one : told) {
    unsent_gone_.emplace_back(one, rank);
  }
  flush_later();
}

void LaunchServer::say_over(Rank peer) {
  if (!gone_[static_cast<std::size_t>(peer)]) {
    const LaunchWord over{Kind::kGone, OpTag(), peer};
    line_.send(peer, {&over, 1}, {});
  }
}

void LaunchServer::fail(const Status& status) {
  if (std::exchange(failed_, true)) {
    return;
  }
  for (Rank peer = 1; peer < link_.size(); ++peer) {
    if (speaks_[static_cast<std::size_t>(peer)]) {
      say_over(peer);
    }
  }
  link_.loop().post([weak = std::weak_ptr(self_), status] {
    const auto self = weak.lock();
    if (!self) {
      return;
    }
    if ((*self)->member_.failed) {
      (*self)->member_.failed(status);
    }
    (*self)->broken_(status);
  });
}

}  // namespace sirtaki::net
