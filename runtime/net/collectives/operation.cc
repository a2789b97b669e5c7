#include "runtime/net/collectives/operation.h"

namespace sirtaki::net {
namespace {

class Fnv1a {
 public:
  void add(std::uint64_t value) {
    for (int byte = 0; byte < 8; ++byte) {
      hash_ = (hash_ ^ static_cast<std::uint32_t>((value >> (8 * byte)) & 0xff)) * 16777619U;
    }
  }
  std::uint32_t value() const { return hash_; }

 private:
  std::uint32_t hash_ = 2166136261U;
};

}  // namespace

std::size_t most_at_once(const CollectiveArgs& args, const DirectOptions& options) {
  return args.exchange_bytes >= kUsualExchange ? options.exchange_bytes : args.exchange_bytes;
}

std::uint32_t signature_of(const CollectiveArgs& args, const DirectOptions& options) {
  Fnv1a hash;
  hash.add(static_cast<std::uint64_t>(args.kind));
  if (args.kind == OpKind::kBarrier) {
    return hash.value();
  }
  hash.add(static_cast<std::uint64_t>(args.dtype));
  if (args.kind == OpKind::kAllreduce || args.kind == OpKind::kReduceScatter) {
    hash.add(static_cast<std::uint64_t>(args.op));
  }
  if (args.kind == OpKind::kAllreduce || args.kind == OpKind::kBroadcast) {
    hash.add(static_cast<std::uint64_t>(args.root));
    hash.add(args.out.size());
  }
  if (args.kind == OpKind::kAllreduce && args.in.size() > most_at_once(args, options)) {
    hash.add(std::uint64_t{1});
  }
  if (args.kind == OpKind::kAllgather || args.kind == OpKind::kReduceScatter) {
    for (const std::int64_t count : args.recv_counts) {
      hash.add(static_cast<std::uint64_t>(count));
    }
  }
  return hash.value();
}

Operation::Operation(Setup setup)
    : setup_(std::move(setup)),
      rank_(setup_.link->rank()),
      size_(setup_.link->size()),
      check_(signature_of(setup_.args, *setup_.options)) {}

Envelope Operation::envelope(Rank peer, std::uint32_t slot, std::uint32_t check) const {
  return {peer, setup_.args.tag, slot, check_ ^ check, setup_.args.priority};
}

void Operation::run() {
  ++pending_;
  begin();
  // Only an operation without messages ends here; the callback must not run inside the call.
  if (pending_ == 1) {
    setup_.link->loop().post([self = shared_from_this()] { self->release(); });
    return;
  }
  --pending_;
}

void Operation::settle(const Status& status) {
  if (!status.ok()) {
    fail(status);
  }
}

void Operation::release() {
  if (--pending_ == 0 && setup_.finished) {
    let_go();
    Done finished = std::move(setup_.finished);
    finished(status_);
  }
}

void Operation::fail(const Status& cause) {
  if (!status_.ok()) {
    return;
  }
  status_ = cause;
  setup_.link->cancel(setup_.args.tag, cause);
  on_failed(cause);
}

void Operation::drop() {
  setup_.finished = Done();
}

}  // namespace sirtaki::net
