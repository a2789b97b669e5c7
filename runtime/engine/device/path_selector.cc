#include "runtime/engine/device/path_selector.h"

#include <algorithm>
#include <span>
#include <utility>

#include "runtime/engine/common/tags.h"
#include "runtime/engine/device/device_path.h"
#include "runtime/engine/device/device_stage.h"
#include "runtime/engine/device/host_staged_path.h"

namespace sirtaki::engine {
namespace {

// The number of a rank that lacks nothing; the others are larger.
constexpr std::int64_t kNothing = -1;

}  // namespace

std::int64_t PathSelector::Lack::number() const {
  return of == Of::kKernels ? 0 : of == Of::kStream ? 1 : 2 + bytes;
}

PathSelector::Lack PathSelector::Lack::from(std::int64_t number) {
  return number == 0 ? Lack{Of::kKernels} : number == 1 ? Lack{Of::kStream} : Lack{Of::kBlock, number - 2};
}

bool PathSelector::needs_decision(const DeviceSupport& support, const scheduler::Plan& plan) const {
  if (!compresses(support)) {
    return support.dense && !transport_.host_only();
  }
  if (support.by_host) {
    return !transport_.host_only();
  }
  // A fully compressed plan sends nothing over NCCL, so the ranks need not connect it.
  return std::ranges::any_of(plan.partitions(),
                             [](const scheduler::Partition& part) { return !part.format.compressed(); });
}

void PathSelector::select(const PathQuery& query, net::DeviceCollectives* nccl,
                          MoveFunction<void(Result<SelectedPath>)> then) {
  if (nccl == nullptr && (!compresses(query.support) || query.support.by_host)) {
    then(SelectedPath());
    return;
  }
  Offer mine = make_offer(query, nccl);
  if (!mine.path && mine.path.status().code() != Code::kExhausted) {
    then(stage_.fail(mine.path.status()));
    return;
  }
  agree(query, std::move(mine), std::move(then));
}

PathSelector::Offer PathSelector::make_offer(const PathQuery& query, net::DeviceCollectives* nccl) {
  const Status kernels = stage_.device().kernels_ready();
  if (compresses(query.support) && !kernels.ok()) {
    return {Status(Code::kExhausted, std::string(kernels.text())), Lack{Lack::Of::kKernels}};
  }
  transport_.take_refusal();  // of another user
  Result<SelectedPath> path = make_path(query, nccl);
  if (path) {
    return {std::move(path)};
  }
  const std::optional<std::size_t> block = transport_.take_refusal();
  return {std::move(path), block ? Lack{Lack::Of::kBlock, static_cast<std::int64_t>(*block)} : Lack{Lack::Of::kStream}};
}

Result<SelectedPath> PathSelector::make_path(const PathQuery& query, net::DeviceCollectives* nccl) {
  SRT_TRY(transport_.open_copies());
  SelectedPath path;
  if (compresses(query.support)) {
    SRT_ASSIGN(path.compressor, DeviceCompressor::create(transport_, nccl, query.plan, {host_, options_.credit_bytes}));
  }
  if (nccl != nullptr) {
    auto dense = std::make_unique<DevicePath>(transport_, *nccl);
    SRT_TRY(dense->reserve(query.plan, options_.fusion_bytes));
    path.dense = std::move(dense);
  } else {
    path.dense = std::make_unique<HostStagedPath>(transport_, host_);
  }
  return path;
}

void PathSelector::agree(const PathQuery& query, Offer mine, MoveFunction<void(Result<SelectedPath>)> then) {
  const int size = host_.size();
  const auto worst = std::make_shared<std::int64_t>(mine.lacks ? mine.lacks->number() * size + host_.rank() : kNothing);
  net::CollectiveArgs args;
  args.kind = OpKind::kAllreduce;
  // The last attempt number, so that giving up the first steps cannot touch this tag.
  args.tag = stream_tag(query.stream, kStreamAttempts - 1, kFlagsPosition, 0);
  args.dtype = DType::kI64;
  args.op = ReduceOp::kMax;
  args.out = std::as_writable_bytes(std::span(worst.get(), 1));
  args.in = args.out;
  host_.start(std::move(args), [this, size, worst, name = query.name, path = std::move(mine.path),
                                then = std::move(then)](const Status& status) mutable {
    if (!status.ok() || *worst == kNothing) {
      then(status.ok() ? std::move(path) : Result<SelectedPath>(status));
      return;
    }
    path = SelectedPath();  // returns its blocks
    report(name, static_cast<Rank>(*worst % size), Lack::from(*worst / size));
    transport_.release_spare([then = std::move(then)](const Status& released) mutable {
      then(released.ok() ? Result<SelectedPath>(SelectedPath()) : Result<SelectedPath>(released));
    });
  });
}

void PathSelector::report(const std::string& stream, Rank rank, const Lack& lack) {
  const std::string block = lack.of == Lack::Of::kBlock ? std::to_string(lack.bytes) + " bytes of " : "";
  transport_.log().write(
      host_.rank() == 0 ? LogLevel::kWarn : LogLevel::kInfo,
      "stream '" + stream + "': gradients travel through host memory, because rank " + std::to_string(rank) +
          (lack.of == Lack::Of::kKernels
               ? " has no kernels for its GPU. Build the package with its architecture in SIRTAKI_CUDA_ARCHITECTURES, "
                 "or choose device.codecs=host for all"
               : " cannot allocate " + block +
                     "GPU memory for residuals and buffers. Likely cause: the framework or another process "
                     "holds the memory of the GPU; give this one less work, or choose device.codecs=host or "
                     "device.data=host for all"));
}

}  // namespace sirtaki::engine
