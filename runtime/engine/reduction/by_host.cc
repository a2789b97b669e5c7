#include "runtime/engine/reduction/by_host.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/check.h"

namespace sirtaki::engine {

ReductionDeps host_deps(const ReductionDeps& deps, const net::HostGroups& groups) {
  return {*groups.here, deps.buffers};
}

compression::Ownership ownership_of(std::int64_t stripe, Rank rank, int ranks, const net::HostGroups* groups,
                                    int tensor) {
  if (groups == nullptr) {
    return {stripe, ranks, rank};
  }
  const int shares = groups->hosts.shares();
  return {.stripe = stripe,
          .ranks = groups->hosts.count(),
          .rank = groups->host,
          .shares = shares,
          .first_share = groups->own.front().number,
          .own_shares = static_cast<int>(groups->own.size()),
          .first_round = tensor % shares};
}

std::function<void(const Status&)> when_all(std::size_t count, Done all, std::function<void(const Status&)> failed) {
  struct Ending {
    std::size_t missing;
    Done all;
    std::function<void(const Status&)> failed;
    Status status;
  };
  const auto ending = std::make_shared<Ending>(Ending{count, std::move(all), std::move(failed), {}});
  return [ending](const Status& status) {
    ending->status.update(status);
    if (!status.ok()) {
      ending->failed(status);
    }
    if (--ending->missing == 0) {
      std::exchange(ending->all, {})(ending->status);
    }
  };
}

bool ByHost::supports(ReductionKind reduction) {
  return reduction == ReductionKind::kGather || reduction == ReductionKind::kScatter ||
         reduction == ReductionKind::kCounts || reduction == ReductionKind::kRing;
}

ByHost::ByHost(ReductionSpec spec, ReductionDeps deps, StageNote note, const net::HostGroups& groups)
    : Reduction(std::move(spec), host_deps(deps, groups), std::move(note)),
      groups_(groups),
      job_ranks_(deps.net.size()),
      slices_(this->spec().slices, net()) {
  lay_out();
}

void ByHost::lay_out() {
  for (const Stripe& stripe : slices_.stripes()) {
    const int share = slices_.codec_state(stripe).ownership().share_of(stripe.piece.offset);
    if (!runs_.empty() && runs_.back().slice == stripe.slice && runs_.back().share == share) {
      runs_.back().bytes += stripe.size_bytes();
    } else {
      runs_.push_back({stripe.slice, stripe.piece.offset, stripe.gradient, stripe.size_bytes(), share, 0});
    }
  }
  std::ranges::stable_sort(runs_, {}, &Run::share);
  here_counts_.resize(static_cast<std::size_t>(size()));
  std::size_t bytes = 0;
  for (Run& run : runs_) {
    run.at = bytes;
    bytes += run.bytes;
    const auto place = static_cast<std::size_t>(groups_.hosts.owner_place(groups_.host, run.share));
    here_counts_[place] += static_cast<std::int64_t>(run.bytes / sizeof(float));
  }
  sum_bytes_ = bytes;
}

void ByHost::begin() {
  for (const Stripe& stripe : slices_.stripes()) {
    slices_.check_finite(stripe);
  }
  states_ = buffers().take(slices_.header_bytes());
  slices_.write_states(states_.bytes());
  allreduce_largest(0, states_.bytes(), [this] { return reduce_here(); });
}

Status ByHost::reduce_here() {
  SRT_TRY(slices_.read_states(states_.bytes()));
  sums_ = buffers().take(sum_bytes_);
  for (const Run& run : runs_) {
    std::memcpy(sums_.bytes().data() + run.at, run.gradient, run.bytes);
  }
  reduce_scatter(1, sums_.bytes(), here_counts_, [this] {
    for (const Run& run : runs_) {
      if (own(run)) {
        std::memcpy(run.gradient, sums_.bytes().data() + run.at, run.bytes);
      }
    }
    sums_ = {};
    return exchange();
  });
  return {};
}

bool ByHost::own(const Run& run) const {
  return spec().slices[run.slice].codec_state->ownership().exchanges(run.offset);
}

Status ByHost::exchange() {
  std::vector<std::shared_ptr<Reduction>> made;
  for (const net::HostGroups::Share& share : groups_.own) {
    ReductionSpec part{.reduction = spec().reduction, .slices = slices_of(share), .tags = spec().tags};
    part.priority = spec().priority;
    part.op = spec().op;
    part.divisor = job_ranks_;
    part.postscale = spec().postscale;
    if (!part.slices.empty()) {
      made.push_back(make_reduction(std::move(part), {*share.owners, buffers()}, [](ReductionStage, std::int64_t) {}));
      SRT_CHECK(made.back());
    }
  }
  if (made.empty()) {
    return spread();
  }
  // Weak: an exchange keeps itself alive until its last callback, as this does.
  exchanges_.assign(made.begin(), made.end());
  const auto ended =
      when_all(made.size(), exchanged(static_cast<std::int64_t>(sum_bytes_), [this] { return spread(); }),
               [this](const Status& cause) { cancel_exchanges(cause); });
  for (const auto& one : made) {
    one->start(ended);
  }
  return {};
}

std::vector<ReducedSlice> ByHost::slices_of(const net::HostGroups::Share& share) {
  const std::vector<Rank> owners = groups_.hosts.owners(share.number);
  std::vector<ReducedSlice> slices;
  for (const Run& run : runs_) {
    if (run.share != share.number) {
      continue;
    }
    const ReducedSlice& whole = spec().slices[run.slice];
    ReducedSlice slice = whole;
    slice.gradient = Bytes(run.gradient, run.bytes);
    slice.offset = run.offset;
    slice.finite = !slices_.bad(run.slice);
    slice.absent = slice.finite && !slices_.carries(run.slice);
    if (!whole.senders.empty()) {
      auto& senders = senders_.emplace_back();
      for (const Rank owner : owners) {
        senders.push_back(whole.senders[static_cast<std::size_t>(owner)]);
      }
      slice.senders = senders;
    }
    slices.push_back(slice);
  }
  return slices;
}

Status ByHost::spread() {
  sums_ = buffers().take(sum_bytes_);
  for (const Run& run : runs_) {
    if (own(run)) {
      std::memcpy(sums_.bytes().data() + run.at, run.gradient, run.bytes);
    }
  }
  std::vector<std::int64_t> bytes = here_counts_;
  for (std::int64_t& count : bytes) {
    count *= static_cast<std::int64_t>(sizeof(float));
  }
  allgather(2, sums_.bytes(), std::move(bytes), [this] {
    for (const Run& run : runs_) {
      if (!own(run)) {
        std::memcpy(run.gradient, sums_.bytes().data() + run.at, run.bytes);
      }
    }
    return Status();
  });
  return {};
}

void ByHost::cancel(const Status& cause) {
  Reduction::cancel(cause);
  cancel_exchanges(cause);
}

void ByHost::cancel_exchanges(const Status& cause) {
  for (const auto& exchange : exchanges_) {
    if (const auto one = exchange.lock()) {
      one->cancel(cause);
    }
  }
}

}  // namespace sirtaki::engine
