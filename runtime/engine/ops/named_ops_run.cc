#include <algorithm>
#include <functional>
#include <numeric>
#include <utility>

#include "kernels/scale/scale.h"
#include "runtime/base/check.h"
#include "runtime/engine/ops/named_ops_impl.h"
#include "runtime/engine/ops/op_check.h"

namespace sirtaki::engine {
namespace {

std::int64_t product(const std::vector<std::int64_t>& dims, std::size_t from) {
  return std::accumulate(dims.begin() + static_cast<std::ptrdiff_t>(std::min(from, dims.size())), dims.end(),
                         std::int64_t{1}, std::multiplies<>());
}

// Takes the last number of each rank out of `rows`. Returns true if none of them is 0.
bool take_flags(std::vector<std::int64_t>& rows, std::size_t ranks) {
  const std::size_t each = rows.size() / ranks;
  bool all = true;
  std::vector<std::int64_t> rest;
  for (std::size_t i = 0; i < rows.size(); ++i) {
    if (i % each + 1 < each) {
      rest.push_back(rows[i]);
    } else {
      all = all && rows[i] != 0;
    }
  }
  rows = std::move(rest);
  return all;
}

std::int32_t priority_of(const OpSpec& spec) {
  const bool small = spec.kind == OpKind::kBarrier || spec.input.size_bytes() <= static_cast<std::size_t>(kUrgentBytes);
  return spec.priority == 0 && small ? kUrgentPriority : spec.priority;
}

// Returns the position of a rank of the job among the ranks that take part.
Rank place_of(Rank rank, const std::vector<Rank>& ranks) {
  return ranks.empty() ? rank : static_cast<Rank>(std::ranges::lower_bound(ranks, rank) - ranks.begin());
}

}  // namespace

// `op` outlives its collectives, which capture it: it ends in decide_outcome(), after the last collective.
void NamedOps::start(Op& op, std::uint32_t id) {
  op.id = id;
  op.running = true;
  op.traced = trace_.now();
  if (moves_blocks(op.spec.kind)) {
    exchange_sizes(op);
  } else {
    op.failed = shape_output(op);  // reported later, because all ranks choose the transport together
    choose_transport(op, true);
  }
}

// Tensors on a GPU have one more number: whether the payload of this rank may stay there, which all must know.
void NamedOps::exchange_sizes(Op& op) {
  op.stage = OpStage::kSizes;
  const auto size = static_cast<std::size_t>(op.net->size());
  if (op.spec.kind == OpKind::kAllgather) {
    op.own_rows = {op.spec.dims.front()};
  } else if (op.spec.splits.empty()) {
    op.own_rows.assign(size, op.spec.dims.front() / op.net->size());
  } else {
    op.own_rows = op.spec.splits;
  }
  if (op.spec.input.device.type != DeviceType::kCpu) {
    op.own_rows.push_back(op.spec.transport ? 1 : 0);
  }
  op.all_rows.resize(op.own_rows.size() * size);
  net::CollectiveArgs args;
  args.kind = OpKind::kAllgather;
  args.dtype = DType::kI64;
  args.in = std::as_bytes(std::span(op.own_rows));
  args.out = std::as_writable_bytes(std::span(op.all_rows));
  args.recv_counts.assign(size, static_cast<std::int64_t>(op.own_rows.size()));
  args.priority = priority_of(op.spec);
  args.tag = op.sizes_tag();
  op.net->start(std::move(args), [this, &op](const Status& status) { on_sizes(op, status); });
}

void NamedOps::on_sizes(Op& op, const Status& status) {
  op.failed.update(status);
  op.stage = OpStage::kPayload;
  if (!op.failed.ok() || !op.cancelled.ok()) {
    decide_outcome(op);
    return;
  }
  bool device = false;
  if (op.spec.input.device.type != DeviceType::kCpu) {
    op.own_rows.pop_back();
    device = take_flags(op.all_rows, static_cast<std::size_t>(op.net->size()));
  }
  op.failed = shape_output(op);
  choose_transport(op, device);
}

void NamedOps::choose_transport(Op& op, bool device) {
  auto then = [this, &op](const Result<net::Collectives*>& chosen) { on_transport(op, chosen); };
  if (!op.spec.transport) {
    run_payload(op);
  } else if (device) {
    op.spec.transport->choose(op.spec, std::move(then));
  } else {
    op.spec.transport->choose_host(op.spec, std::move(then));
  }
}

void NamedOps::on_transport(Op& op, const Result<net::Collectives*>& chosen) {
  if (!chosen || !op.cancelled.ok()) {
    op.failed.update(chosen.status());
    decide_outcome(op);
    return;
  }
  op.net = *chosen == nullptr ? op.net : *chosen;
  run_payload(op);
}

// Sets the shape of the output, for which the program may have passed no memory.
Status NamedOps::shape_output(Op& op) {
  OpSpec& spec = op.spec;
  const std::int64_t row = product(spec.dims, 1);
  const auto size = static_cast<std::size_t>(op.net->size());
  const auto me = static_cast<std::size_t>(op.net->rank());
  std::int64_t rows = 0;
  switch (spec.kind) {
    case OpKind::kAllgather:
      rows = std::accumulate(op.all_rows.begin(), op.all_rows.end(), std::int64_t{0});
      break;
    case OpKind::kAlltoall:
      for (std::size_t r = 0; r < size; ++r) {
        op.result.received_splits.push_back(op.all_rows[r * size + me]);
        rows += op.all_rows[r * size + me];
      }
      break;
    case OpKind::kReduceScatter:
      rows = scattered_rows(spec.dims.front(), op.net->size(), op.net->rank());
      break;
    default:
      return {};
  }
  op.result.dims = spec.dims;
  op.result.dims.front() = rows;
  if (spec.output.data == nullptr) {
    spec.output = spec.input;
    spec.output.data = nullptr;
    spec.output.numel = rows * row;
  } else if (spec.output.numel != rows * row) {
    return {Code::kInvalidArgument,
            "tensor '" + op.name + "': the output has " + std::to_string(spec.output.numel) + " elements but rank " +
                std::to_string(net_.rank()) + " receives " + std::to_string(rows * row),
            {net_.rank(), op.name}};
  }
  return {};
}

// Allocates the output if neither the program nor the transport has memory for it.
void NamedOps::allocate_output(Op& op) {
  if (!op.result.dims.empty() && op.spec.output.data == nullptr) {
    op.result.data.resize(op.spec.output.size_bytes());
    op.spec.output.data = op.result.data.data();
  }
}

net::CollectiveArgs NamedOps::payload_args(Op& op) const {
  OpSpec& spec = op.spec;
  net::CollectiveArgs args;
  args.kind = spec.kind;
  args.priority = priority_of(spec);
  if (spec.kind == OpKind::kBarrier) {
    return args;
  }
  // Uses only facts that the ranks have agreed on, since a joined rank knows no others.
  args.dtype = spec.input.dtype;
  if (spec.kind == OpKind::kAllreduce || spec.kind == OpKind::kReduceScatter) {
    args.op = spec.reduce_op;
  } else if (spec.kind == OpKind::kBroadcast) {
    args.root = place_of(spec.root, spec.ranks);
  }
  args.in = spec.input.bytes();
  args.out = spec.output.bytes();
  const std::int64_t row = product(spec.dims, 1);
  const int size = op.net->size();
  const auto me = static_cast<std::size_t>(op.net->rank());
  switch (spec.kind) {
    case OpKind::kAllgather:
      for (const std::int64_t rows : op.all_rows) {
        args.recv_counts.push_back(rows * row);
      }
      break;
    case OpKind::kAlltoall:
      for (std::size_t r = 0; r < static_cast<std::size_t>(size); ++r) {
        args.send_counts.push_back(op.own_rows[r] * row);
        args.recv_counts.push_back(op.all_rows[r * static_cast<std::size_t>(size) + me] * row);
      }
      break;
    case OpKind::kReduceScatter:
      for (int r = 0; r < size; ++r) {
        args.recv_counts.push_back(scattered_rows(spec.dims.front(), size, r) * row);
      }
      break;
    default:
      break;
  }
  return args;
}

// Scales or copies the input for the collectives that work in place.
void NamedOps::prepare_input(Op& op) const {
  OpSpec& spec = op.spec;
  net::CollectiveArgs& args = op.payload;
  const bool scale = spec.prescale != 1.0;
  if (spec.kind == OpKind::kAllreduce && scale) {
    if (spec.input.data != spec.output.data) {
      std::ranges::copy(spec.input.bytes(), spec.output.data);
    }
    kernels::scale(spec.output.dtype, spec.output.data, spec.output.numel, spec.prescale);
    args.in = args.out;
  } else if (spec.kind == OpKind::kReduceScatter && scale) {
    op.scaled.assign(args.in.begin(), args.in.end());
    kernels::scale(spec.input.dtype, op.scaled.data(), spec.input.numel, spec.prescale);
    args.in = op.scaled;
  } else if (spec.kind == OpKind::kBroadcast && spec.root == net_.rank() && spec.input.data != spec.output.data) {
    std::ranges::copy(spec.input.bytes(), spec.output.data);
  }
}

void NamedOps::run_payload(Op& op) {
  if (!op.failed.ok()) {
    // Every rank must end the operation, so this rank reports the error like that of a failed collective. Cancelling
    // discards the messages that the other ranks have sent.
    cancel_collectives(op, op.failed);
    loop_.post([this, &op] { decide_outcome(op); });
    return;
  }
  allocate_output(op);
  op.payload = payload_args(op);
  if (op.spec.kind == OpKind::kAllreduce && op.spec.reduce_op == ReduceOp::kAdasum) {
    run_adasum(op);
    return;
  }
  prepare_input(op);
  const OpKind kind = op.spec.kind;
  const auto item = static_cast<std::int64_t>(dtype_size(op.payload.dtype));
  const auto bytes = static_cast<std::int64_t>(op.payload.out.size());
  if ((kind == OpKind::kAllreduce || kind == OpKind::kBroadcast) && bytes > options_.part_bytes) {
    op.parts = NamedParts(bytes / item, std::max(options_.part_bytes / item, std::int64_t{1}));
  }
  start_parts(op);
}

void NamedOps::start_parts(Op& op) {
  while (const auto part = op.parts.next()) {
    net::CollectiveArgs args = op.payload;
    if (op.parts.count() > 1) {
      const std::size_t item = dtype_size(args.dtype);
      const std::size_t begin = static_cast<std::size_t>(part->begin) * item;
      const std::size_t size = static_cast<std::size_t>(part->count) * item;
      args.in = args.in.empty() ? args.in : args.in.subspan(begin, size);
      args.out = args.out.subspan(begin, size);
    }
    args.tag = op.payload_tag(part->index);
    op.net->start(std::move(args),
                  [this, &op, index = part->index](const Status& status) { on_part_done(op, index, status); });
  }
}

void NamedOps::on_part_done(Op& op, std::uint32_t index, const Status& status) {
  op.parts.finished(index);
  if (!status.ok() && op.failed.ok()) {
    op.failed = status;
    cancel_collectives(op, status);
  }
  if (op.failed.ok() && op.cancelled.ok()) {
    start_parts(op);
  } else {
    op.parts.give_up();
  }
  if (op.parts.over()) {
    decide_outcome(op);
  }
}

void NamedOps::cancel_collectives(Op& op, const Status& cause) {
  // Cancels pieces that have not started here, too: a rank ahead of this one may have sent them, and those messages
  // must not wait for a receiver.
  op.parts.give_up();
  op.net->cancel(op.all_tags(), cause);
}

// Requires that no collective of `op` is in flight any more.
void NamedOps::decide_outcome(Op& op) {
  OpSpec& spec = op.spec;
  if (!op.cancelled.ok()) {
    finish(op, op.cancelled);
  } else if (op.failed.code() == Code::kPeerLost) {
    fail_later(op, op.failed);
  } else if (!op.failed.ok()) {
    control_.send(control::OpFailed{op.name, op.use, op.failed});
    finish(op, op.failed);
  } else {
    const bool scaled_already = spec.reduce_op == ReduceOp::kAdasum;
    if (spec.postscale != 1.0 && !scaled_already &&
        (spec.kind == OpKind::kAllreduce || spec.kind == OpKind::kReduceScatter)) {
      kernels::scale(spec.output.dtype, spec.output.data, spec.output.numel, spec.postscale);
    }
    finish(op, {});
  }
}

}  // namespace sirtaki::engine
