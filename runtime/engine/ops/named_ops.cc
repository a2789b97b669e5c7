#include "runtime/engine/ops/named_ops.h"

#include <algorithm>
#include <utility>

#include "runtime/base/check.h"
#include "runtime/control/scope.h"
#include "runtime/engine/ops/named_ops_impl.h"

namespace sirtaki::engine {
namespace {

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

// Row-major strides are the default, so they are left out of the agreement.
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

}  // namespace

std::string agreed_name(const std::string& name, const std::vector<Rank>& ranks) {
  if (ranks.empty()) {
    return name;
  }
  control::RankSet set;
  for (const Rank rank : ranks) {
    set.add(control::RankSet::of(rank));
  }
  return control::scoped_name(name, set);
}

std::string agreed_name(const OpSpec& spec) {
  return agreed_name(spec.name.empty() ? std::string(op_kind_name(spec.kind)) + ".noname" : spec.name, spec.ranks);
}

NamedOps::NamedOps(Loop& loop, net::Collectives& net, ControlLink& control, Stats& stats, Trace& trace,
                   NamedOptions options)
    : options_(options),
      loop_(loop),
      net_(net),
      control_(control),
      trace_(trace),
      completed_(stats.counter("ops.completed")),
      failed_(stats.counter("ops.failed")),
      bytes_(stats.counter("ops.bytes")),
      latency_(stats.histogram("ops.latency_ns")) {
  stats.gauge("ops.credit_bytes").set(options_.part_bytes * NamedParts::kWindow);
}

NamedOps::~NamedOps() {
  for (const auto& [key, op] : live_) {
    loop_.cancel(op->verdict);
  }
}

void NamedOps::submit(OpSpec spec, OpDone done) {
  ++progress_;
  std::string name = agreed_name(spec);
  auto net = collectives_of(spec.ranks, name);
  if (!net) {
    loop_.post([moved = std::move(done), status = net.status()]() mutable { moved(status, {}); });
    return;
  }
  if (names_.is_blocked(name)) {
    held_.emplace_back(std::move(spec), std::move(done));
    return;
  }
  auto op = std::make_unique<Op>();
  op->net = *net;
  op->name = std::move(name);
  const control::OpMeta meta = meta_of(spec);
  op->fingerprint = meta.fingerprint();
  op->spec = std::move(spec);
  op->done = std::move(done);
  op->submitted = loop_.now();
  op->traced = trace_.now();
  control::Names::Submitted submitted = names_.submit(op->name, meta);
  op->use = submitted.use;
  if (!submitted.failed.ok()) {
    loop_.post([done = std::move(op->done), status = submitted.failed]() mutable { done(status, {}); });
    return;
  }
  Op& placed = *op;
  place(std::move(op));
  if (submitted.announce) {
    control_.send(std::move(*submitted.announce));
  }
  if (submitted.start_id) {
    start(placed, *submitted.start_id);
  }
}

void NamedOps::place(std::unique_ptr<Op> op) {
  Op& placed = *op;
  const auto [place, added] = live_.try_emplace({placed.name, placed.use}, std::move(op));
  SRT_CHECK(added);
  placed.place = place;
}

Result<net::Collectives*> NamedOps::collectives_of(const std::vector<Rank>& ranks, const std::string& what) {
  if (ranks.empty()) {
    return &net_;
  }
  std::unique_ptr<net::Collectives>& set = sets_[ranks];
  if (set == nullptr) {
    set = net_.part(ranks);
  }
  if (set == nullptr) {
    return Status(Code::kUnsupported,
                  "'" + what + "': net.backend = \"gloo\" has no process sets; use the default backend");
  }
  return set.get();
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

void NamedOps::on_forgotten(const control::Forgotten& message) {
  names_.on_forgotten(message);
  for (auto& [spec, done] : std::exchange(held_, {})) {
    submit(std::move(spec), std::move(done));
  }
  // Names of other process sets may wait for another message.
  if (none_held_ && !names_.any_blocked()) {
    std::exchange(none_held_, {})();
  }
}

void NamedOps::when_none_held(Task then) {
  if (!names_.any_blocked()) {
    then();
  } else {
    none_held_ = std::move(then);
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
    cancel_collectives(op, message.status);  // the operation ends when its collectives have ended
    if (op.spec.transport) {
      op.spec.transport->give_up(message.status);  // another rank may never ask
    }
  } else {
    finish(op, message.status);
  }
}

void NamedOps::abort(const Status& cause) {
  for (const auto& [ranks, set] : sets_) {
    if (set != nullptr) {
      set->abort(cause);
    }
  }
  std::vector<Op*> waiting;
  for (const auto& [key, op] : live_) {
    op->cancelled.update(cause);
    if (!op->running) {
      waiting.push_back(op.get());
    }
  }
  for (Op* const op : waiting) {
    finish(*op, cause);
  }
  none_held_ = {};
  for (auto& [spec, done] : std::exchange(held_, {})) {
    done(cause, {});
  }
}

// ---- ends ----

// Returns the first departure of a rank that takes part in the operation, else `seen`.
Status NamedOps::cause_of(const OpSpec& spec, const Status& seen) const {
  const auto takes_part = [&spec](const Status& left) {
    return spec.ranks.empty() || std::ranges::binary_search(spec.ranks, left.blame().rank);
  };
  const auto first = std::ranges::find_if(left_, takes_part);
  return first == left_.end() ? seen : *first;
}

// The data plane sees that a peer is gone, but often that peer has left only because another rank had died. The control
// plane knows the first cause and reports it through abort() or on_cancelled(), so the failure waits.
void NamedOps::fail_later(Op& op, const Status& status) {
  op.running = false;
  op.verdict = loop_.after(control_.cause_grace(), [this, &op, status] {
    const Status cause = cause_of(op.spec, status);
    op.verdict = {};
    control_.send(control::OpFailed{op.name, op.use, cause});
    finish(op, cause);
  });
}

void NamedOps::finish(Op& finished, const Status& status) {
  ++progress_;
  const std::unique_ptr<Op> op = std::move(finished.place->second);
  live_.erase(op->place);
  loop_.cancel(op->verdict);
  names_.finished(op->name, op->use);
  const auto size = static_cast<std::int64_t>(op->spec.input.size_bytes());
  trace_.op(op->name, Stage::kNetwork, op->traced, size);
  if (status.ok()) {
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
