#include "runtime/engine/device/device_by_host.h"

#include <cstdint>
#include <cstring>
#include <limits>
#include <utility>

#include "compression/device_coding.h"
#include "runtime/engine/device/device_blocks.h"
#include "runtime/engine/reduction/by_host.h"

namespace sirtaki::engine {
namespace {

// Among the owners of shares, over NCCL, and on the host.
enum Phase : std::uint8_t { kExchangePhase, kSumPhase, kGatherPhase };

}  // namespace

DeviceByHost::DeviceByHost(ReductionSpec spec, ReductionDeps deps, StageNote note, const net::HostGroups& groups,
                           DeviceTransport& transport, net::DeviceCollectives& nccl,
                           Result<std::vector<std::byte*>> residuals)
    : Reduction(std::move(spec), host_deps(deps, groups), std::move(note)),
      groups_(groups),
      transport_(transport),
      nccl_(nccl),
      slices_(this->spec().slices, deps.net),
      residuals_(std::move(residuals)) {}

void DeviceByHost::begin() {
  Status queued = residuals_.status();
  queued.update(queued.ok() ? pack() : Status());
  queued.update(queued.ok() ? lay_out() : Status());
  if (queued.ok()) {
    reduce_here();
  } else {
    transport_.when_copied(queued, waited([] { return Status(); }));
  }
}

Status DeviceByHost::pack() {
  const std::vector<ReducedSlice>& slices = spec().slices;
  if (slices.size() == 1) {
    sums_ = slices.front().gradient;
    sums_of_ = {sums_};
    return {};
  }
  std::size_t bytes = 0;
  for (const ReducedSlice& slice : slices) {
    bytes += slice.gradient.size();
  }
  SRT_ASSIGN(packed_, transport_.take(bytes));
  sums_ = Bytes(packed_.get(), bytes);
  Bytes left = sums_;
  for (const ReducedSlice& slice : slices) {
    sums_of_.push_back(left.first(slice.gradient.size()));
    left = left.subspan(slice.gradient.size());
    SRT_TRY(transport_.copy(sums_of_.back().data(), slice.gradient.data(), slice.gradient.size()));
  }
  return {};
}

Status DeviceByHost::lay_out() {
  for (const Stripe& stripe : slices_.stripes()) {
    const int share = slices_.codec_state(stripe).ownership().share_of(stripe.piece.offset);
    if (!runs_.empty() && runs_.back().piece.slice == stripe.slice && runs_.back().share == share) {
      runs_.back().piece.piece.numel += stripe.piece.numel;
      continue;
    }
    const auto at = static_cast<std::size_t>(stripe.gradient - spec().slices[stripe.slice].gradient.data());
    std::byte* const residual = (*residuals_)[stripe.slice];
    runs_.push_back({stripe, share, 0, residual == nullptr ? nullptr : residual + at});
    runs_.back().piece.gradient = sums_of_[stripe.slice].data() + at;
    runs_.back().piece.index = runs_.size() - 1;
  }
  const Share empty{0, rounded_up(slices_.header_bytes(), kBlockAlign), nullptr};
  shares_.assign(static_cast<std::size_t>(groups_.hosts.shares()), empty);
  for (const net::HostGroups::Share& own : groups_.own) {
    share(own.number).owners = own.owners;
  }
  for (Run& run : runs_) {
    run.piece.payload_bytes = slices_.codec_state(run.piece).coder().payload_bytes(run.piece.piece.numel);
    run.place = share(run.share).block_bytes;
    share(run.share).block_bytes += rounded_up(run.piece.payload_bytes, kPayloadAlign);
  }
  flags_bytes_ = rounded_up(runs_.size() * sizeof(std::uint32_t), kBlockAlign);
  std::size_t end = flags_bytes_;
  for (Share& share : shares_) {
    share.at = end;
    share.block_bytes = rounded_up(share.block_bytes, kBlockAlign);
    end += share.block_bytes * hosts();
  }
  blocks_bytes_ = end - flags_bytes_;
  SRT_ASSIGN(host_, transport_.stage().take(end));
  SRT_ASSIGN(device_, transport_.take(end));
  return {};
}

// ---- on the host ----

void DeviceByHost::reduce_here() {
  auto ready = transport_.mark_copies();
  if (!ready) {
    transport_.when_copied(ready.status(), waited([] { return Status(); }));
    return;
  }
  net::CollectiveArgs args;
  args.kind = OpKind::kAllreduce;
  args.tag = spec().tags[kSumPhase];
  args.dtype = DType::kF32;
  args.in = sums_;
  args.out = sums_;
  args.priority = spec().priority;
  net::DeviceWork work;
  work.ready = ready->event();
  work.on_host = true;
  transport_.nccl_bytes().add(sums_.size());
  nccl_.start_work(std::move(args), std::move(work),
                   [ready = std::move(ready), done = exchanged(static_cast<std::int64_t>(sums_.size()), [this] {
                                                return encode();
                                              })](const Status& status) mutable { done(status); });
}

// ---- what leaves it ----

Status DeviceByHost::encode() {
  transport_.when_copied(encode_runs(), waited([this] { return exchange(); }));
  return {};
}

Status DeviceByHost::encode_runs() {
  for (const Run& run : runs_) {
    if (!own(run)) {
      continue;
    }
    kernels::Feedback arrays{run.piece.gradient};
    if (run.residual != nullptr) {
      arrays.residual = run.residual;
      arrays.left = run.piece.gradient;
    }
    auto* const not_finite = reinterpret_cast<std::uint32_t*>(device_.get()) + run.piece.index;
    std::byte* const to = device_.get() + block_at(run.share, own_host()) + run.place;
    const compression::DeviceCoding& coding = *slices_.codec_state(run.piece).coder().on_device();
    SRT_TRY(DeviceTransport::queued(coding.encode(transport_.queue(), run.piece.piece, arrays, to, not_finite)));
  }
  for (const net::HostGroups::Share& own : groups_.own) {
    const std::size_t at = block_at(own.number, own_host());
    SRT_TRY(transport_.copy(host_.bytes().data() + at, device_.get() + at, share(own.number).block_bytes));
  }
  return transport_.copy(host_.bytes().data(), device_.get(), flags_bytes_);
}

Status DeviceByHost::exchange() {
  fill_blocks();
  std::int64_t bytes = 0;
  for (const net::HostGroups::Share& own : groups_.own) {
    bytes += static_cast<std::int64_t>(share(own.number).block_bytes);
  }
  const auto ended = when_all(groups_.own.size(), exchanged(bytes, [this] { return gather(); }),
                              [this](const Status& cause) { cancel_exchanges(cause); });
  for (const net::HostGroups::Share& own : groups_.own) {
    net::CollectiveArgs args;
    args.kind = OpKind::kAllgather;
    args.tag = spec().tags[kExchangePhase];
    args.dtype = DType::kU8;
    args.in = block(own.number, own_host());
    args.out = host_.bytes().subspan(share(own.number).at, share_bytes(own.number));
    args.recv_counts.assign(hosts(), static_cast<std::int64_t>(args.in.size()));
    args.priority = spec().priority;
    own.owners->start(std::move(args), ended);
  }
  return {};
}

// The headers, and what lies between payloads, which are there.
void DeviceByHost::fill_blocks() {
  for (const Run& run : runs_) {
    std::uint32_t not_finite = 0;
    std::memcpy(&not_finite, host_.bytes().data() + run.piece.index * sizeof not_finite, sizeof not_finite);
    if (own(run) && not_finite != 0) {
      slices_.mark_not_finite(run.piece);
    }
  }
  for (const net::HostGroups::Share& own : groups_.own) {
    const Bytes filled = block(own.number, own_host());
    std::size_t end = 0;
    for (const Run& run : runs_) {
      if (run.share == own.number) {
        clear_until(filled, run.place, end, run.piece.payload_bytes);
      }
    }
    clear_until(filled, filled.size(), end, 0);
    slices_.write_header(filled);
  }
}

Status DeviceByHost::gather() {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), 0);
  for (int s = 0; s < groups_.hosts.shares(); ++s) {
    const int place = groups_.hosts.owner_place(groups_.host, s);
    counts[static_cast<std::size_t>(place)] += static_cast<std::int64_t>(share_bytes(s));
  }
  allgather(kGatherPhase, blocks(), std::move(counts), [this] { return finish(); });
  return {};
}

// ---- the end ----

Status DeviceByHost::check() {
  for (int number = 0; number < groups_.hosts.shares(); ++number) {
    const std::vector<Rank> owners = groups_.hosts.owners(number);
    for (std::size_t host = 0; host < hosts(); ++host) {
      SRT_TRY(slices_.read_header(owners[host], block(number, host)));
    }
  }
  for (const Run& run : runs_) {
    const std::vector<Rank> owners = groups_.hosts.owners(run.share);
    for (std::size_t host = 0; slices_.carries(run.piece.slice) && host < hosts(); ++host) {
      const Bytes payload = block(run.share, host).subspan(run.place, run.piece.payload_bytes);
      SRT_TRY(slices_.check(run.piece, owners[host], payload));
    }
  }
  return {};
}

Status DeviceByHost::finish() {
  SRT_TRY(check());
  const Status queued = decode();
  // The host's memory is read until the copies are done.
  transport_.when_copied(queued, [host = std::move(host_)](const Status& /*arrived*/) {});
  return queued.ok() ? queued : transport_.stage().fail(queued);
}

Status DeviceByHost::decode() {
  SRT_TRY(transport_.copy(device_.get() + flags_bytes_, blocks().data(), blocks().size()));
  for (std::size_t s = 0; s < sums_of_.size(); ++s) {
    if (!slices_.carries(s)) {
      const float value = slices_.bad(s) ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
      SRT_TRY(transport_.fill(sums_of_[s].data(), sums_of_[s].size(), value));
    }
  }
  for (const Run& run : runs_) {
    SRT_TRY(slices_.carries(run.piece.slice) ? decode(run) : Status());
  }
  if (divisor() > 1) {
    const std::byte* const sums[] = {sums_.data()};
    const auto numel = static_cast<std::int64_t>(sums_.size() / sizeof(float));
    const kernels::cuda::Reduce mean{ReduceOp::kAverage, DType::kF32, sums, sums_.data(), numel, divisor()};
    const compression::DeviceQueue queue = transport_.queue();
    SRT_TRY(DeviceTransport::queued(queue.kernels.reduce(mean, queue.stream)));
  }
  for (std::size_t s = 0; packed_ && s < spec().slices.size(); ++s) {
    const Bytes gradient = spec().slices[s].gradient;
    SRT_TRY(transport_.copy(gradient.data(), sums_of_[s].data(), gradient.size()));
  }
  return {};
}

Status DeviceByHost::decode(const Run& run) {
  const Stripe& piece = run.piece;
  if (own(run) && run.residual != nullptr) {
    SRT_TRY(transport_.copy(run.residual, piece.gradient, piece.size_bytes()));
  }
  std::vector<const std::byte*> payloads;
  for (std::size_t host = 0; host < hosts(); ++host) {
    payloads.push_back(device_.get() + block_at(run.share, host) + run.place);
  }
  const compression::DeviceCoding& coding = *slices_.codec_state(piece).coder().on_device();
  return DeviceTransport::queued(coding.sum(transport_.queue(), piece.piece, payloads, piece.gradient));
}

void DeviceByHost::cancel(const Status& cause) {
  Reduction::cancel(cause);
  nccl_.cancel(spec().tags[kSumPhase], cause);
  cancel_exchanges(cause);
}

void DeviceByHost::cancel_exchanges(const Status& cause) {
  for (const net::HostGroups::Share& own : groups_.own) {
    own.owners->cancel(spec().tags[kExchangePhase], cause);
  }
}

}  // namespace sirtaki::engine
