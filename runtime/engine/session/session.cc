#include "runtime/engine/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "kernels/target.h"
#include "runtime/base/host_info.h"
#include "runtime/base/json.h"
#include "runtime/base/telemetry/log.h"
#include "runtime/base/telemetry/stats.h"
#include "runtime/base/telemetry/timeline.h"
#include "runtime/base/version.h"
#include "runtime/engine/device/device_transport.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/epoch/control_plane.h"
#include "runtime/engine/epoch/data_plane.h"
#include "runtime/engine/ops/op_check.h"
#include "runtime/engine/session/device_choice.h"
#include "runtime/engine/session/host_staged_ops.h"
#include "runtime/engine/session/request_table.h"
#include "runtime/engine/session/stream_table.h"
#include "runtime/net/device/launch_server.h"
#include "scheduler/plan/profile.h"

namespace sirtaki::engine {
namespace {

// Lies before kCauseGrace, after which failed operations are reported, so that they name the lost connection.
constexpr Duration kLossGrace = kCauseGrace * 3 / 4;
constexpr Duration kFailurePoll = std::chrono::milliseconds(100);

}  // namespace

Session::Session(std::shared_ptr<const Config> config, JobSpec job, std::function<bool()> interrupted)
    : config_(std::move(config)),
      job_(std::move(job)),
      interrupted_(std::move(interrupted)),
      waiter_(interrupted_, [this] { loop_.post([this] { note_waiting(); }); }),
      device_(job_.rank, [this](int index) { return open_device(index); }),
      loop_("srt-loop", [this](const Status& bug) { fail(bug); }) {}

Session::~Session() {
  close();
}

// ---- life ----

Result<std::unique_ptr<Session>> Session::open(std::shared_ptr<const Config> config, JobSpec job,
                                               MoveFunction<bool()> interrupted) {
  std::function<bool()> poll;
  if (interrupted) {
    poll = [shared = std::make_shared<MoveFunction<bool()>>(std::move(interrupted))] { return (*shared)(); };
  }
  std::unique_ptr<Session> session(new Session(std::move(config), std::move(job), std::move(poll)));
  if (Status status = session->start(); !status.ok()) {
    if (session->job_.line) {
      session->drop();  // the connection serves the next attempt
    }
    return status;
  }
  return session;
}

Status Session::start() {
  SRT_ASSIGN(log_, Logger::create(*config_, job_.rank));
  if (job_.line) {
    control_ = ControlPlane::over(loop_, *config_, job_.line, interrupted_);
  } else if (job_.size == 1) {
    control_ = ControlPlane::single(loop_);
    SRT_ASSIGN(data_, DataPlane::single(loop_, *config_));
  } else {
    SRT_ASSIGN(control_, ControlPlane::connect(loop_, *config_, job_.rendezvous, job_.secret, interrupted_));
  }
  if (!data_) {
    const auto most = job_.line ? std::max(job_.size, static_cast<int>(config_->elastic.max)) : job_.size;
    SRT_ASSIGN(data_, DataPlane::listen(loop_, job_.secret, *config_, most,
                                        job_.one_host ? "127.0.0.1" : control_->local_address()));
  }
  SRT_TRY(meet());
  start_engine();
  // The trace file of an elastic job holds its first epoch.
  const bool first = !job_.line || membership_.epoch == Epoch(1);
  if (first && job_.rank == 0 && !config_->timeline.path.empty()) {
    return timeline_start(config_->timeline.path);
  }
  return {};
}

Status Session::meet() {
  const HostInfo host = host_info(config_->job.host_id);
  rendezvous::JoinRequest request;
  request.rank = job_.rank;
  request.size = job_.size;
  request.hostname = host.hostname;
  request.host_id = host.host_id;
  request.pid = ::getpid();
  request.version = std::string(version());
  request.agreed_options = agreed_options(*config_);
  request.fanout = job_.line ? 0 : static_cast<int>(config_->control.fanout);  // a tree needs ranks that do not change
  SRT_ASSIGN(request.data_endpoints, data_->endpoints());
  SRT_ASSIGN(membership_, control_->join(request));
  if (job_.line) {
    SRT_TRY(take_seat());
  }
  timeline_ = std::make_unique<Timeline>(job_.rank, host.hostname + ", pid " + std::to_string(::getpid()));
  user_track_ = &timeline_->track("program");
  data_->set_on_peer_lost([this](Rank rank, const Status& cause) { on_data_lost(rank, cause); });
  SRT_TRY(data_->start(*control_, membership_, job_.rank, interrupted_));
  if (!data_->path_note().empty()) {
    log_->warn("data goes over TCP, because shared memory between the ranks of this host cannot be used: " +
               std::string(data_->path_note()));
  }
  return {};
}

// The rank and the size of an elastic job are known only now.
Status Session::take_seat() {
  job_.rank = control_->rank();
  job_.size = membership_.size();
  requests_.set_rank(job_.rank);
  device_.set_rank(job_.rank);
  SRT_ASSIGN(log_, Logger::create(*config_, job_.rank));
  if (job_.size == 1) {
    data_->drop();
    SRT_ASSIGN(data_, DataPlane::single(loop_, *config_));
  }
  return {};
}

void Session::start_engine() {
  loop_.run_sync([this] {
    engine_ = std::make_unique<Engine>(engine_options(*config_, membership_.host_count()),
                                       EngineDeps{loop_, data_->collectives(), *control_, stats_, *timeline_,
                                                  log_.get(), [this] { waiter_.give_way(); }},
                                       [this] { return callers(); });
    order_launches();  // behind the engine, with which close() ends it
    ops_ = std::make_unique<HostStagedOps>(*engine_, job_.rank);
    streams_ = std::make_unique<StreamTable>(
        loop_, *engine_, waiter_, [this](Task done) { return awaited(std::move(done)); }, job_.rank, job_.size);
    ControlEvents events;
    events.message = [this](ConstBytes bytes) { engine_->on_message(bytes); };
    events.lost = [this](Rank /*rank*/, const Status& cause) { fail(cause); };
    events.left = [this](Rank rank) { engine_->on_left(rank); };
    events.disconnected = [this](const Status& cause) { fail(cause); };
    events.cut = [this](const Status& cause, bool needed) {
      if (needed || !engine_->idle()) {
        fail(cause);
      }
    };
    events.warning = [this](const std::string& text) { log_->warn(text); };
    control_->begin(std::move(events));
  });
}

void Session::fail(const Status& cause) {
  if (closed_) {
    return;
  }
  if (engine_ && engine_->failure().ok()) {
    log_->write(cause.code() == Code::kRanksChanged ? LogLevel::kInfo : LogLevel::kError, cause.to_string());
  }
  if (engine_) {
    engine_->abort(cause);
  }
  if (plane_) {
    plane_->abort(cause);
  }
  if (stage_) {
    stage_->end(cause);
  }
  if (!failed_.done()) {
    failed_.complete(cause);
  }
}

void Session::on_data_lost(Rank rank, const Status& cause) {
  if (!job_.line) {
    loop_.after(kLossGrace, [this, cause] { fail(cause); });
    return;
  }
  // The coordinator ends the epoch if the rank is lost. If it lives, this rank cannot go on with it nevertheless.
  fail_unless_told(
      {Code::kRanksChanged,
       std::string(cause.text()) + "; the coordinator has not taken rank " + std::to_string(rank) + " for lost",
       {rank, ""}});
}

// Ends the epoch of an elastic job with this cause, unless the coordinator names a lost rank before.
void Session::fail_unless_told(const Status& cause) {
  loop_.after(control_->cause_grace() - kLossGrace, [this, cause] { fail(cause); });
}

Status Session::await_failure(Duration timeout) {
  const TimePoint deadline = loop_.now() + timeout;
  while (loop_.now() < deadline && !(interrupted_ && interrupted_())) {
    if (const auto failure = failed_.wait_for(kFailurePoll)) {
      return *failure;
    }
  }
  return {};
}

void Session::note_waiting() {
  if (engine_) {
    engine_->note_waiting();
  }
}

Task Session::awaited(Task done) {
  ++awaited_.count;
  const std::shared_ptr<void> counted(nullptr, [this](void* /*nothing*/) { --awaited_.count; });
  if (!awaited_.timer_runs.exchange(true)) {
    loop_.post([this] {
      loop_.after(CallerRegistry::kLongWait, [this] {
        awaited_.timer_runs = false;
        if (awaited_.count > 0) {
          note_waiting();
        }
      });
    });
  }
  return [done = std::move(done), counted]() mutable { done(); };
}

Callers Session::callers() {
  Callers callers = waiter_.callers();
  if (awaited_.count > 0) {
    callers = {true, awaited_.rest.lasts(loop_.now(), processor_time()), true, callers.gives_way};
  }
  if (stage_ && stage_->fetching()) {
    callers.blocked = false;  // a tensor that other ranks wait for may be on its way to the host
  }
  return callers;
}

void Session::close() {
  if (closed_.exchange(true)) {
    return;
  }
  const Status cause(Code::kShutdown, "the session was shut down");
  if (engine_) {
    loop_.run_sync([&] {
      if (timeline_->enabled()) {
        engine_->flush_trace(true);
      }
      engine_->end(cause);
      if (stage_) {
        stage_->end(cause);
      }
    });
  }
  if (control_) {
    control_->leave();
  }
  if (engine_) {
    loop_.run_sync([&] { engine_->forget_network(); });
    leave_device(cause);
  }
  if (data_) {
    data_->close();
  }
  if (control_) {
    control_->relay_on();
  }
  end_threads();
}

void Session::drop() {
  if (closed_.exchange(true)) {
    return;
  }
  const Status cause(Code::kRanksChanged, "the epoch of this session has ended");
  if (control_) {
    static_cast<void>(control_->detach());
  }
  loop_.run_sync([&] {
    if (engine_) {
      const Status why = engine_->failure();
      engine_->abort(cause);
      job_.line->freeze(engine_->reports(), why);
      engine_->forget_network();
    }
    if (plane_) {
      plane_->abort(cause);
    }
    if (stage_) {
      stage_->end(cause);
    }
    if (data_) {
      data_->abort(cause);
    }
  });
  leave_device(cause);
  if (data_) {
    data_->drop();
  }
  end_threads();
}

void Session::end_threads() {
  // The engine stays until the session is destroyed: other threads may be inside a call.
  loop_.stop();
  requests_.close();
  if (streams_) {
    streams_->end();
  }
  waiter_.end();
}

// ---- operations by name ----

Result<std::vector<RequestId>> Session::submit(std::vector<OpSpec> ops) {
  std::vector<std::string> names;
  for (OpSpec& op : ops) {
    SRT_TRY(check_op(op, job_.rank, job_.size));
    SRT_TRY(device_.use(op.input.device, op.name));
    if (static_cast<int>(op.ranks.size()) == job_.size) {
      op.ranks.clear();
    }
    names.push_back(op.name.empty() ? "" : agreed_name(op));
  }
  SRT_ASSIGN(std::vector<RequestTable::Ticket> tickets, requests_.add(names));
  std::vector<RequestId> ids;
  for (const auto& ticket : tickets) {
    ids.push_back(ticket.id);
  }
  std::vector<Result<device::Mark>> marks;  // empty if no tensor is on a GPU
  if (std::ranges::any_of(ops, [](const OpSpec& op) { return op.input.device.type != DeviceType::kCpu; })) {
    for (const OpSpec& op : ops) {
      marks.push_back(ops_->mark(op));
    }
  }
  loop_.post([this, ops = std::move(ops), marks = std::move(marks), ids]() mutable {
    for (std::size_t i = 0; i < ops.size(); ++i) {
      Result<device::Mark> mark = marks.empty() ? device::Mark() : std::move(marks[i]);
      ops_->submit(std::move(ops[i]), std::move(mark), [this, id = ids[i]](Status status, OpResult result) {
        requests_.complete(id, std::move(status), std::move(result));
      });
    }
  });
  return ids;
}

bool Session::done(RequestId request) const {
  const auto slot = requests_.find(request);
  return !slot || slot->done();
}

std::optional<Status> Session::wait(RequestId request, Duration timeout) {
  const auto slot = requests_.find(request);
  if (!slot) {
    return invalid_argument("no request has the number " + std::to_string(request.value) + "; was it released?");
  }
  return waiter_.wait(*slot, timeout);
}

const OpResult* Session::result(RequestId request) const {
  const auto slot = requests_.find(request);
  if (!slot || !slot->done() || slot->result().dims.empty()) {
    return nullptr;
  }
  return &slot->result();
}

void Session::release(RequestId request) {
  if (const auto slot = requests_.find(request)) {
    // The memory belongs to the operation until it ends.
    static_cast<void>(waiter_.wait_out(*slot));
  }
  requests_.erase(request);
}

Result<StreamId> Session::open_stream(StreamSpec spec, Duration timeout) {
  for (const StreamTensor& tensor : spec.tensors) {
    SRT_TRY(device_.use(tensor.device, tensor.name));
  }
  return streams_->open(std::move(spec), timeout);
}

// ---- no more data ----

std::optional<Result<Rank>> Session::join(Duration timeout) {
  std::shared_ptr<Slot> slot;
  std::shared_ptr<Rank> last;
  {
    const std::lock_guard lock(join_.mutex);
    if (!join_.slot) {
      join_.slot = std::make_shared<Slot>();
      join_.last = std::make_shared<Rank>(-1);
      loop_.post([this, slot = join_.slot, last = join_.last] {
        ops_->after_submitted([this, slot, last] {
          streams_->after_calls([this, slot, last] {
            engine_->join([slot, last](const Result<Rank>& answer) {
              *last = answer ? *answer : -1;
              slot->complete(answer.status());
            });
          });
        });
      });
    }
    slot = join_.slot;
    last = join_.last;
  }
  const std::optional<Status> status = waiter_.wait(*slot, timeout);
  if (!status) {
    return std::nullopt;
  }
  // An interrupted wait leaves the rank joined, so the slot stays for the next call.
  if (slot->done()) {
    const std::lock_guard lock(join_.mutex);
    if (join_.slot == slot) {
      join_.slot.reset();
    }
  }
  return status->ok() ? Result<Rank>(*last) : Result<Rank>(*status);
}

// ---- introspection ----

Duration Session::distant_latency() const {
  Duration round_trip(0);
  loop_.run_sync([&] { round_trip = data_->round_trip(); });
  return Duration(scheduler::distant_latency(round_trip.count() / 2));
}

std::string Session::stats_json() const {
  std::string peers = "[]";
  std::string path;
  std::string tensors;
  std::string decisions;
  std::string device = "unused";
  loop_.run_sync([&] {
    device = plane_ ? plane_->name() : device;
    peers = data_->peers_json();
    path = data_->path();
    tensors = engine_->tensors_json();
    decisions = engine_->decisions_json();
  });
  JsonWriter extra;
  extra.begin_object();
  extra.key("rank").value(job_.rank);
  extra.key("size").value(job_.size);
  extra.key("backend").value(job_.size == 1 ? std::string("local") : config_->net.backend);
  extra.key("data_path").value(path);
  extra.key("device.data").value(device);
  extra.key("ranks_by_host").begin_array();
  for (const std::vector<Rank>& host : membership_.hosts()) {
    extra.value(static_cast<std::int64_t>(host.size()));
  }
  extra.end_array();
  extra.key("kernels").value(kernels::chosen_target());
  extra.key("loop.wakeups").value(loop_.wakeups());
  extra.key("control.wakeups").value(control_->wakeups());
  extra.key("control.messages_sent").value(control_->messages_sent());
  std::string text = std::move(extra).take();
  // Merges two objects: the fixed facts with peers, tensors and decisions, and the counters.
  const std::string counters = stats_.to_json();
  text += ",\"peers\":" + peers + ",\"tensors\":" + tensors + ",\"decisions\":" + decisions;
  if (counters.size() > 2) {
    text += "," + counters.substr(1);
  } else {
    text += "}";
  }
  return text;
}

Status Session::timeline_start(const std::string& path) {
  loop_.post([this, path] { engine_->request_trace(true, path); });
  return {};
}

Status Session::timeline_stop() {
  loop_.post([this] { engine_->request_trace(false, {}); });
  return {};
}

void Session::timeline_mark(const std::string& name, std::int64_t begin_ns, std::int64_t end_ns) {
  if (!timeline_->enabled() || end_ns < begin_ns) {
    return;
  }
  Span span;
  span.name = timeline_->name_id(name);
  span.stage = Stage::kUser;
  span.begin = TimePoint(Duration(begin_ns));
  span.end = TimePoint(Duration(end_ns));
  const std::lock_guard lock(mark_mutex_);
  user_track_->record(span);
}

}  // namespace sirtaki::engine
