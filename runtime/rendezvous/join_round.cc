#include "runtime/rendezvous/join_round.h"

#include <algorithm>
#include <optional>
#include <set>

#include "runtime/base/check.h"

namespace sirtaki::rendezvous {

namespace {

constexpr int kMaxPieces = 12;
constexpr std::size_t kMaxValue = 200;

std::string quoted(const std::string& value) {
  if (value.size() <= kMaxValue) {
    return "'" + value + "'";
  }
  return "'" + value.substr(0, kMaxValue) + "...'";
}

std::optional<std::string> option_value(const JoinRequest& request, const std::string& name) {
  for (const auto& [key, value] : request.agreed_options) {
    if (key == name) {
      return value;
    }
  }
  return std::nullopt;
}

std::string who(const JoinRequest& request) {
  return rank_text(request.rank, request.hostname, request.pid);
}

Status differs(const std::string& what, const std::string& fix,
               const std::map<std::string, std::vector<Rank>>& values) {
  if (values.size() <= 1) {
    return {};
  }
  // Sorted by the lowest rank of each value, so the second line begins with the first rank that differs from the
  // lowest.
  std::vector<std::pair<Rank, std::string>> lines;
  for (const auto& [value, ranks] : values) {
    lines.emplace_back(ranks.front(), value + " on " + ranks_text(ranks));
  }
  std::sort(lines.begin(), lines.end());
  std::string text = what + " differs between ranks: ";
  for (std::size_t i = 0; i < lines.size() && i < static_cast<std::size_t>(kMaxPieces); ++i) {
    text += (i == 0 ? "" : "; ") + lines[i].second;
  }
  return {Code::kMismatch, text + "; fix: " + fix, {lines[1].first, ""}};
}

}  // namespace

std::string ranks_text(const std::vector<Rank>& ranks) {
  std::string out = ranks.size() == 1 ? "rank " : "ranks ";
  int pieces = 0;
  for (std::size_t i = 0; i < ranks.size(); ++pieces) {
    if (pieces == kMaxPieces) {
      return out + " and " + std::to_string(ranks.size() - i) + " more";
    }
    std::size_t last = i;
    while (last + 1 < ranks.size() && ranks[last + 1] == ranks[last] + 1) {
      ++last;
    }
    out += (pieces == 0 ? "" : ", ") + std::to_string(ranks[i]);
    if (last != i) {
      out += (last == i + 1 ? ", " : "-") + std::to_string(ranks[last]);
    }
    i = last + 1;
  }
  return out;
}

std::string rank_text(Rank rank, const std::string& hostname, std::int64_t pid) {
  return "rank " + std::to_string(rank) + " (host " + hostname + ", process " + std::to_string(pid) + ")";
}

Status JoinRound::check(const JoinRequest& request) const {
  if (grows_ ? request.size > size_ : request.size != size_) {
    return {Code::kMismatch,
            who(request) + " was started for " + std::to_string(request.size) + " ranks, but the job has " +
                std::to_string(size_) + "; fix: give every process the same number of ranks",
            {request.rank, ""}};
  }
  if (request.rank < 0 || request.rank >= size_) {
    return {Code::kMismatch,
            who(request) + " is out of range: a job of " + std::to_string(size_) + " has ranks 0 to " +
                std::to_string(size_ - 1) + "; fix: correct the rank it is given",
            {request.rank, ""}};
  }
  const auto present = requests_.find(request.rank);
  if (present != requests_.end()) {
    return {Code::kMismatch,
            "two processes say they are rank " + std::to_string(request.rank) + ": process " +
                std::to_string(present->second.pid) + " on host " + present->second.hostname + " and process " +
                std::to_string(request.pid) + " on host " + request.hostname + "; fix: give each process its own rank",
            {request.rank, ""}};
  }
  return {};
}

void JoinRound::add(JoinRequest request) {
  const Rank rank = request.rank;
  SRT_CHECK(requests_.emplace(rank, std::move(request)).second);
}

std::vector<Rank> JoinRound::absent() const {
  std::vector<Rank> out;
  for (Rank rank = 0; rank < size_; ++rank) {
    if (requests_.count(rank) == 0) {
      out.push_back(rank);
    }
  }
  return out;
}

Status JoinRound::agreement() const {
  std::map<std::string, std::vector<Rank>> versions;
  std::set<std::string> names;
  for (const auto& [rank, request] : requests_) {
    versions[quoted(request.version)].push_back(rank);
    for (const auto& [name, value] : request.agreed_options) {
      names.insert(name);
    }
  }
  SRT_TRY(differs("the Sirtaki version", "install the same build on all hosts", versions));
  for (const std::string& name : names) {
    std::map<std::string, std::vector<Rank>> values;
    for (const auto& [rank, request] : requests_) {
      const auto value = option_value(request, name);
      values[value ? quoted(*value) : "not set"].push_back(rank);
    }
    SRT_TRY(differs("the option " + name, "give it the same value on every rank", values));
  }
  return {};
}

Status JoinRound::agrees(const JoinRequest& request) const {
  JoinRound both(size_);
  if (!requests_.empty()) {
    both.add(requests_.begin()->second);
  }
  both.add(request);
  return both.agreement();
}

Membership JoinRound::form(Epoch epoch) const {
  std::vector<Rank> all;
  for (const auto& [rank, request] : requests_) {
    all.push_back(rank);
  }
  return form(epoch, all);
}

Membership JoinRound::form(Epoch epoch, const std::vector<Rank>& chosen) const {
  Membership membership;
  membership.epoch = epoch;
  for (const Rank rank : chosen) {
    const JoinRequest& request = requests_.at(rank);
    membership.fanout = request.fanout;  // equal on all ranks, since it is an agreed option
    membership.members.push_back({membership.size(), request.hostname, request.host_id, request.pid,
                                  request.data_endpoints, request.relay_endpoints});
  }
  return membership;
}

}  // namespace sirtaki::rendezvous
