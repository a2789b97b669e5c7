#include "tests/world/abstract_net.h"

#include <algorithm>
#include <bit>
#include <iterator>

#include "kernels/reduce/reduce.h"
#include "kernels/scale/scale.h"
#include "runtime/base/check.h"
#include "runtime/base/dtype.h"

namespace sirtaki::world {

class AbstractCollectives final : public net::Collectives {
 public:
  AbstractCollectives(std::shared_ptr<AbstractGroup> group, Rank rank, SimLoop& loop)
      : group_(std::move(group)), rank_(rank), loop_(loop) {}

  net::Caps caps() const override { return {}; }
  Rank rank() const override { return rank_; }
  int size() const override { return group_->size_; }
  void start(net::CollectiveArgs args, Done done) override {
    Status status = failed_;
    status.update(net::check_args(args, rank_, group_->size_));
    if (!status.ok()) {
      loop_.post([done = std::move(done), status]() mutable { done(status); });
      return;
    }
    group_->start(rank_, loop_, std::move(args), std::move(done));
  }
  void cancel(net::TagGroup tags, Status cause) override {
    for (auto op = group_->ops_.begin(); op != group_->ops_.end();) {
      const auto next = std::next(op);
      if (tags.contains(OpTag(op->first))) {
        group_->end(op, rank_, cause);
      }
      op = next;
    }
  }
  void abort(Status cause) override {
    failed_.update(cause);
    group_->end_all_of(rank_, failed_);
  }

 private:
  std::shared_ptr<AbstractGroup> group_;
  const Rank rank_;
  SimLoop& loop_;
  Status failed_;
};

std::unique_ptr<net::Collectives> AbstractGroup::endpoint(Rank rank, SimLoop& loop) {
  return std::make_unique<AbstractCollectives>(shared_from_this(), rank, loop);
}

void AbstractGroup::start(Rank rank, SimLoop& loop, net::CollectiveArgs args, Done done) {
  const auto [it, first] = ops_.try_emplace(args.tag.value);
  Op& op = it->second;
  if (first) {
    op.parts.resize(static_cast<std::size_t>(size_));
    op.started.resize(static_cast<std::size_t>(size_));
    op.missing = size_;
  }
  const auto at = static_cast<std::size_t>(rank);
  op.parts[at] = std::make_unique<Part>(Part{&loop, std::move(args), std::move(done), {}});
  if (!op.started[at]) {
    op.started[at] = true;
    --op.missing;
  }
  if (op.missing == 0) {
    run(it);
  } else {
    fail_without_the_gone(it);
  }
}

void AbstractGroup::run(Ops::iterator it) {
  Op& op = it->second;
  const auto live = [](const auto& part) { return part != nullptr; };
  if (!std::ranges::all_of(op.parts, live)) {
    return;  // another rank has cancelled: the others will
  }
  ++operations_;
  move_data(op);
  const TimePoint now = op.parts.front()->loop->now();
  const Duration transfer =
      transfer_time(std::max(op.parts.front()->args.in.size(), op.parts.front()->args.out.size()));
  const auto stages = static_cast<int>(std::bit_width(static_cast<unsigned>(size_ - 1)));
  link_free_ = std::max(link_free_, now) + transfer;
  const Duration whole = link_free_ - now + 2 * stages * costs_.latency;
  for (Rank r = 0; r < size_; ++r) {
    Part& part = *op.parts[static_cast<std::size_t>(r)];
    part.end = part.loop->after(whole, [this, self = shared_from_this(), tag = it->first, r] {
      const auto found = ops_.find(tag);
      SRT_CHECK(found != ops_.end());
      end(found, r, {});
    });
  }
}

Duration AbstractGroup::transfer_time(std::size_t bytes) const {
  const double share = 2.0 * (size_ - 1) / size_;
  const double seconds = share * static_cast<double>(bytes) * costs_.bytes_factor / costs_.bytes_per_second;
  return Duration(static_cast<std::int64_t>(seconds * 1e9));
}

// Ends the part of a rank once: on time, cancelled, or because another rank is missing.
void AbstractGroup::end(Ops::iterator it, Rank rank, const Status& status) {
  const std::unique_ptr<Part> part = std::move(it->second.parts[static_cast<std::size_t>(rank)]);
  if (part == nullptr) {
    return;
  }
  part->loop->cancel(part->end);
  part->loop->post([done = std::move(part->done), status]() mutable { done(status); });
  if (std::ranges::all_of(it->second.parts, [](const auto& p) { return p == nullptr; })) {
    ops_.erase(it);
  }
}

void AbstractGroup::end_all_of(Rank rank, const Status& cause) {
  for (auto it = ops_.begin(); it != ops_.end();) {
    end(it++, rank, cause);
  }
}

void AbstractGroup::kill(Rank rank) {
  gone_[static_cast<std::size_t>(rank)] = true;
  any_gone_ = true;
  for (auto it = ops_.begin(); it != ops_.end();) {
    fail_without_the_gone(it++);
  }
}

void AbstractGroup::fail_without_the_gone(Ops::iterator it) {
  for (Rank gone = 0; any_gone_ && gone < size_; ++gone) {
    const auto at = static_cast<std::size_t>(gone);
    if (!gone_[at] || it->second.started[at]) {
      continue;
    }
    const Status cause(Code::kPeerLost, "rank " + std::to_string(gone) + " is gone", {gone, ""});
    const std::uint64_t tag = it->first;
    for (Rank r = 0; r < size_; ++r) {
      if (const auto found = ops_.find(tag); found != ops_.end()) {
        end(found, r, cause);
      }
    }
    return;
  }
}

std::size_t AbstractGroup::in_flight(Rank rank) const {
  return static_cast<std::size_t>(std::ranges::count_if(
      ops_, [&](const auto& op) { return op.second.parts[static_cast<std::size_t>(rank)] != nullptr; }));
}

// Writes every output from all inputs. Outputs may alias inputs, so inputs are copied first.
void AbstractGroup::move_data(const Op& op) const {
  const net::CollectiveArgs& any = op.parts.front()->args;
  const auto kind = any.kind;
  const std::size_t element = dtype_size(any.dtype);
  std::vector<std::vector<std::byte>> inputs;
  std::vector<const std::byte*> sources;
  for (const auto& part : op.parts) {
    const bool root = kind == OpKind::kBroadcast;
    const ConstBytes in = root ? ConstBytes(part->args.out) : part->args.in;
    inputs.emplace_back(in.begin(), in.end());
    sources.push_back(inputs.back().data());
  }
  std::vector<std::byte> sum;
  if (kind == OpKind::kAllreduce || kind == OpKind::kReduceScatter) {
    sum.resize(any.in.size());
    const auto count = static_cast<std::int64_t>(sum.size() / element);
    if (any.op == ReduceOp::kAverage) {
      kernels::average(any.dtype, sources, sum.data(), count, size_);
    } else {
      kernels::reduce(any.op, any.dtype, sources, sum.data(), count);
    }
  }
  // Elements of an alltoall or scatter that earlier ranks got, by source.
  std::vector<std::size_t> taken(inputs.size());
  std::size_t scattered = 0;
  for (Rank r = 0; r < size_; ++r) {
    Part& part = *op.parts[static_cast<std::size_t>(r)];
    std::byte* out = part.args.out.data();
    if (kind == OpKind::kAllreduce) {
      std::ranges::copy(sum, out);
    } else if (kind == OpKind::kBroadcast) {
      std::ranges::copy(inputs[static_cast<std::size_t>(any.root)], out);
    } else if (kind == OpKind::kAllgather) {
      for (const auto& in : inputs) {
        out = std::ranges::copy(in, out).out;
      }
    } else if (kind == OpKind::kReduceScatter) {
      std::copy_n(sum.begin() + static_cast<std::ptrdiff_t>(scattered), part.args.out.size(), out);
      scattered += part.args.out.size();
    } else if (kind == OpKind::kAlltoall) {
      for (std::size_t s = 0; s < inputs.size(); ++s) {
        const std::size_t size =
            static_cast<std::size_t>(op.parts[s]->args.send_counts[static_cast<std::size_t>(r)]) * element;
        out = std::copy_n(inputs[s].begin() + static_cast<std::ptrdiff_t>(taken[s]), size, out);
        taken[s] += size;
      }
    }
  }
}

}  // namespace sirtaki::world
