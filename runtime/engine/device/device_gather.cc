#include "runtime/engine/device/device_gather.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <numeric>
#include <utility>

#include "compression/codecs/catalog.h"
#include "compression/device_coding.h"
#include "runtime/base/check.h"
#include "runtime/base/round_up.h"
#include "runtime/engine/reduction/by_host.h"

namespace sirtaki::engine {
namespace {

// Owners of shares, NCCL, and the ranks of a host.
enum Phase : std::uint8_t { kExchangePhase, kSumPhase, kGatherPhase };

// Kernels require words; blocks begin where kernels read faster.
constexpr std::size_t kPayloadAlign = 4;
constexpr std::size_t kBlockAlign = 16;

// Clears the gap between `end` and the next used bytes: gaps travel, too, and must not leak old memory.
void clear_until(Bytes block, std::size_t begin, std::size_t& end, std::size_t bytes) {
  std::memset(block.data() + end, 0, begin - end);
  end = begin + bytes;
}

std::vector<Rank> all_ranks(int size) {
  std::vector<Rank> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  return ranks;
}

}  // namespace

std::unique_ptr<compression::Coder> coder_of(const scheduler::PlannedTensor& tensor) {
  const compression::PayloadCodec* const codec = compression::find_payload_codec(tensor.decision.codec);
  return codec == nullptr ? nullptr : codec->open(tensor.decision.params, {tensor.numel, 1});
}

DeviceGather::DeviceGather(ReductionSpec spec, ReductionDeps deps, StageNote note, DeviceTransport& transport,
                           net::DeviceCollectives* nccl, Result<std::vector<SliceMemory>> memory)
    : Reduction(std::move(spec), deps.net.host_groups() == nullptr ? deps : host_deps(deps, *deps.net.host_groups()),
                std::move(note)),
      groups_(deps.net.host_groups()),
      transport_(transport),
      nccl_(nccl),
      slices_(this->spec().slices, deps.net),
      memory_(std::move(memory)) {
  SRT_CHECK(groups_ == nullptr || nccl_ != nullptr);
}

// Counts like pack() and lay_out(), with a run for each stripe.
std::vector<std::size_t> DeviceGather::buffers(const scheduler::Partition& partition,
                                               const std::vector<scheduler::PlannedTensor>& tensors,
                                               const net::Collectives& net) {
  const net::HostGroups* const groups = net.host_groups();
  const auto senders = static_cast<std::size_t>(groups == nullptr ? net.size() : groups->hosts.count());
  std::size_t runs = 0;
  std::size_t payloads = 0;
  std::size_t scratch = 0;
  for (const scheduler::Slice& slice : partition.slices) {
    const scheduler::PlannedTensor& tensor = tensors[static_cast<std::size_t>(slice.tensor)];
    const auto coder = coder_of(tensor);
    coder->at_step(0);  // a warm-up sends most in its first step
    const std::int64_t run = groups == nullptr ? slice.numel : std::min(tensor.stripe, slice.numel);
    for (std::int64_t at = 0; at < slice.numel; at += run) {
      payloads += round_up(coder->payload_bytes(std::min(run, slice.numel - at)), kPayloadAlign);
      ++runs;
    }
    scratch = std::max(scratch, coder->on_device()->scratch_bytes(slice.numel, senders));
  }
  const auto shares = static_cast<std::size_t>(groups == nullptr ? 1 : groups->hosts.shares());
  const std::size_t headers = shares * (round_up(partition.slices.size(), kBlockAlign) + kBlockAlign);
  std::vector<std::size_t> bytes{runs * sizeof(compression::DeviceNote) + senders * (payloads + headers) + scratch};
  if (groups != nullptr && partition.slices.size() > 1) {
    bytes.push_back(partition.size_bytes());
  }
  std::ranges::sort(bytes, std::greater());
  return bytes;
}

void DeviceGather::begin() {
  Status queued = memory_.status();
  queued.update(queued.ok() ? pack() : Status());
  queued.update(queued.ok() ? lay_out() : Status());
  if (queued.ok() && groups_ != nullptr) {
    sum_on_host();
  } else {
    encode(queued);
  }
}

// NCCL sums one piece of memory, so several slices are packed for it.
Status DeviceGather::pack() {
  const std::vector<ReducedSlice>& slices = spec().slices;
  for (const ReducedSlice& slice : slices) {
    sums_.push_back(slice.gradient);
    sum_bytes_ += slice.gradient.size();
  }
  if (groups_ == nullptr || slices.size() == 1) {
    return {};
  }
  SRT_ASSIGN(packed_, transport_.take(sum_bytes_));
  std::byte* place = packed_.get();
  for (Bytes& sum : sums_) {
    const Bytes gradient = std::exchange(sum, Bytes(place, sum.size()));
    place += sum.size();
    SRT_TRY(transport_.copy(sum.data(), gradient.data(), gradient.size()));
  }
  return {};
}

void DeviceGather::make_runs() {
  for (const Stripe& stripe : slices_.stripes()) {
    const int share = slices_.codec_state(stripe).ownership().share_of(stripe.piece.offset);
    if (!runs_.empty() && runs_.back().piece.slice == stripe.slice && runs_.back().share == share) {
      runs_.back().piece.piece.numel += stripe.piece.numel;
      continue;
    }
    const auto at = static_cast<std::size_t>(stripe.gradient - spec().slices[stripe.slice].gradient.data());
    std::byte* const residual = (*memory_)[stripe.slice].residual;
    runs_.push_back({stripe, share, 0, residual == nullptr ? nullptr : residual + at});
    runs_.back().piece.gradient = sums_[stripe.slice].data() + at;
    runs_.back().piece.index = runs_.size() - 1;
  }
}

Status DeviceGather::lay_out() {
  make_runs();
  const int shares = groups_ == nullptr ? 1 : groups_->hosts.shares();
  for (int number = 0; number < shares; ++number) {
    shares_.push_back({0, round_up(slices_.header_bytes(), kBlockAlign), groups_ == nullptr,
                       groups_ == nullptr ? all_ranks(size()) : groups_->hosts.owners(number)});
  }
  for (std::size_t i = 0; groups_ != nullptr && i < groups_->own.size(); ++i) {
    shares_[static_cast<std::size_t>(groups_->own[i].number)].own = true;
  }
  for (Run& run : runs_) {
    Share& share = share_of(run);
    run.piece.payload_bytes = slices_.codec_state(run.piece).coder().payload_bytes(run.piece.piece.numel);
    run.place = share.block_bytes;
    share.block_bytes += round_up(run.piece.payload_bytes, kPayloadAlign);
  }
  notes_bytes_ = round_up(runs_.size() * sizeof(compression::DeviceNote), kBlockAlign);
  std::size_t end = notes_bytes_;
  for (Share& share : shares_) {
    share.at = end;
    share.block_bytes = round_up(share.block_bytes, kBlockAlign);
    end += share.block_bytes * senders();
  }
  SRT_ASSIGN(host_, transport_.stage().take(end));
  std::size_t scratch = 0;
  for (const Run& run : runs_) {
    scratch = std::max(scratch, coding_of(run).scratch_bytes(run.piece.piece.numel, senders()));
  }
  SRT_ASSIGN(device_, transport_.take(end + scratch));
  scratch_at_ = end;
  return {};
}

// ---- on the host ----

void DeviceGather::sum_on_host() {
  auto ready = transport_.mark_copies();
  if (!ready) {
    encode(ready.status());
    return;
  }
  net::CollectiveArgs args;
  args.kind = OpKind::kAllreduce;
  args.tag = spec().tags[kSumPhase];
  args.dtype = DType::kF32;
  args.in = all_sums();
  args.out = all_sums();
  args.priority = spec().priority;
  net::DeviceWork work;
  work.ready = ready->event();
  work.on_host = true;
  transport_.nccl_bytes().add(sum_bytes_);
  Done done = exchanged(static_cast<std::int64_t>(sum_bytes_), [this] {
    encode({});
    return Status();
  });
  // The mark lives until NCCL has waited for it.
  nccl_->start_work(std::move(args), work,
                    [ready = std::move(ready), done = std::move(done)](const Status& status) mutable { done(status); });
}

// ---- between hosts, or between all ranks ----

void DeviceGather::encode(Status queued) {
  queued.update(queued.ok() ? encode_runs() : Status());
  transport_.when_copied(queued, waited([this] { return exchange(); }));
}

Status DeviceGather::encode_runs() {
  for (const Run& run : runs_) {
    if (!share_of(run).own) {
      continue;
    }
    kernels::Feedback arrays{run.piece.gradient};
    if (run.residual != nullptr) {
      arrays.residual = run.residual;
      arrays.left = run.piece.gradient;
    }
    const compression::DeviceOutput out{device_.get() + block_at(share_of(run), self()) + run.place,
                                        reinterpret_cast<compression::DeviceNote*>(device_.get()) + run.piece.index,
                                        scratch(), (*memory_)[run.piece.slice].whole};
    SRT_TRY(DeviceTransport::queued(coding_of(run).encode(transport_.queue(), run.piece.piece, arrays, out)));
  }
  for (const Share& share : shares_) {
    if (share.own) {
      const std::size_t at = block_at(share, self());
      SRT_TRY(transport_.copy(host_.bytes().data() + at, device_.get() + at, share.block_bytes));
    }
  }
  return transport_.copy(host_.bytes().data(), device_.get(), notes_bytes_);
}

Status DeviceGather::exchange() {
  fill_blocks();
  if (groups_ == nullptr) {
    const auto bytes = static_cast<std::int64_t>(shares_.front().block_bytes);
    allgather(kExchangePhase, blocks(), std::vector<std::int64_t>(senders(), bytes), [this] { return finish(); });
    return {};
  }
  std::int64_t bytes = 0;
  for (const Share& share : shares_) {
    bytes += share.own ? static_cast<std::int64_t>(share.block_bytes) : 0;
  }
  const auto ended = when_all(groups_->own.size(), exchanged(bytes, [this] { return gather(); }),
                              [this](const Status& cause) { cancel_exchanges(cause); });
  for (const net::HostGroups::Share& own : groups_->own) {
    const Share& share = shares_[static_cast<std::size_t>(own.number)];
    net::CollectiveArgs args;
    args.kind = OpKind::kAllgather;
    args.tag = spec().tags[kExchangePhase];
    args.dtype = DType::kU8;
    args.in = block(share, self());
    args.out = host_.bytes().subspan(share.at, share.block_bytes * senders());
    args.recv_counts.assign(senders(), static_cast<std::int64_t>(args.in.size()));
    args.priority = spec().priority;
    own.owners->start(std::move(args), ended);
  }
  return {};
}

// Completes the own blocks, whose payloads have been copied: headers, and zeros between payloads.
void DeviceGather::fill_blocks() {
  for (const Run& run : runs_) {
    if (!share_of(run).own) {
      continue;
    }
    compression::DeviceNote note;
    std::memcpy(&note, host_.bytes().data() + run.piece.index * sizeof note, sizeof note);
    if (note.not_finite != 0) {
      slices_.mark_not_finite(run.piece);
    } else {
      coding_of(run).encoded(note);
    }
  }
  for (const Share& share : shares_) {
    if (!share.own) {
      continue;
    }
    const Bytes filled = block(share, self());
    std::size_t end = 0;
    for (const Run& run : runs_) {
      if (&share_of(run) == &share) {
        clear_until(filled, run.place, end, run.piece.payload_bytes);
      }
    }
    clear_until(filled, filled.size(), end, 0);
    slices_.write_header(filled);
  }
}

Status DeviceGather::gather() {
  std::vector<std::int64_t> counts(static_cast<std::size_t>(size()), 0);
  for (std::size_t number = 0; number < shares_.size(); ++number) {
    const int place = groups_->hosts.owner_place(groups_->host, static_cast<int>(number));
    counts[static_cast<std::size_t>(place)] += static_cast<std::int64_t>(shares_[number].block_bytes * senders());
  }
  allgather(kGatherPhase, blocks(), std::move(counts), [this] { return finish(); });
  return {};
}

// ---- the end ----

Status DeviceGather::check() {
  for (const Share& share : shares_) {
    for (std::size_t sender = 0; sender < senders(); ++sender) {
      SRT_TRY(slices_.read_header(share.senders[sender], block(share, sender)));
    }
  }
  for (std::size_t sender = 0; sender < senders(); ++sender) {
    for (const Run& run : runs_) {
      if (slices_.carries(run.piece.slice)) {
        const Bytes payload = block(share_of(run), sender).subspan(run.place, run.piece.payload_bytes);
        SRT_TRY(slices_.check(run.piece, share_of(run).senders[sender], payload));
      }
    }
  }
  return {};
}

Status DeviceGather::finish() {
  SRT_TRY(check());
  const Status queued = decode();
  // Copies read host_ until they are done.
  transport_.when_copied(queued, [host = std::move(host_)](const Status& /*arrived*/) {});
  return queued.ok() ? queued : transport_.stage().fail(queued);
}

Status DeviceGather::decode() {
  SRT_TRY(transport_.copy(device_.get() + notes_bytes_, blocks().data(), blocks().size()));
  for (std::size_t s = 0; s < sums_.size(); ++s) {
    if (!slices_.carries(s)) {
      const float value = slices_.bad(s) ? std::numeric_limits<float>::quiet_NaN() : 0.0F;
      SRT_TRY(transport_.fill(sums_[s].data(), sums_[s].size(), value));
    }
  }
  for (const Run& run : runs_) {
    SRT_TRY(slices_.carries(run.piece.slice) ? decode(run) : Status());
  }
  for (std::size_t s = 0; packed_ && s < sums_.size(); ++s) {
    SRT_TRY(transport_.copy(spec().slices[s].gradient.data(), sums_[s].data(), sums_[s].size()));
  }
  return {};
}

Status DeviceGather::decode(const Run& run) {
  const Stripe& piece = run.piece;
  const Share& share = share_of(run);
  if (share.own && run.residual != nullptr) {
    SRT_TRY(transport_.copy(run.residual, piece.gradient, piece.size_bytes()));
  }
  std::vector<const std::byte*> payloads;
  for (std::size_t sender = 0; sender < senders(); ++sender) {
    payloads.push_back(device_.get() + block_at(share, sender) + run.place);
  }
  const compression::DeviceSum sum{payloads, piece.gradient, scratch(), divisor()};
  return DeviceTransport::queued(coding_of(run).sum(transport_.queue(), piece.piece, sum));
}

compression::DeviceCoding& DeviceGather::coding_of(const Run& run) const {
  return *slices_.codec_state(run.piece).coder().on_device();
}

void DeviceGather::cancel(const Status& cause) {
  Reduction::cancel(cause);
  if (groups_ != nullptr) {
    nccl_->cancel(spec().tags[kSumPhase], cause);
    cancel_exchanges(cause);
  }
}

void DeviceGather::cancel_exchanges(const Status& cause) {
  for (const net::HostGroups::Share& own : groups_->own) {
    own.owners->cancel(spec().tags[kExchangePhase], cause);
  }
}

}  // namespace sirtaki::engine
