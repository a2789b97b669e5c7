// Engine: the opening of streams, with the measurement of the link where a policy follows it.

#include <utility>

#include "runtime/engine/engine.h"
#include "runtime/engine/stream/plan/codec_timing.h"
#include "runtime/engine/stream/plan/stream_plan.h"

namespace sirtaki::engine {
namespace {

control::StreamOpen opening_message(const StreamSpec& spec, const scheduler::Plan& plan) {
  control::StreamOpen message;
  message.name = spec.name;
  message.plan_digest = plan.digest();
  message.reduce_op = spec.reduce_op;
  message.prescale = spec.prescale;
  message.postscale = spec.postscale;
  // Part of the agreement, so that ranks with different payload sizes get an error.
  message.codec = spec.codec + (spec.first_step == 0 ? "" : " from step " + std::to_string(spec.first_step));
  for (const StreamTensor& tensor : spec.tensors) {
    message.tensors.push_back({tensor.name, tensor.dtype, tensor.device.type, tensor.dims, tensor.strides});
  }
  return message;
}

// Returns why the policy auto knows no link, in one sentence for the log; empty: the link is measured.
std::string without_link(const net::Collectives& net, bool replan) {
  if (exchanging_ranks(net) == 1) {
    return std::string("auto sends dense gradients, because ") +
           (net.size() == 1 ? "one rank alone has no link; start more ranks"
                            : "the ranks of one host have no link; start ranks on other hosts") +
           " to compress them";
  }
  return replan ? ""
                : "auto sends dense gradients, because schedule.replan is off and nothing is measured; turn it on, "
                  "or name a codec, such as int8";
}

// Writes a line on the first rank, at each opening of a stream, that all its ranks would write alike.
void say_once(const EngineDeps& deps, const net::Collectives& net, LogLevel level, const StreamSpec& spec,
              const std::string& text) {
  if (net.rank() == 0 && deps.log != nullptr && deps.log->enabled(level)) {
    deps.log->write(level, "stream '" + spec.name + "': " + text);
  }
}

}  // namespace

StreamOptions Engine::stream_options() const {
  return {options_.layout,
          options_.credit_bytes,
          options_.replan,
          options_.finite_only,
          options_.commit_gate,
          options_.nccl_partition_bytes,
          options_.nccl_credit_bytes,
          options_.exchange_bytes};
}

Result<StreamStart> Engine::make_start(StreamSpec& spec) {
  if (spec.codec.empty()) {
    spec.codec = options_.codec;
  }
  fill_order(spec);
  SRT_TRY(read_compression(spec));
  SRT_ASSIGN(net::Collectives* const net, ops_.collectives_of(spec.ranks, spec.name));
  const auto facts = std::make_shared<CatalogFacts>(*net);
  StreamStart start;
  SRT_ASSIGN(start.plan, first_plan(spec, options_.layout, *facts));
  start.unmeasured = start.plan;
  start.controller = controller_for(spec, planner_options(stream_options(), *facts), facts);
  return start;
}

void Engine::open_stream(StreamSpec spec, MoveFunction<void(Result<StreamId>)> done) {
  spec.name = agreed_name(spec.name, spec.ranks);
  // After a failure the network is not used any more.
  auto start = failure_.ok() ? make_start(spec) : Result<StreamStart>(failure_);
  Status status = start.status();
  if (status.ok() && openings_.contains(spec.name)) {
    status = invalid_argument("stream '" + spec.name + "' is being opened already");
  }
  if (!status.ok()) {
    deps_.loop.post([done = std::move(done), status]() mutable { done(status); });
    return;
  }
  deps_.control.send(opening_message(spec, *start->plan));
  std::string name = spec.name;
  net::Collectives* const net = *ops_.collectives_of(spec.ranks, name);
  openings_.emplace(std::move(name), Opening{std::move(spec), std::move(*start), net, std::move(done)});
}

void Engine::on(const control::StreamAgreed& m) {
  const auto found = openings_.find(m.name);
  if (found == openings_.end()) {
    return;
  }
  Opening& opening = found->second;
  opening.id = m.stream;
  closed_.erase(m.stream.value);  // the number of a stream that all ranks have closed
  closed_at_.erase(m.stream.value);
  const scheduler::CodecController* const controller = opening.start.controller.get();
  const bool measures = controller != nullptr && controller->begins_by_link();
  const std::string unmeasured = measures ? without_link(*opening.net, options_.replan) : "";
  if (!unmeasured.empty()) {
    const LogLevel level = exchanging_ranks(*opening.net) == 1 ? LogLevel::kInfo : LogLevel::kWarn;
    say_once(deps_, *opening.net, level, opening.spec, unmeasured);
  } else if (const std::string limit = controller == nullptr ? "" : controller->limit(); !limit.empty()) {
    say_once(deps_, *opening.net, LogLevel::kInfo, opening.spec, limit);
  }
  if (!measures || !unmeasured.empty()) {
    begin_stream(std::move(openings_.extract(found).mapped()));
    return;
  }
  opening.start.codec_costs = time_codecs(deps_.loop, *opening.net);
  opening.probe = std::make_unique<LinkProbe>(m.stream, deps_.loop, *opening.net, opening.start.codec_costs);
  opening.probe->run(
      [this, name = m.name](const Result<scheduler::StepProfile>& profile) { on_probed(name, profile); });
}

void Engine::on_probed(const std::string& name, const Result<scheduler::StepProfile>& profile) {
  Opening opening = std::move(openings_.extract(name).mapped());
  if (!profile) {
    opening.done(profile.status());
    return;
  }
  const auto plan = plan_by_link(*opening.start.controller, *profile, opening.spec, opening.start.unmeasured,
                                 planner_options(stream_options(), CatalogFacts(*opening.net)));
  if (!plan) {
    opening.done(plan.status());
    return;
  }
  opening.start.plan = *plan;
  if (*plan != opening.start.unmeasured) {
    say_once(deps_, *opening.net, LogLevel::kInfo, opening.spec, opening.start.controller->last_decision());
  }
  begin_stream(std::move(opening));
}

void Engine::begin_stream(Opening opening) {
  StreamOptions options = stream_options();
  options.commit_gate = options.commit_gate && opening.spec.commit_gate;
  StreamDeps deps{deps_.loop,
                  *opening.net,
                  deps_.control,
                  trace_,
                  buffers_,
                  deps_.stats,
                  deps_.log,
                  deps_.stats.counter("streams.steps"),
                  deps_.stats.counter("streams.raw_bytes"),
                  deps_.stats.counter("streams.lent_bytes"),
                  deps_.stats.counter("streams.wire_bytes"),
                  deps_.stats.histogram("streams.step_ns"),
                  deps_.stats.histogram("streams.exposed_ns"),
                  options.commit_gate ? &deps_.stats.histogram("streams.gate_ns") : nullptr};
  streams_[opening.id.value] =
      std::make_unique<GradientStream>(opening.id, std::move(opening.spec), std::move(opening.start), options, deps);
  for (const auto& message : opening.held) {
    std::visit([this](const auto& m) { on(m); }, message);
  }
  opening.done(opening.id);
}

void Engine::on(const control::StreamRefused& m) {
  auto node = openings_.extract(m.name);
  if (!node.empty()) {
    node.mapped().done(m.status);
  }
}

Engine::Opening* Engine::opening(StreamId id) {
  for (auto& [name, opening] : openings_) {
    if (opening.probe != nullptr && opening.id == id) {
      return &opening;
    }
  }
  return nullptr;
}

void Engine::on(const control::StreamAborted& m) {
  if (GradientStream* s = stream(m.stream)) {
    s->on_aborted(m);
  } else if (const auto closed = closed_.find(m.stream.value); closed != closed_.end()) {
    closed->second->on_aborted(m);
  } else if (Opening* const waiting = opening(m.stream)) {
    waiting->held.emplace_back(m);
  }
}

void Engine::on(const control::StreamFlags& m) {
  if (GradientStream* s = stream(m.stream)) {
    s->on_flags(m);
  } else if (const auto closed = closed_.find(m.stream.value); closed != closed_.end()) {
    closed->second->on_flags(m);
  } else if (Opening* const waiting = opening(m.stream)) {
    waiting->held.emplace_back(m);
  }
}

}  // namespace sirtaki::engine
