// NamedOps, part: Adasum. Each rank receives its block of the tensors of all ranks and computes their dot products
// there. The sums of these products over the ranks give all ranks the same weights (kernels/adasum/adasum.h), with
// which each rank adds up its block. The traffic equals that of an allreduce for any number of ranks, and all ranks get
// the same bits.
#include <algorithm>
#include <utility>

#include "kernels/adasum/adasum.h"
#include "runtime/engine/ops/named_ops_impl.h"

namespace sirtaki::engine {
namespace {

// Multiplications in one task of the loop, about a millisecond of work.
constexpr std::int64_t kWork = 1 << 20;
constexpr std::int64_t kLeastSlice = 512;

enum AdasumExchange : std::uint32_t { kBlocks = 0, kProducts = 1, kResult = 2 };

std::size_t block_bytes(const OpSpec& spec, const AdasumState& state, int rank) {
  return static_cast<std::size_t>(state.counts[static_cast<std::size_t>(rank)]) * dtype_size(spec.input.dtype);
}

// Returns the number of elements for one task, each of which takes `multiplications`.
std::int64_t slice_of(std::size_t multiplications) {
  return std::max(kLeastSlice, kWork / static_cast<std::int64_t>(multiplications));
}

}  // namespace

void NamedOps::run_adasum(Op& op) {
  const auto size = static_cast<std::size_t>(op.net->size());
  const auto me = static_cast<std::size_t>(op.net->rank());
  AdasumState& state = op.adasum;
  const std::int64_t each = op.spec.input.numel / op.net->size();
  const auto more = static_cast<std::size_t>(op.spec.input.numel % op.net->size());
  state.counts.assign(size, each);
  std::for_each_n(state.counts.begin(), more, [](std::int64_t& count) { ++count; });
  state.blocks.resize(size * block_bytes(op.spec, state, op.net->rank()));
  state.products.assign(kernels::dot_product_count(size), 0.0);
  net::CollectiveArgs args = op.payload;
  args.kind = OpKind::kAlltoall;
  args.out = state.blocks;
  args.send_counts = state.counts;
  args.recv_counts.assign(size, state.counts[me]);
  args.tag = op.payload_tag(kBlocks);
  op.net->start(std::move(args), [this, &op](const Status& status) {
    if (adasum_goes_on(op, status)) {
      multiply_blocks(op, 0);
    }
  });
}

bool NamedOps::adasum_goes_on(Op& op, const Status& status) {
  op.failed.update(status);
  if (op.failed.ok() && op.cancelled.ok()) {
    return true;
  }
  if (!op.failed.ok()) {
    cancel_collectives(op, op.failed);
  }
  decide_outcome(op);
  return false;
}

// Works slice by slice, so that the loop can serve other messages in between.
void NamedOps::multiply_blocks(Op& op, std::int64_t at) {
  AdasumState& state = op.adasum;
  const std::int64_t block = state.counts[static_cast<std::size_t>(op.net->rank())];
  if (at >= block) {
    share_products(op);
    return;
  }
  const DType dtype = op.spec.input.dtype;
  const auto from =
      state.arrays(block_bytes(op.spec, state, op.net->rank()), static_cast<std::size_t>(at) * dtype_size(dtype));
  const std::int64_t slice = slice_of(state.products.size());
  kernels::add_dot_products(dtype, from, std::min(slice, block - at), state.products);
  loop_.post([this, &op, next = at + slice] {
    if (adasum_goes_on(op, {})) {
      multiply_blocks(op, next);
    }
  });
}

void NamedOps::share_products(Op& op) {
  net::CollectiveArgs args;
  args.kind = OpKind::kAllreduce;
  args.dtype = DType::kF64;
  args.in = std::as_bytes(std::span(op.adasum.products));
  args.out = std::as_writable_bytes(std::span(op.adasum.products));
  args.priority = op.payload.priority;
  args.tag = op.payload_tag(kProducts);
  op.net->start(std::move(args), [this, &op](const Status& status) {
    if (!adasum_goes_on(op, status)) {
      return;
    }
    AdasumState& state = op.adasum;
    state.weights = kernels::adasum_weights(state.products, state.counts.size());
    // The Adasum of scaled tensors is the scaled Adasum of the tensors.
    for (double& weight : state.weights) {
      weight *= op.spec.prescale * op.spec.postscale;
    }
    add_blocks(op, 0);
  });
}

void NamedOps::add_blocks(Op& op, std::int64_t at) {
  AdasumState& state = op.adasum;
  const std::int64_t block = state.counts[static_cast<std::size_t>(op.net->rank())];
  if (at >= block) {
    gather_adasum(op);
    return;
  }
  const DType dtype = op.spec.input.dtype;
  const std::size_t offset = static_cast<std::size_t>(at) * dtype_size(dtype);
  const auto from = state.arrays(block_bytes(op.spec, state, op.net->rank()), offset);
  const std::int64_t slice = slice_of(state.weights.size());
  kernels::weighted_sum(dtype, from, state.weights, state.blocks.data() + offset, std::min(slice, block - at));
  loop_.post([this, &op, next = at + slice] {
    if (adasum_goes_on(op, {})) {
      add_blocks(op, next);
    }
  });
}

void NamedOps::gather_adasum(Op& op) {
  AdasumState& state = op.adasum;
  net::CollectiveArgs args = op.payload;
  args.kind = OpKind::kAllgather;
  args.in = ConstBytes(state.blocks).first(block_bytes(op.spec, state, op.net->rank()));
  args.recv_counts = state.counts;
  args.tag = op.payload_tag(kResult);
  op.net->start(std::move(args), [this, &op](const Status& status) {
    if (adasum_goes_on(op, status)) {
      decide_outcome(op);
    }
  });
}

}  // namespace sirtaki::engine
