#include "runtime/net/device/launch_server.h"

#include <algorithm>
#include <optional>
#include <string>

#include "runtime/base/check.h"

namespace sirtaki::net {
namespace {

using Kind = LaunchWord::Kind;

LaunchWord word_of(const LaunchNotice& notice, bool more) {
  return notice.kind == LaunchNotice::Kind::kPlaced ? LaunchWord{Kind::kPlaced, notice.tag, more ? 1 : 0}
                                                    : LaunchWord{Kind::kWithdrawn, notice.tag, 0};
}

}  // namespace

LaunchServer::LaunchServer(PointToPoint& link, const LaunchServerOptions& options)
    : link_(link),
      options_(options),
      sequencer_(link.size()),
      line_(link, options.tag,
            {[this](Rank peer, std::span<const LaunchWord> words) {
               Status status;
               for (std::size_t i = 0; status.ok() && i < words.size(); ++i) {
                 status = apply(peer, words[i]);
               }
               flush_later();
               return status;
             },
             [this](Rank peer, const Status& status) { on_lost(peer, status); },
             [this](const Status& status) { fail(status); }}),
      gone_(static_cast<std::size_t>(link.size())) {
  SRT_IN_LOOP(link_.loop());
  SRT_CHECK(link_.rank() == 0);
}

LaunchServer::~LaunchServer() {
  self_.reset();
}

Status LaunchServer::take(const LaunchWord& word) {
  flush_later();
  return apply(0, word);
}

Status LaunchServer::apply(Rank from, const LaunchWord& word) {
  switch (word.kind) {
    case Kind::kReady:
      return sequencer_.ready(from, {word.tag, word.number, word.set, word.bytes});
    case Kind::kWithdraw:
      sequencer_.withdraw(from, word.tag);
      return {};
    default:
      return corrupt("it sends word " + std::to_string(static_cast<int>(word.kind)) + " with number " +
                     std::to_string(word.number) + ", which only rank 0 may send");
  }
}

bool LaunchServer::has_placed(OpTag tag) const {
  return std::ranges::any_of(batches_, [tag](const std::shared_ptr<Batch>& batch) {
    return std::ranges::any_of(batch->words,
                               [tag](const LaunchWord& word) { return word.kind == Kind::kPlaced && word.tag == tag; });
  });
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
  // If rank 0 launches nothing, the others must not get new places either.
  std::vector<LaunchNotice> notices = stopped_ ? std::vector<LaunchNotice>() : sequencer_.take();
  std::vector<Decision> decisions;
  std::optional<std::size_t> last;  // last decision of the group that may grow
  std::size_t bytes = 0;
  for (LaunchNotice& notice : notices) {
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
  std::vector<std::vector<LaunchWord>> words(static_cast<std::size_t>(link_.size()));
  for (const auto& [notice, more] : decide()) {
    if (notice.kind == LaunchNotice::Kind::kWithdrawn) {
      words[static_cast<std::size_t>(notice.to)].push_back(word_of(notice, more));
      continue;
    }
    for (const Rank rank : sequencer_.ranks_of(notice.set)) {
      words[static_cast<std::size_t>(rank)].push_back(word_of(notice, more));
    }
  }
  const std::optional<Rank> gone = std::exchange(unsent_gone_, std::nullopt);
  const auto batch = std::make_shared<Batch>();
  for (Rank peer = 1; peer < link_.size(); ++peer) {
    auto& to = words[static_cast<std::size_t>(peer)];
    if (gone) {
      to.push_back({Kind::kGone, OpTag(), *gone});
    }
    if (!gone_[static_cast<std::size_t>(peer)]) {
      batch->sending += line_.send(peer, to, [this, batch] {
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

void LaunchServer::on_lost(Rank peer, const Status& status) {
  const auto place = static_cast<std::size_t>(peer);
  if (gone_[place]) {
    return;
  }
  gone_[place] = true;
  if (stopped_) {
    return;
  }
  if (member_.lost) {
    member_.lost(peer, status);
  }
  unsent_gone_ = peer;
  flush_later();
}

void LaunchServer::fail(const Status& status) {
  stop();
  if (member_.failed) {
    member_.failed(status);
  }
}

}  // namespace sirtaki::net
