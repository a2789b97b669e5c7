#include "runtime/control/relay.h"

#include <algorithm>
#include <limits>

#include "runtime/control/scope.h"

namespace sirtaki::control {
namespace {

constexpr std::size_t kRememberedFailures = 256;
constexpr std::size_t kRememberedSubjects = 4096;

bool is_report(const MemberMessage& message) {
  return std::holds_alternative<Waiting>(message);
}

// Returns the ranks of the job that send this message if all take part.
RankSet expected_senders(const MemberMessage& message) {
  const auto* announce = std::get_if<Announce>(&message);
  const auto* opening = std::get_if<StreamOpen>(&message);
  const std::string& name = announce != nullptr ? announce->name : opening != nullptr ? opening->name : std::string();
  return scope_of(name, std::numeric_limits<int>::max());
}

}  // namespace

Relay::Relay(RankSet below, std::vector<RankSet> children, RelayOptions options)
    : below_(std::move(below)), children_(std::move(children)), options_(options), present_(below_) {}

// ---- up ----

void Relay::on_received(Bundle bundle, TimePoint now) {
  for (SourcedMessage& item : bundle) {
    item.ranks = item.ranks.common(below_);
    if (!item.ranks.empty() && !is_repetition(item.message)) {
      add(std::move(item), now);
    }
  }
  flush_if_complete();
}

bool Relay::is_repetition(const MemberMessage& message) {
  if (const auto* failed = std::get_if<OpFailed>(&message)) {
    if (!failed_.emplace(failed->name, failed->use).second) {
      return true;
    }
    failed_order_.emplace_back(failed->name, failed->use);
    if (failed_order_.size() > kRememberedFailures) {
      failed_.erase(failed_order_.front());
      failed_order_.pop_front();
    }
  } else if (const auto* abort = std::get_if<StreamAbort>(&message)) {
    StreamNews& news = streams_[abort->stream.value];
    if (abort->attempt < news.attempts_aborted) {
      return true;
    }
    news.attempts_aborted = abort->attempt + 1;
  } else if (const auto* unused = std::get_if<StreamUnused>(&message)) {
    StreamNews& news = streams_[unused->stream.value];
    if (unused->attempt < news.attempts_asked) {
      return true;
    }
    news.attempts_asked = unused->attempt + 1;
  }
  return false;
}

void Relay::add(SourcedMessage item, TimePoint now) {
  const std::string about = subject(item.message);
  const bool report = is_report(item.message);
  delay(report, now);
  if (about.empty()) {
    urgent_ = true;
    pending_.push_back(std::move(item));
    return;
  }
  const auto [received, first] = received_.try_emplace(about);
  if (first) {
    received->second.members = expected_senders(item.message).common(below_);
  }
  received->second.from.add(item.ranks);
  std::vector<std::size_t>& places = places_[about];
  // A newer message of a rank replaces one that has not been passed on yet.
  for (const std::size_t place : places) {
    pending_[place].ranks.remove(item.ranks);
  }
  const auto same = [&](std::size_t place) { return merges(pending_[place].message, item.message); };
  if (const auto known = std::ranges::find_if(places, same); known != places.end()) {
    pending_[*known].ranks.add(item.ranks);
  } else {
    places.push_back(pending_.size());
    pending_.push_back(std::move(item));
  }
}

// Receiving messages of many ranks takes time itself: the first message after a pause of the others finds them
// complete.
void Relay::delay(bool report, TimePoint now) {
  if (report) {
    report_due_ = report_due_.value_or(now + options_.report_linger);
  } else {
    news_end_ = news_end_.value_or(now + options_.longest);
    news_due_ = std::min(*news_end_, now + options_.linger);
  }
}

std::optional<TimePoint> Relay::next_tick() const {
  return report_due_ && news_due_ ? std::min(*report_due_, *news_due_) : report_due_ ? report_due_ : news_due_;
}

bool Relay::complete() const {
  return std::ranges::all_of(places_, [&](const auto& entry) { return is_complete(received_.at(entry.first)); });
}

void Relay::flush_if_complete() {
  if (!pending_.empty() && (urgent_ || complete())) {
    flush();
  }
}

void Relay::flush() {
  Bundle bundle;
  std::size_t bytes = 0;
  for (SourcedMessage& item : pending_) {
    if (item.ranks.empty()) {
      continue;
    }
    if (pending_.size() > 1) {
      bytes += encode(item.message).size();
      if (bytes > options_.max_bytes && !bundle.empty()) {
        actions_.up.push_back(std::exchange(bundle, {}));
        bytes = 0;
      }
    }
    bundle.push_back(std::move(item));
  }
  if (!bundle.empty()) {
    actions_.up.push_back(std::move(bundle));
  }
  // Stragglers of an incomplete subject pass without waiting for other ranks.
  for (const auto& [about, places] : places_) {
    const auto received = received_.find(about);
    if (is_complete(received->second) || about == subject(Waiting{})) {
      received_.erase(received);
    }
  }
  if (received_.size() > kRememberedSubjects) {
    received_.clear();
  }
  pending_.clear();
  places_.clear();
  urgent_ = false;
  report_due_.reset();
  news_end_.reset();
  news_due_.reset();
}

void Relay::on_gone(Rank rank, TimePoint /*now*/) {
  present_.remove(RankSet::of(rank));
  flush_if_complete();
}

void Relay::on_tick(TimePoint now) {
  if (const auto due = next_tick(); due && now >= *due) {
    flush();
  }
}

// ---- down ----

void Relay::on_spread(const Spread& spread) {
  for (const TargetedMessage& targeted : spread) {
    forget_answered(targeted.message);
  }
  for (std::size_t child = 0; child < children_.size(); ++child) {
    Spread part;
    for (const TargetedMessage& targeted : spread) {
      if (RankSet ranks = targeted.ranks.common(children_[child]); !ranks.empty()) {
        part.push_back({std::move(ranks), targeted.message});
      }
    }
    if (!part.empty()) {
      actions_.down.emplace_back(child, std::move(part));
    }
  }
}

void Relay::forget_answered(const CoordinatorMessage& message) {
  std::string about;
  if (const auto* agreed = std::get_if<Agreed>(&message)) {
    about = subject(Announce{agreed->name, agreed->use, {}});
  } else if (const auto* cancelled = std::get_if<OpCancelled>(&message)) {
    about = subject(Announce{cancelled->name, cancelled->use, {}});
  } else if (const auto* opened = std::get_if<StreamAgreed>(&message)) {
    streams_.erase(opened->stream.value);  // the number may have belonged to a closed stream
    about = "open " + opened->name;
  } else if (const auto* refused = std::get_if<StreamRefused>(&message)) {
    about = "open " + refused->name;
  } else if (const auto* aborted = std::get_if<StreamAborted>(&message)) {
    StreamNews& news = streams_[aborted->stream.value];
    news.attempts_aborted = std::max(news.attempts_aborted, aborted->attempt);
  }
  // Pending messages about it are still passed on, and wait for no other rank.
  if (!about.empty() && !places_.contains(about)) {
    received_.erase(about);
  }
}

}  // namespace sirtaki::control
