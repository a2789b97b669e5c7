#include "runtime/engine/named_ops.h"

#include <algorithm>
#include <functional>
#include <numeric>

#include "kernels/scale/scale.h"
#include "runtime/base/check.h"
#include "runtime/engine/tags.h"

namespace sirtaki::engine {
namespace {

std::int64_t product(const std::vector<std::int64_t>& dims, std::size_t from) {
  return std::accumulate(dims.begin() + static_cast<std::ptrdiff_t>(std::min(from, dims.size())), dims.end(),
                         std::int64_t{1}, std::multiplies<>());
}

bool needs_sizes(OpKind kind) {
  return kind == OpKind::kAllgather || kind == OpKind::kAlltoall;
}

bool row_major(const std::vector<std::int64_t>& dims, const std::vector<std::int64_t>& strides) {
  std::int64_t expected = 1;
  for (std::size_t i = dims.size(); i-- > 0;) {
    if (dims[i] != 1 && strides[i] != expected) {
      return false;
    }
    expected *= dims[i];
  }
  return true;
}

// Strides only take part in the agreement where they say something.
control::OpMeta meta_of(const OpSpec& spec) {
  control::OpMeta meta;
  meta.kind = spec.kind;
  if (spec.kind == OpKind::kBarrier) {
    return meta;
  }
  meta.dtype = spec.input.dtype;
  meta.device = spec.input.device.type;
  meta.dims = spec.dims;
  if (!spec.strides.empty() && !row_major(spec.dims, spec.strides)) {
    meta.strides = spec.strides;
  }
  meta.root = spec.kind == OpKind::kBroadcast ? spec.root : 0;
  if (spec.kind == OpKind::kAllreduce || spec.kind == OpKind::kReduceScatter) {
    meta.reduce_op = spec.reduce_op;
    meta.prescale = spec.prescale;
    meta.postscale = spec.postscale;
  }
  return meta;
}

std::string call_name(const OpSpec& spec) {
  return spec.name.empty() ? std::string(op_kind_name(spec.kind)) + ".noname" : spec.name;
}

}  // namespace

struct NamedOps::Op {
  OpSpec spec;
  OpDone done;
  OpResult result;
  std::string name;
  std::uint64_t use = 0;
  std::uint32_t id = 0;
  std::uint16_t fingerprint = 0;
  OpStage stage = OpStage::kPayload;
  bool running = false;
  Status cancelled;                    // why, when it was cancelled while running
  std::vector<std::int64_t> own_rows;  // sizes exchange: what this rank says
  std::vector<std::int64_t> all_rows;  // and what all say, in rank order
  std::vector<std::byte> scaled;       // copy of the input where it must be scaled and may not be changed
  TimePoint submitted;
  TimePoint traced;
  TimerId verdict;  // while it is not known why a peer is gone

  OpTag tag() const { return op_tag(id, stage, use, fingerprint); }
};

NamedOps::NamedOps(Loop& loop, net::Collectives& net, ControlLink& control, Stats& stats, Trace& trace)
    : loop_(loop),
      net_(net),
      control_(control),
      trace_(trace),
      completed_(stats.counter("ops.completed")),
      failed_(stats.counter("ops.failed")),
      bytes_(stats.counter("ops.bytes")),
      latency_(stats.histogram("ops.latency_ns")) {}

NamedOps::~NamedOps() {
  for (const auto& [key, op] : live_) {
    loop_.cancel(op->verdict);
  }
}

void NamedOps::submit(OpSpec spec, OpDone done) {
  ++progress_;
  auto op = std::make_unique<Op>();
  op->name = call_name(spec);
  const control::OpMeta meta = meta_of(spec);
  op->fingerprint = meta.fingerprint();
  op->spec = std::move(spec);
  op->done = std::move(done);
  op->submitted = loop_.now();
  op->traced = trace_.now();
  control::Names::Submitted submitted = names_.submit(op->name, meta);
  op->use = submitted.use;
  if (!submitted.failed) {
    loop_.post([done = std::move(op->done), status = submitted.failed]() mutable { done(status, {}); });
    return;
  }
  Op& placed = *op;
  live_[{op->name, op->use}] = std::move(op);
  if (submitted.announce) {
    control_.send(std::move(*submitted.announce));
  }
  if (submitted.start_id) {
    start(placed, *submitted.start_id);
  }
}

// ---- agreement ----

void NamedOps::on_agreed(const control::Agreed& message) {
  const auto begin = names_.on_agreed(message);
  if (!begin) {
    return;
  }
  const auto it = live_.find({message.name, begin->use});
  SRT_CHECK(it != live_.end());
  trace_.op(message.name, Stage::kNegotiate, it->second->traced, -1);
  start(*it->second, begin->id);
}

void NamedOps::on_recall(const control::Recall& message) {
  if (auto announce = names_.on_recall(message)) {
    control_.send(std::move(*announce));
  }
}

void NamedOps::on_cancelled(const control::OpCancelled& message) {
  if (!names_.on_cancelled(message)) {
    return;
  }
  const Key key{message.name, message.use};
  const auto it = live_.find(key);
  SRT_CHECK(it != live_.end());
  Op& op = *it->second;
  op.cancelled.update(message.status);
  if (op.running) {
    net_.cancel(op.tag(), message.status);  // ends in on_stage_done
  } else {
    finish(key, message.status);
  }
}

void NamedOps::abort(const Status& cause) {
  std::vector<Key> waiting;
  for (const auto& [key, op] : live_) {
    op->cancelled.update(cause);
    if (!op->running) {
      waiting.push_back(key);
    }
  }
  for (const Key& key : waiting) {
    finish(key, cause);
  }
}

// ---- running ----

void NamedOps::start(Op& op, std::uint32_t id) {
  op.id = id;
  op.running = true;
  op.traced = trace_.now();
  if (needs_sizes(op.spec.kind)) {
    exchange_sizes(op);
  } else {
    run_payload(op);
  }
}

void NamedOps::exchange_sizes(Op& op) {
  op.stage = OpStage::kSizes;
  const auto size = static_cast<std::size_t>(net_.size());
  if (op.spec.kind == OpKind::kAllgather) {
    op.own_rows = {op.spec.dims.front()};
  } else if (op.spec.splits.empty()) {
    op.own_rows.assign(size, op.spec.dims.front() / net_.size());
  } else {
    op.own_rows = op.spec.splits;
  }
  op.all_rows.resize(op.own_rows.size() * size);
  net::CollectiveArgs args;
  args.kind = OpKind::kAllgather;
  args.dtype = DType::kI64;
  args.in = std::as_bytes(std::span(op.own_rows));
  args.out = std::as_writable_bytes(std::span(op.all_rows));
  args.recv_counts.assign(size, static_cast<std::int64_t>(op.own_rows.size()));
  launch(op, std::move(args));
}

void NamedOps::on_sizes(Op& op) {
  op.stage = OpStage::kPayload;
  run_payload(op);
}

// Shapes the output and puts the input where the collective wants it.
Status NamedOps::prepare_output(Op& op) {
  OpSpec& spec = op.spec;
  const std::int64_t row = product(spec.dims, 1);
  const auto size = static_cast<std::size_t>(net_.size());
  const auto me = static_cast<std::size_t>(net_.rank());
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
      rows = spec.dims.front() / net_.size() + (net_.rank() < spec.dims.front() % net_.size() ? 1 : 0);
      break;
    default:
      return {};
  }
  op.result.dims = spec.dims;
  op.result.dims.front() = rows;
  if (spec.output.data == nullptr) {
    op.result.data.resize(static_cast<std::size_t>(rows * row) * dtype_size(spec.input.dtype));
    spec.output = spec.input;
    spec.output.data = op.result.data.data();
    spec.output.numel = rows * row;
  } else if (spec.output.numel != rows * row) {
    return {Code::kInvalidArgument,
            "tensor '" + op.name + "': the output has " + std::to_string(spec.output.numel) + " elements but rank " +
                std::to_string(net_.rank()) + " receives " + std::to_string(rows * row),
            {net_.rank(), op.name}};
  }
  return {};
}

net::CollectiveArgs NamedOps::payload_args(Op& op) const {
  OpSpec& spec = op.spec;
  net::CollectiveArgs args;
  args.kind = spec.kind;
  args.dtype = spec.input.dtype;
  args.op = spec.reduce_op;
  args.root = spec.root;
  args.priority = spec.priority;
  if (spec.kind == OpKind::kBarrier) {
    return args;
  }
  args.in = spec.input.bytes();
  args.out = spec.output.bytes();
  const std::int64_t row = product(spec.dims, 1);
  const int size = net_.size();
  const auto me = static_cast<std::size_t>(net_.rank());
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
        args.recv_counts.push_back((spec.dims.front() / size + (r < spec.dims.front() % size ? 1 : 0)) * row);
      }
      break;
    default:
      break;
  }
  return args;
}

void NamedOps::run_payload(Op& op) {
  OpSpec& spec = op.spec;
  if (Status status = prepare_output(op); !status) {
    // Every rank has to end it: this one tells, through the path of a failed collective.
    loop_.post([this, key = Key{op.name, op.use}, status] { on_stage_done(key, status); });
    return;
  }
  net::CollectiveArgs args = payload_args(op);
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
  launch(op, std::move(args));
}

void NamedOps::launch(Op& op, net::CollectiveArgs args) {
  args.tag = op.tag();
  net_.start(std::move(args), [this, key = Key{op.name, op.use}](const Status& status) { on_stage_done(key, status); });
}

void NamedOps::on_stage_done(const Key& key, const Status& status) {
  const auto it = live_.find(key);
  SRT_CHECK(it != live_.end());
  Op& op = *it->second;
  if (!op.cancelled) {
    finish(key, op.cancelled);
    return;
  }
  if (status.code() == Code::kPeerLost) {
    fail_later(key, status);
    return;
  }
  if (!status) {
    control_.send(control::OpFailed{op.name, op.use, status});
    finish(key, status);
    return;
  }
  if (op.stage == OpStage::kSizes) {
    on_sizes(op);
    return;
  }
  OpSpec& spec = op.spec;
  if (spec.postscale != 1.0 && (spec.kind == OpKind::kAllreduce || spec.kind == OpKind::kReduceScatter)) {
    kernels::scale(spec.output.dtype, spec.output.data, spec.output.numel, spec.postscale);
  }
  finish(key, {});
}

// The data plane sees that a peer is gone, often one that only left because another had died. The control plane knows
// the first cause and tells it through abort() or on_cancelled(); it gets a moment to do so.
void NamedOps::fail_later(const Key& key, const Status& status) {
  Op& op = *live_.at(key);
  op.running = false;
  op.verdict = loop_.after(kCauseGrace, [this, key, status] {
    const Status cause = left_ ? status : left_;
    live_.at(key)->verdict = {};
    control_.send(control::OpFailed{key.first, key.second, cause});
    finish(key, cause);
  });
}

void NamedOps::finish(const Key& key, const Status& status) {
  ++progress_;
  const auto it = live_.find(key);
  const std::unique_ptr<Op> op = std::move(it->second);
  live_.erase(it);
  loop_.cancel(op->verdict);
  names_.finished(key.first, key.second);
  const auto size = static_cast<std::int64_t>(op->spec.input.size_bytes());
  trace_.op(op->name, Stage::kNetwork, op->traced, size);
  if (status) {
    completed_.add();
    bytes_.add(static_cast<std::uint64_t>(size));
    latency_.add(loop_.now() - op->submitted);
  } else {
    failed_.add();
  }
  op->done(status, std::move(op->result));
}

void NamedOps::describe_in_flight(std::vector<control::WaitEntry>& entries) const {
  for (const auto& [key, op] : live_) {
    control::WaitEntry entry;
    entry.kind = control::WaitKind::kOp;
    entry.name = key.first;
    entry.use = key.second;
    entry.check = op->fingerprint;
    if (const control::OpMeta* meta = names_.meta_of(key.first, key.second)) {
      entry.what = meta->to_string();
    }
    entries.push_back(std::move(entry));
  }
}

}  // namespace sirtaki::engine
