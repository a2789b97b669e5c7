#include "runtime/engine/engine.h"

#include <algorithm>
#include <utility>

#include "runtime/engine/stream/plan/stream_plan.h"

namespace sirtaki::engine {
namespace {

constexpr Duration kReportInterval = std::chrono::milliseconds(250);
constexpr int kStillTicks = 2;    // a wait is reported after as many ticks without progress
constexpr int kUnseenTicks = 20;  // the same for functions that wait to be called
constexpr int kOldTicks = 40;     // a wait this long is reported although other work moves
constexpr std::size_t kMaxReported = 256;

bool takes_part(const StreamSpec& spec, Rank rank) {
  return spec.ranks.empty() || std::ranges::binary_search(spec.ranks, rank);
}

// Half the credit, because two pieces are in flight while a partition of a stream may be as large as its credit.
NamedOptions named_options(const EngineOptions& options) {
  NamedOptions named;
  named.part_bytes = std::min({named.part_bytes, options.layout.partition_bytes, options.credit_bytes / 2});
  return named;
}

}  // namespace

Engine::Engine(EngineOptions options, EngineDeps deps, std::function<Callers()> callers)
    : options_(std::move(options)),
      deps_(deps),
      callers_(std::move(callers)),
      trace_(deps.loop, deps.timeline),
      buffers_(static_cast<std::size_t>(options_.credit_bytes), deps.stats.gauge("engine.staging_bytes")),
      ops_(deps.loop, deps.net, deps.control, deps.stats, trace_, named_options(options_)) {}

Engine::~Engine() {
  deps_.loop.cancel(tick_);
  deps_.loop.cancel(trace_tick_);
}

// ---- operations by name ----

void Engine::submit(OpSpec spec, OpDone done) {
  if (!failure_.ok()) {
    deps_.loop.post([done = std::move(done), cause = failure_]() mutable { done(cause, {}); });
    return;
  }
  ops_.submit(std::move(spec), std::move(done));
}

// ---- streams ----

GradientStream* Engine::stream(StreamId id) {
  const auto it = streams_.find(id.value);
  return it == streams_.end() ? nullptr : it->second.get();
}

control::StreamReports Engine::reports() const {
  control::StreamReports all;
  for (const auto& [id, s] : streams_) {
    if (s->has_commit_gate()) {
      all.push_back(s->report());
    }
  }
  for (const auto& [id, report] : closed_at_) {
    all.push_back(report);
  }
  return all;
}

std::string Engine::tensors_json() const {
  JsonWriter json;
  json.begin_object();
  for (const auto& [id, s] : streams_) {
    json.key(s->spec().name);
    write_tensors(json, s->spec(), s->plan(), {});
  }
  json.end_object();
  return std::move(json).take();
}

std::string Engine::decisions_json() const {
  JsonWriter json;
  json.begin_object();
  for (const auto& [id, s] : streams_) {
    json.key(s->spec().name);
    s->decisions().write(json);
  }
  json.end_object();
  return std::move(json).take();
}

void Engine::close_stream(StreamId id, Done done) {
  GradientStream* s = stream(id);
  if (s == nullptr) {
    deps_.loop.post([done = std::move(done)]() mutable { done(invalid_argument("the stream is not open")); });
    return;
  }
  s->fail({Code::kAborted, "stream '" + s->spec().name + "' was closed"});
  s->release([this, id, done = std::move(done)]() mutable {
    deps_.control.send(control::StreamClose{id});
    deps_.loop.post([this, id, done = std::move(done)]() mutable {
      forget_stream(id);
      done({});
    });
  });
}

void Engine::forget_stream(StreamId id) {
  std::erase_if(closed_, [](const auto& closed) { return closed.second->over(); });
  if (const auto node = streams_.extract(id.value); !node.empty()) {
    closed_[id.value] = node.mapped()->take_unused_param_sync();
    if (node.mapped()->has_commit_gate()) {
      closed_at_.insert_or_assign(id.value, node.mapped()->report());
    }
  }
}

// ---- control ----

void Engine::on_message(ConstBytes bytes) {
  const auto message = control::decode_coordinator_message(bytes);
  if (!message) {
    abort(message.status());
    return;
  }
  std::visit([this](const auto& m) { on(m); }, *message);
}

void Engine::on_left(Rank rank) {
  const Status cause(
      Code::kPeerLost,
      "rank " + std::to_string(rank) +
          " has shut down, so what needs it can never complete. Likely cause: it ended its work, or failed, "
          "while this rank still had steps to do",
      {rank, ""});
  left_.update(cause);
  ops_.note_left(cause);
  ops_.on_all_joined();  // not all ranks can join any more, so known uses begin unasked again
  for (const auto& [id, s] : streams_) {
    if (takes_part(s->spec(), rank)) {
      s->note_left(cause);
    }
  }
  std::vector<MoveFunction<void(Result<StreamId>)>> refused;
  for (auto opening = openings_.begin(); opening != openings_.end();) {
    if (takes_part(opening->second.spec, rank)) {
      refused.push_back(std::move(opening->second.done));
      opening = openings_.erase(opening);
    } else {
      ++opening;
    }
  }
  for (auto& done : refused) {
    done(cause);
  }
  fail_join(cause);
}

void Engine::abort(const Status& cause) {
  failure_.update(cause);
  deps_.net.abort(cause);
  ops_.abort(cause);
  for (auto& [name, opening] : std::exchange(openings_, {})) {
    opening.done(cause);
  }
  for (const auto& [id, s] : streams_) {
    s->fail(cause);
  }
  end_join(cause);
}

void Engine::end(const Status& cause) {
  deps_.control.send(ops_.leaving());
  if (idle()) {
    failure_.update(cause);
    for (const auto& [id, s] : streams_) {
      s->fail(cause);
    }
  } else {
    abort(cause);
  }
}

// ---- waiting ----

void Engine::note_waiting() {
  if (tick_ == TimerId()) {
    on_tick();
  }
}

std::uint64_t Engine::progress() const {
  std::uint64_t all = ops_.progress();
  for (const auto& [id, s] : streams_) {
    all += s->progress();
  }
  return all;
}

// A step over a slow network is a long wait, too; no rank reports it to the coordinator while it makes progress.
void Engine::on_tick() {
  const std::uint64_t now = progress();
  ticks_still_ = now == progress_seen_ ? ticks_still_ + 1 : 0;
  progress_seen_ = now;
  const bool waiting = callers_().waiting;
  if (!waiting || ticks_still_ >= kStillTicks || last_report_.blocked || holds_something_old()) {
    report(false);
  }
  tick_ = waiting ? deps_.loop.after(kReportInterval, [this] { on_tick(); }) : TimerId();
}

bool Engine::holds_something_old() {
  if (++ticks_moving_ < kOldTicks) {
    return false;
  }
  ticks_moving_ = 0;
  const std::vector<control::WaitEntry> before = std::exchange(held_earlier_, waiting_now().entries);
  return std::ranges::any_of(held_earlier_,
                             [&](const auto& entry) { return std::ranges::find(before, entry) != before.end(); });
}

control::Waiting Engine::waiting_now() const {
  control::Waiting now;
  const Callers callers = callers_();
  now.blocked = callers.blocked && ticks_still_ >= (callers.unseen ? kUnseenTicks : kStillTicks);
  now.gives_way = now.blocked && callers.gives_way;
  now.progress = progress();
  for (const auto& [id, s] : streams_) {
    if (auto entry = s->in_flight()) {
      now.entries.push_back(std::move(*entry));
    }
  }
  for (const auto& [name, opening] : openings_) {
    now.entries.push_back({control::WaitKind::kStreamOpen, name, 0, 0, {}});
  }
  ops_.describe_in_flight(now.entries);
  if (now.entries.size() > kMaxReported) {
    now.entries.resize(kMaxReported);
  }
  return now;
}

void Engine::report(bool even_if_unchanged) {
  control::Waiting now = waiting_now();
  if (!callers_().waiting && !even_if_unchanged) {
    now.entries.clear();
  }
  const auto says_nothing = [](const control::Waiting& w) { return !w.blocked && w.entries.empty(); };
  if (!even_if_unchanged && (now == last_report_ || (says_nothing(now) && says_nothing(last_report_)))) {
    return;
  }
  last_report_ = now;
  deps_.control.send(std::move(now));
}

void Engine::on(const control::GiveWay& /*m*/) {
  if (deps_.give_way) {
    deps_.give_way();
  }
}

void Engine::on(const control::Query& /*m*/) {
  report(true);
}

bool Engine::idle() const {
  return ops_.idle() && openings_.empty() && !join_ &&
         std::all_of(streams_.begin(), streams_.end(), [](const auto& s) { return s.second->idle(); }) &&
         std::all_of(closed_.begin(), closed_.end(), [](const auto& closed) { return closed.second->idle(); });
}

std::string Engine::describe() const {
  std::vector<control::WaitEntry> entries;
  ops_.describe_in_flight(entries);
  std::string text = failure_.ok() ? "" : "failed (" + failure_.to_string() + "); ";
  for (const control::WaitEntry& entry : entries) {
    text += "'" + entry.name + "' use " + std::to_string(entry.use) + " (" + entry.what + "); ";
  }
  for (const auto& [id, s] : streams_) {
    text += s->describe() + "; ";
  }
  for (const auto& [name, opening] : openings_) {
    text += "opening '" + name + "'; ";
  }
  return text.empty() ? "nothing in flight" : text;
}

// ---- trace ----

void Engine::request_trace(bool start, std::string path) {
  deps_.control.send(control::TraceRequest{start, std::move(path)});
}

void Engine::on(const control::TraceSwitch& m) {
  if (m.on == deps_.timeline.enabled()) {
    return;
  }
  deps_.timeline.set_enabled(m.on);
  if (m.on) {
    on_trace_tick();
  } else {
    deps_.loop.cancel(trace_tick_);
    flush_trace(true);
  }
}

void Engine::on_trace_tick() {
  flush_trace(false);
  trace_tick_ = deps_.loop.after(options_.trace_interval, [this] { on_trace_tick(); });
}

void Engine::flush_trace(bool last) {
  while (true) {
    std::vector<std::byte> chunk = deps_.timeline.drain();
    if (chunk.empty()) {
      break;
    }
    deps_.control.send(control::TraceChunk{std::move(chunk), false});
  }
  if (last) {
    deps_.control.send(control::TraceChunk{{}, true});
  }
}

}  // namespace sirtaki::engine
