#include "runtime/net/link/hosts.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::net {

Hosts::Hosts(std::vector<std::vector<Rank>> ranks) : ranks_(std::move(ranks)) {
  for (const auto& host : ranks_) {
    shares_ = std::max(shares_, static_cast<int>(host.size()));
  }
}

int Hosts::host_of(Rank rank) const {
  const auto found = std::find_if(ranks_.begin(), ranks_.end(), [rank](const std::vector<Rank>& host) {
    return std::find(host.begin(), host.end(), rank) != host.end();
  });
  SRT_CHECK(found != ranks_.end());
  return static_cast<int>(found - ranks_.begin());
}

int Hosts::owner_place(int host, int share) const {
  return share * static_cast<int>(ranks_[static_cast<std::size_t>(host)].size()) / shares_;
}

std::vector<Rank> Hosts::owners(int share) const {
  std::vector<Rank> owners;
  for (int host = 0; host < count(); ++host) {
    owners.push_back(ranks_[static_cast<std::size_t>(host)][static_cast<std::size_t>(owner_place(host, share))]);
  }
  return owners;
}

}  // namespace sirtaki::net
