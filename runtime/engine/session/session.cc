#include "runtime/engine/session/session.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <future>
#include <mutex>
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

namespace sirtaki::engine {
namespace {

// Before the operations that failed for it are told (kCauseGrace), so that they are told this.
constexpr Duration kLossGrace = kCauseGrace * 3 / 4;

// Copies take milliseconds, and so does leaving NCCL where others do; a GPU that hangs is not waited for.
constexpr Duration kDeviceGrace = std::chrono::seconds(1);

class SessionImpl final : public Session {
 public:
  SessionImpl(std::shared_ptr<const Config> config, JobSpec job, std::function<bool()> interrupted)
      : config_(std::move(config)),
        job_(std::move(job)),
        interrupted_(std::move(interrupted)),
        waiter_(interrupted_, [this] { loop_.post([this] { note_waiting(); }); }),
        device_(job_.rank, [this](int index) { return open_device(index); }),
        loop_("srt-loop", [this](const Status& bug) { fail(bug); }) {}

  ~SessionImpl() override { close(); }

  Status open();

  void close() override;
  const rendezvous::Membership& membership() const override { return membership_; }
  Rank rank() const override { return job_.rank; }
  const Config& config() const override { return *config_; }

  Result<std::vector<RequestId>> submit(std::vector<OpSpec> ops) override;
  bool done(RequestId request) const override;
  std::optional<Status> wait(RequestId request, Duration timeout) override;
  const OpResult* result(RequestId request) const override;
  void release(RequestId request) override;
  void forget(RequestId request, std::shared_ptr<const void> memory) override {
    requests_.forget(request, std::move(memory));
  }
  void watch(RequestId request) override { requests_.watch(request); }
  Status on_done(RequestId request, Task done) override { return requests_.on_done(request, awaited(std::move(done))); }
  std::optional<std::vector<RequestId>> wait_watched(std::size_t max, Duration timeout) override {
    return requests_.wait_watched(max, timeout);
  }

  void set_gives_way(bool on) override { waiter_.set_gives_way(on); }

  std::optional<Result<Rank>> join(Duration timeout) override;

  Result<StreamId> open_stream(StreamSpec spec, Duration timeout) override;
  StreamHandle stream(StreamId stream) override { return {*streams_, stream}; }

  std::string stats_json() const override;
  Status timeline_start(const std::string& path) override;
  Status timeline_stop() override;
  void timeline_mark(std::string name, std::int64_t begin_ns, std::int64_t end_ns) override;

 private:
  Status meet();
  void start_engine();
  void fail(const Status& cause);
  void note_waiting();
  // `done`, counted from now until it has been called.
  Task awaited(Task done);
  Callers callers();
  void on_data_lost(Rank rank, const Status& cause);
  void on_device_lost(const Status& cause);
  Status open_device(int index);
  Status stage_device(int index, const Result<net::nccl::Library>& nccl);
  void leave_device(const Status& cause);
  void await_returns();
  // `begin` on the loop, and what it gets called, for a moment at most.
  void await(const std::function<void(Task)>& begin);

  const std::shared_ptr<const Config> config_;
  const JobSpec job_;
  const std::function<bool()> interrupted_;
  std::atomic<int> awaited_{0};             // functions that wait to be called
  std::atomic<bool> looks_at_them_{false};  // a timer runs
  Rest rest_;                               // on the loop
  Waiter waiter_;
  RequestTable requests_{job_.rank};
  Stats stats_;
  std::unique_ptr<Timeline> timeline_;
  Track* user_track_ = nullptr;
  std::mutex mark_mutex_;  // marks may come from several threads, a track takes one
  std::mutex join_mutex_;
  std::shared_ptr<Slot> join_;  // guarded by join_mutex_; a call that waits or ran out of time
  std::shared_ptr<Rank> last_joined_;
  DeviceChoice device_;
  std::unique_ptr<Logger> log_;
  rendezvous::Membership membership_;
  std::atomic<bool> closed_{false};

  // Everything below lives on loop_, which therefore is destroyed after it.
  mutable rendezvous::AsioLoop loop_;
  std::unique_ptr<DeviceStage> stage_;  // lends memory to those below
  std::unique_ptr<DeviceTransport> plane_;
  std::unique_ptr<ControlPlane> control_;
  std::unique_ptr<DataPlane> data_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<HostStagedOps> ops_;
  std::unique_ptr<StreamTable> streams_;
};

// ---- life ----

Status SessionImpl::open() {
  SRT_ASSIGN(log_, Logger::create(*config_, job_.rank));
  if (job_.size == 1) {
    control_ = ControlPlane::single(loop_);
    SRT_ASSIGN(data_, DataPlane::single(loop_, *config_));
  } else {
    SRT_ASSIGN(control_, ControlPlane::connect(loop_, *config_, job_.rendezvous, job_.secret, interrupted_));
    SRT_ASSIGN(data_, DataPlane::listen(loop_, job_.secret, *config_, job_.size,
                                        job_.one_host ? "127.0.0.1" : control_->local_address()));
  }
  SRT_TRY(meet());
  start_engine();
  if (job_.rank == 0 && !config_->timeline.path.empty()) {
    return timeline_start(config_->timeline.path);
  }
  return {};
}

Status SessionImpl::meet() {
  const HostInfo host = host_info(config_->job.host_id);
  timeline_ = std::make_unique<Timeline>(job_.rank, host.hostname + ", pid " + std::to_string(::getpid()));
  user_track_ = &timeline_->track("program");
  rendezvous::JoinRequest request;
  request.rank = job_.rank;
  request.size = job_.size;
  request.hostname = host.hostname;
  request.host_id = host.host_id;
  request.pid = ::getpid();
  request.version = std::string(version());
  request.agreed_options = agreed_options(*config_);
  request.fanout = static_cast<int>(config_->control.fanout);
  SRT_ASSIGN(request.data_endpoints, data_->endpoints());
  SRT_ASSIGN(membership_, control_->join(request));
  data_->set_on_peer_lost([this](Rank rank, const Status& cause) { on_data_lost(rank, cause); });
  SRT_TRY(data_->start(*control_, membership_, job_.rank, interrupted_));
  if (!data_->path_note().empty()) {
    log_->warn("data goes over TCP, because shared memory between the ranks of this host cannot be used: " +
               std::string(data_->path_note()));
  }
  return {};
}

void SessionImpl::start_engine() {
  loop_.run_sync([this] {
    engine_ = std::make_unique<Engine>(engine_options(*config_, membership_.host_count()),
                                       EngineDeps{loop_, data_->collectives(), *control_, stats_, *timeline_,
                                                  log_.get(), [this] { waiter_.give_way(); }},
                                       [this] { return callers(); });
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

void SessionImpl::fail(const Status& cause) {
  if (closed_) {
    return;
  }
  if (engine_ && engine_->failure().ok()) {
    log_->error(cause.to_string());
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
}

void SessionImpl::on_data_lost(Rank /*rank*/, const Status& cause) {
  loop_.after(kLossGrace, [this, cause] { fail(cause); });
}

// The others may wait for what this rank can no longer hand over.
void SessionImpl::on_device_lost(const Status& cause) {
  if (!closed_ && engine_->failure().ok()) {
    control_->send(control::JobBroken{cause});
  }
  fail(cause);
}

void SessionImpl::note_waiting() {
  if (engine_) {
    engine_->note_waiting();
  }
}

Task SessionImpl::awaited(Task done) {
  ++awaited_;
  const std::shared_ptr<void> counted(nullptr, [this](void* /*nothing*/) { --awaited_; });
  if (!looks_at_them_.exchange(true)) {
    loop_.post([this] {
      loop_.after(CallerRegistry::kLongWait, [this] {
        looks_at_them_ = false;
        if (awaited_ > 0) {
          note_waiting();
        }
      });
    });
  }
  return [done = std::move(done), counted]() mutable { done(); };
}

Callers SessionImpl::callers() {
  Callers callers = waiter_.callers();
  if (awaited_ > 0) {
    callers = {true, rest_.lasts(loop_.now(), processor_time()), true, callers.gives_way};
  }
  if (stage_ && stage_->fetching()) {
    callers.blocked = false;  // what others wait for is about to be submitted
  }
  return callers;
}

void SessionImpl::close() {
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
  await_returns();
  // The engine stays until the session is destroyed: other threads may be inside a call.
  loop_.stop();
  requests_.close();
  if (streams_) {
    streams_->end();
  }
  waiter_.end();
}

// ---- operations by name ----

Result<std::vector<RequestId>> SessionImpl::submit(std::vector<OpSpec> ops) {
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
  std::vector<Result<device::Mark>> marks;  // none where nothing is on a GPU
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

bool SessionImpl::done(RequestId request) const {
  const auto slot = requests_.find(request);
  return !slot || slot->done();
}

std::optional<Status> SessionImpl::wait(RequestId request, Duration timeout) {
  const auto slot = requests_.find(request);
  if (!slot) {
    return invalid_argument("no request has the number " + std::to_string(request.value) + "; was it released?");
  }
  return waiter_.wait(*slot, timeout);
}

const OpResult* SessionImpl::result(RequestId request) const {
  const auto slot = requests_.find(request);
  if (!slot || !slot->done() || slot->result().dims.empty()) {
    return nullptr;
  }
  return &slot->result();
}

void SessionImpl::release(RequestId request) {
  if (const auto slot = requests_.find(request)) {
    // The memory belongs to the operation until it ends.
    static_cast<void>(waiter_.wait_out(*slot));
  }
  requests_.erase(request);
}

Result<StreamId> SessionImpl::open_stream(StreamSpec spec, Duration timeout) {
  for (const StreamTensor& tensor : spec.tensors) {
    SRT_TRY(device_.use(tensor.device, tensor.name));
  }
  return streams_->open(std::move(spec), timeout);
}

// ---- tensors on a GPU ----

Status SessionImpl::open_device(int index) {
  Status status(Code::kShutdown, "the session was shut down");
  // Here, as loading it takes a while.
  const Result<net::nccl::Library> nccl = find_nccl(config_->device, job_.size, job_.open_nccl);
  bool host_only = true;
  loop_.run_sync([&] {
    status = stage_device(index, nccl);
    host_only = !plane_ || plane_->host_only();
  });
  if (status.ok() && host_only) {
    log_->info("tensors on " + device_name({DeviceType::kCuda, index}) + " travel through the host's memory");
  } else if (!status.ok()) {
    log_->warn(status.to_string());
  }
  return status;
}

Status SessionImpl::stage_device(int index, const Result<net::nccl::Library>& nccl) {
  SRT_ASSIGN(auto device, job_.open_device ? job_.open_device(index) : open_cuda_device(index));
  DeviceStageOptions options;
  options.deadline = config_->control.stall_fail;
  DeviceStageDeps deps{loop_,
                       stats_,
                       job_.rank,
                       device_name({DeviceType::kCuda, index}),
                       [this] { return engine_->failure(); },
                       [this](const Status& cause) { on_device_lost(cause); }};
  SRT_ASSIGN(stage_, DeviceStage::create(std::move(device), std::move(deps), options));
  DeviceTransportOptions plane;
  plane.data = config_->device.data;
  plane.sums_on_hosts = config_->device.codecs == "auto";
  plane.poller.deadline = config_->control.stall_fail;
  plane.nccl.credit_bytes = static_cast<std::size_t>(config_->schedule.credit_bytes);
  plane.nccl.communicator.connect_timeout = config_->control.connect_timeout;
  const auto broken = [this](const Status& why) {
    on_device_lost({why.code(),
                    "NCCL has failed on rank " + std::to_string(job_.rank) + ": " + std::string(why.text()),
                    {job_.rank, ""}});
  };
  plane_ = std::make_unique<DeviceTransport>(
      DeviceTransportDeps{loop_, data_->collectives(), data_->link(), *stage_, *log_, stats_, broken}, plane, nccl);
  ops_->use(*stage_, *plane_);
  streams_->use(*stage_, *plane_,
                PathSelector(*stage_, *plane_, data_->collectives(), config_->device.codecs == "auto"));
  return {};
}

void SessionImpl::await(const std::function<void(Task)>& begin) {
  const auto done = std::make_shared<std::promise<void>>();
  if (loop_.run_sync([&] { begin([done] { done->set_value(); }); })) {
    done->get_future().wait_for(kDeviceGrace);
  }
}

// Before the network that it speaks over.
void SessionImpl::leave_device(const Status& cause) {
  await([&](Task then) { plane_ ? plane_->leave(cause, std::move(then)) : then(); });
  loop_.run_sync([this] {
    if (plane_) {
      plane_->close();
    }
  });
}

// The last results may still be on their way to the GPU.
void SessionImpl::await_returns() {
  await([this](Task then) { stage_ ? stage_->when_returned(std::move(then)) : then(); });
}

// ---- no more data ----

std::optional<Result<Rank>> SessionImpl::join(Duration timeout) {
  std::shared_ptr<Slot> slot;
  std::shared_ptr<Rank> last;
  {
    const std::lock_guard lock(join_mutex_);
    if (!join_) {
      join_ = std::make_shared<Slot>();
      last_joined_ = std::make_shared<Rank>(-1);
      loop_.post([this, slot = join_, last = last_joined_] {
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
    slot = join_;
    last = last_joined_;
  }
  const std::optional<Status> status = waiter_.wait(*slot, timeout);
  if (!status) {
    return std::nullopt;
  }
  // Ended by a signal, the wait is over, but not the join.
  if (slot->done()) {
    const std::lock_guard lock(join_mutex_);
    if (join_ == slot) {
      join_.reset();
    }
  }
  return status->ok() ? Result<Rank>(*last) : Result<Rank>(*status);
}

// ---- introspection ----

std::string SessionImpl::stats_json() const {
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
  // Two objects made one: the fixed facts and the counters, the peers as a list, tensors and decisions by stream.
  const std::string counters = stats_.to_json();
  text += ",\"peers\":" + peers + ",\"tensors\":" + tensors + ",\"decisions\":" + decisions;
  if (counters.size() > 2) {
    text += "," + counters.substr(1);
  } else {
    text += "}";
  }
  return text;
}

Status SessionImpl::timeline_start(const std::string& path) {
  loop_.post([this, path] { engine_->request_trace(true, path); });
  return {};
}

Status SessionImpl::timeline_stop() {
  loop_.post([this] { engine_->request_trace(false, {}); });
  return {};
}

void SessionImpl::timeline_mark(std::string name, std::int64_t begin_ns, std::int64_t end_ns) {
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

}  // namespace

Result<std::unique_ptr<Session>> Session::open(std::shared_ptr<const Config> config, JobSpec job,
                                               MoveFunction<bool()> interrupted) {
  std::function<bool()> poll;
  if (interrupted) {
    poll = [shared = std::make_shared<MoveFunction<bool()>>(std::move(interrupted))] { return (*shared)(); };
  }
  auto session = std::make_unique<SessionImpl>(std::move(config), std::move(job), std::move(poll));
  SRT_TRY(session->open());
  return std::unique_ptr<Session>(std::move(session));
}

}  // namespace sirtaki::engine
