#include "adapters/tensorflow/named_op.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "adapters/tensorflow/completions.h"

namespace sirtaki_tensorflow {
namespace {

std::vector<std::string> lines(const std::string& text) {
  std::vector<std::string> found;
  std::size_t begin = 0;
  while (begin < text.size()) {
    const std::size_t end = std::min(text.find('\n', begin), text.size());
    found.push_back(text.substr(begin, end - begin));
    begin = end + 1;
  }
  return found;
}

bool allocates(sirtaki_op kind) {
  return kind == SIRTAKI_ALLGATHER || kind == SIRTAKI_ALLTOALL || kind == SIRTAKI_REDUCESCATTER;
}

}  // namespace

// One call from its submission to its end.
struct NamedOp::Running {
  sirtaki_op kind = SIRTAKI_BARRIER;
  int size = 1;  // number of ranks that take part
  std::unique_ptr<Call> call;
  std::vector<Tensor> sources;
  std::vector<Tensor> targets;
  std::vector<std::int64_t> splits;
  std::vector<sirtaki_request_args> args;
  std::vector<sirtaki_request> requests;
  std::atomic<std::size_t> left{0};

  static void one_less(void* context) {
    auto* const running = static_cast<Running*>(context);
    if (running->left.fetch_sub(1) == 1) {
      Completions::instance().post([running] { finish(std::unique_ptr<Running>(running)); });
    }
  }
};

NamedOp::NamedOp(sirtaki_op kind, Attributes& attributes) : kind_(kind) {
  names_ = lines(attributes.text("tensor_names"));
  ranks_ = attributes.integers("ranks");
  priority_ = static_cast<std::int32_t>(attributes.integer("priority"));
  if (kind == SIRTAKI_ALLREDUCE || kind == SIRTAKI_REDUCESCATTER) {
    reduce_op_ = static_cast<std::int32_t>(attributes.integer("reduce_op"));
    prescale_ = attributes.number("prescale");
    postscale_ = attributes.number("postscale");
  }
  if (kind == SIRTAKI_BROADCAST) {
    root_ = static_cast<std::int32_t>(attributes.integer("root"));
  }
}

void NamedOp::start(std::unique_ptr<Call> call) const {
  auto running = std::make_unique<Running>();
  running->kind = kind_;
  running->size = ranks_.empty() ? sirtaki_size() : static_cast<int>(ranks_.size());
  running->call = std::move(call);
  const Failure failure = submit(*running);
  if (!failure.ok()) {
    std::unique_ptr<Call> failed = std::move(running->call);
    running.reset();
    Call::end(std::move(failed), failure);
    return;
  }
  // From the last submission on, the completing thread owns it.
  Running* const owned = running.release();
  const std::vector<sirtaki_request> requests = owned->requests;
  if (requests.empty()) {
    owned->left = 1;
    Running::one_less(owned);
  }
  for (const sirtaki_request request : requests) {
    if (sirtaki_on_done(request, Running::one_less, owned) != SIRTAKI_OK) {
      Running::one_less(owned);  // the session has ended meanwhile
    }
  }
}

Failure NamedOp::submit(Running& running) const {
  // The second input of an alltoall is not sent as a tensor; a barrier has no tensor.
  const int tensors = kind_ == SIRTAKI_ALLTOALL ? 1 : running.call->inputs();
  const int count = kind_ == SIRTAKI_BARRIER ? 1 : tensors;
  if (!names_.empty() && static_cast<int>(names_.size()) != count) {
    return invalid(std::to_string(count) + " tensors have " + std::to_string(names_.size()) + " names");
  }
  for (int i = 0; i < count; ++i) {
    if (Failure failure = add(running, i); !failure.ok()) {
      return failure;
    }
  }
  running.requests.resize(running.args.size());
  running.left = running.args.size();
  return of_call(
      sirtaki_submit_group(running.args.data(), static_cast<int>(running.args.size()), running.requests.data()));
}

Failure NamedOp::add(Running& running, int index) const {
  sirtaki_request_args args{};
  args.struct_size = sizeof(args);
  args.input.struct_size = sizeof(args.input);
  args.op = kind_;
  args.name = names_.empty() ? nullptr : names_[static_cast<std::size_t>(index)].c_str();
  args.reduce_op = reduce_op_;
  args.root = root_;
  args.prescale = prescale_;
  args.postscale = postscale_;
  args.priority = priority_;
  args.ranks = ranks_.empty() ? nullptr : ranks_.data();
  args.ranks_count = static_cast<std::int32_t>(ranks_.size());
  Failure failure;
  if (kind_ == SIRTAKI_ALLREDUCE || kind_ == SIRTAKI_BROADCAST) {
    Tensor target;
    failure = running.call->in_place(index, true, target);
    if (failure.ok()) {
      failure = target.describe(args.input);
      args.output = args.input;
      running.targets.push_back(std::move(target));
    }
  } else if (kind_ != SIRTAKI_BARRIER) {
    Tensor source;
    failure = running.call->input(index, source);
    if (failure.ok()) {
      failure = source.describe(args.input);
      running.sources.push_back(std::move(source));
    }
    if (failure.ok() && args.input.ndim == 0) {
      failure = invalid("allgather, alltoall and reducescatter need at least one dimension; reshape to [1]");
    }
  }
  if (failure.ok() && kind_ == SIRTAKI_ALLTOALL) {
    failure = add_splits(running);
    args.splits = running.splits.empty() ? nullptr : running.splits.data();
    args.splits_count = static_cast<std::int32_t>(running.splits.size());
  }
  running.args.push_back(args);
  return failure;
}

Failure NamedOp::add_splits(Running& running) const {
  Tensor splits;
  Failure failure = running.call->input(1, splits);
  if (!failure.ok()) {
    return failure;
  }
  if (splits.type() != kTfInt64 || splits.dims().size() != 1) {
    return invalid("splits must have one dimension");
  }
  const auto* const values = static_cast<const std::int64_t*>(splits.data());
  running.splits.assign(values, values + splits.dims()[0]);
  return {};
}

void NamedOp::finish(std::unique_ptr<Running> running) {
  Failure failure;
  for (std::size_t i = 0; i < running->requests.size(); ++i) {
    // The operation or the session is over, so this wait never blocks.
    Failure own = of_call(sirtaki_wait(running->requests[i], 0));
    if (own.ok() && failure.ok() && allocates(running->kind)) {
      own = take_result(*running, i);
    }
    if (failure.ok()) {
      failure = own;
    }
    sirtaki_release(running->requests[i]);
  }
  std::unique_ptr<Call> call = std::move(running->call);
  running.reset();
  Call::end(std::move(call), failure);
}

Failure NamedOp::take_result(const Running& running, std::size_t index) {
  sirtaki_tensor result{};
  result.struct_size = sizeof(result);
  const std::int64_t* received = nullptr;
  if (Failure failure = of_call(sirtaki_result(running.requests[index], &result, &received)); !failure.ok()) {
    return failure;
  }
  const Tensor& source = running.sources[index];
  const std::vector<std::int64_t> dims(result.dims, result.dims + result.ndim);
  std::size_t bytes = 1;
  for (const std::int64_t dim : dims) {
    bytes *= static_cast<std::size_t>(dim);
  }
  bytes *= source.item_bytes();
  Tensor output;
  Failure failure = running.call->allocate(static_cast<int>(index), source.type(), dims, bytes, output);
  if (failure.ok() && bytes > 0) {
    std::memcpy(output.data(), result.data, bytes);
  }
  if (!failure.ok() || running.kind != SIRTAKI_ALLTOALL) {
    return failure;
  }
  Tensor rows;
  const auto size = static_cast<std::size_t>(running.size);
  failure = running.call->allocate(1, kTfInt32, {running.size}, size * sizeof(std::int32_t), rows);
  if (failure.ok() && received != nullptr) {
    auto* const out = static_cast<std::int32_t*>(rows.data());
    for (std::size_t i = 0; i < size; ++i) {
      out[i] = static_cast<std::int32_t>(received[i]);
    }
  }
  return failure;
}

}  // namespace sirtaki_tensorflow
