#include "adapters/tensorflow/gradient_step.h"

#include <algorithm>
#include <string>
#include <utility>

#include "adapters/tensorflow/completions.h"

namespace sirtaki_tensorflow {

namespace {

constexpr const char* kLoops = "in a tf.while_loop use parallel_iterations=1";

bool holds_any(const Step& step) {
  return std::any_of(step.held.begin(), step.held.end(), [](const Tensor& tensor) { return bool(tensor); });
}

bool holds_all(const Step& step) {
  return std::all_of(step.held.begin(), step.held.end(), [](const Tensor& tensor) { return bool(tensor); });
}

Failure number_of(const Call& call, int input, std::int64_t& number) {
  Tensor tensor;
  Failure failure = call.input(input, tensor);
  if (failure.ok()) {
    number = *static_cast<const std::int64_t*>(tensor.data());
  }
  return failure;
}

}  // namespace

// ---- StepTable ----

StepTable& StepTable::instance() {
  static StepTable table;  // lint: allow(global) TensorFlow's kernels have no owner of ours
  return table;
}

std::shared_ptr<Step> StepTable::of(sirtaki_stream stream, int count) {
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Step>& step = steps_[stream];
  if (!step) {
    step = std::make_shared<Step>();
    step->held.resize(static_cast<std::size_t>(std::max(count, 0)));
  }
  return step;
}

std::int64_t StepTable::next_number() {
  const std::lock_guard lock(mutex_);
  return ++last_number_;
}

void StepTable::renew(sirtaki_stream traced, sirtaki_stream stream) {
  const std::lock_guard lock(mutex_);
  renewed_[traced] = stream;
}

sirtaki_stream StepTable::current(sirtaki_stream traced) {
  const std::lock_guard lock(mutex_);
  const auto found = renewed_.find(traced);
  return found == renewed_.end() ? traced : found->second;
}

void StepTable::clear() {
  const std::lock_guard lock(mutex_);
  steps_.clear();
  renewed_.clear();
}

// ---- NumberOp ----

void NumberOp::start(std::unique_ptr<Call> call) const {
  Tensor number;
  const Failure failure = call->allocate(0, kTfInt64, {}, sizeof(std::int64_t), number);
  if (failure.ok()) {
    *static_cast<std::int64_t*>(number.data()) = StepTable::instance().next_number();
  }
  number.reset();
  Call::end(std::move(call), failure);
}

// ---- ReadyOp ----

ReadyOp::ReadyOp(Attributes& attributes)
    : traced_(static_cast<sirtaki_stream>(attributes.integer("stream"))),
      index_(static_cast<int>(attributes.integer("index"))),
      count_(static_cast<int>(attributes.integer("count"))) {}

void ReadyOp::start(std::unique_ptr<Call> call) const {
  const Failure failure = ready(*call);
  Call::end(std::move(call), failure);
}

Failure ReadyOp::ready(const Call& call) const {
  const sirtaki_stream stream = StepTable::instance().current(traced_);
  const std::shared_ptr<Step> step = StepTable::instance().of(stream, count_);
  Tensor gradient;
  sirtaki_tensor described{};
  std::int64_t number = 0;
  Failure failure = number_of(call, 1, number);
  if (failure.ok()) {
    failure = call.in_place(0, true, gradient);
  }
  if (failure.ok()) {
    failure = gradient.describe(described);
  }
  if (!failure.ok()) {
    return failure;
  }
  const std::lock_guard lock(step->mutex);
  failure = join(stream, *step, number);
  if (!failure.ok()) {
    return failure;
  }
  failure = of_call(sirtaki_stream_ready(stream, index_, &described, 0));
  if (failure.ok()) {
    step->held[static_cast<std::size_t>(index_)] = std::move(gradient);
  }
  return failure;
}

Failure ReadyOp::join(sirtaki_stream stream, Step& step, std::int64_t number) const {
  if (index_ < 0 || index_ >= static_cast<int>(step.held.size())) {
    return invalid("the stream has no gradient number " + std::to_string(index_));
  }
  if (step.finishing) {
    return invalid("a step of gradients begins before the one before it has ended; " + std::string(kLoops));
  }
  if (step.number != number && holds_any(step)) {
    // The abort returns when the runtime no longer uses the memory.
    Failure failure =
        of_call(sirtaki_stream_abort(stream,
                                     "its program left a step before all gradients were computed, by an error of its "
                                     "own or by running several rounds of a tf.while_loop at a time"));
    if (!failure.ok()) {
      return failure;
    }
    for (Tensor& tensor : step.held) {
      tensor.reset();
    }
  }
  step.number = number;
  return step.held[static_cast<std::size_t>(index_)] ? invalid("a gradient is given twice in one step") : Failure{};
}

// ---- FinishOp ----

// One step from its last gradient to its end.
struct FinishOp::Running {
  sirtaki_stream stream = 0;
  std::shared_ptr<Step> step;
  std::unique_ptr<Call> call;

  void over() {
    Failure failure = of_call(sirtaki_stream_wait(stream, 0));
    std::vector<Tensor> results;
    {
      const std::lock_guard lock(step->mutex);
      results = std::exchange(step->held, std::vector<Tensor>(step->held.size()));
      step->finishing = false;
    }
    for (std::size_t i = 0; i < results.size() && failure.ok(); ++i) {
      failure = call->set_output(static_cast<int>(i), results[i]);
    }
    results.clear();
    Call::end(std::move(call), failure);
  }

  static void on_done(void* context) {
    auto* const running = static_cast<Running*>(context);
    Completions::instance().post([running] { std::unique_ptr<Running>(running)->over(); });
  }
};

FinishOp::FinishOp(Attributes& attributes) : traced_(static_cast<sirtaki_stream>(attributes.integer("stream"))) {}

void FinishOp::start(std::unique_ptr<Call> call) const {
  auto running = std::make_unique<Running>();
  const int count = call->inputs() - 1;
  const sirtaki_stream stream = running->stream = StepTable::instance().current(traced_);
  running->step = StepTable::instance().of(stream, count);
  running->call = std::move(call);
  std::int64_t number = 0;
  Failure failure = number_of(*running->call, count, number);
  if (failure.ok()) {
    failure = finish(stream, *running->step, number);
  }
  if (!failure.ok()) {
    Call::end(std::move(running->call), failure);
    return;
  }
  Running* const owned = running.release();
  if (sirtaki_stream_on_done(stream, Running::on_done, owned) != SIRTAKI_OK) {
    Running::on_done(owned);  // the session has ended meanwhile; the wait then reports it
  }
}

Failure FinishOp::finish(sirtaki_stream stream, Step& step, std::int64_t number) {
  const std::lock_guard lock(step.mutex);
  if (step.finishing || step.number != number || !holds_all(step)) {
    return invalid("a step of gradients ends without all of them; " + std::string(kLoops));
  }
  Failure failure = of_call(sirtaki_stream_finish(stream));
  step.finishing = failure.ok();
  return failure;
}

}  // namespace sirtaki_tensorflow
