// NamedOps, part: operations while ranks have joined. A joined rank has no more data and takes part in the operations
// of the other ranks.
#include <functional>
#include <numeric>
#include <utility>

#include "runtime/control/scope.h"
#include "runtime/engine/ops/named_ops_impl.h"

namespace sirtaki::engine {
namespace {

// Returns the ranks in an agreed name; empty if it names no process set.
std::vector<Rank> ranks_in(const std::string& name, int size) {
  return control::has_scope(name) ? control::scope_of(name, size).ranks() : std::vector<Rank>();
}

OpSpec spec_of(const control::StandInOp& message, int size) {
  const control::OpMeta& meta = message.meta;
  OpSpec spec;
  spec.kind = meta.kind;
  spec.name = message.name;
  spec.ranks = ranks_in(message.name, size);
  spec.dims = meta.dims;
  spec.strides = meta.strides;
  spec.reduce_op = meta.reduce_op;
  spec.root = meta.root;
  spec.prescale = meta.prescale;
  spec.postscale = meta.postscale;
  if (spec.kind == OpKind::kAllgather || spec.kind == OpKind::kAlltoall) {
    spec.dims.front() = 0;
  }
  spec.input.dtype = meta.dtype;
  const bool empty = spec.kind == OpKind::kBarrier;
  spec.input.numel =
      empty ? 0 : std::accumulate(spec.dims.begin(), spec.dims.end(), std::int64_t{1}, std::multiplies<>());
  return spec;
}

}  // namespace

void NamedOps::on_some_joined(const control::SomeJoined& message) {
  for (control::Announce& announce : names_.on_some_joined(message, net_.size())) {
    control_.send(std::move(announce));
  }
}

void NamedOps::announce_in_flight() {
  for (control::Announce& announce : names_.on_joining()) {
    control_.send(std::move(announce));
  }
}

void NamedOps::on_stand_in(const control::StandInOp& message) {
  if (!names_.contribute_zeros(message)) {
    return;
  }
  ++progress_;
  auto op = std::make_unique<Op>();
  op->spec = spec_of(message, net_.size());
  op->zeros.resize(op->spec.input.size_bytes());
  op->spec.input.data = op->zeros.data();
  if (op->spec.kind == OpKind::kAllreduce || op->spec.kind == OpKind::kBroadcast) {
    op->spec.output = op->spec.input;
  }
  op->name = message.name;
  op->use = message.use;
  op->fingerprint = message.meta.fingerprint();
  op->done = [](const Status&, const OpResult&) {};
  op->submitted = loop_.now();
  op->traced = trace_.now();
  // Cannot fail: other ranks use the set already, so the backend has process sets.
  op->net = *collectives_of(op->spec.ranks, message.name);
  place(std::move(op));
}

}  // namespace sirtaki::engine
