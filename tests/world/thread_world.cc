#include "tests/world/thread_world.h"

#include <algorithm>
#include <latch>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "runtime/engine/ops/op_check.h"
#include "runtime/engine/session/session.h"
#include "runtime/hub/coordinator_server.h"
#include "tests/conformance/fake_nccl.h"
#include "tests/unit/device/fake_device.h"

namespace sirtaki::world {
namespace {

constexpr Duration kOpenTimeout = std::chrono::seconds(30);

// Thrown where a rank "dies": the thread ends, and its session goes without a good-bye.
struct Died {};

// A GPU in the view of a program; its session owns it.
struct Gpu {
  device::testing::FakeDevice* device = nullptr;  // null: tensors are in host memory
  device::Stream stream;
  std::shared_ptr<const device::testing::FakeDevice::Seen> seen;
  std::shared_ptr<int> calls_at_opening = {};  // calls for memory of the device until the last stream had opened

  Device where() const { return {device == nullptr ? DeviceType::kCpu : DeviceType::kCuda, 0}; }
  // Waits until the memory of the GPU can be read.
  void synchronize() const {
    if (device != nullptr) {
      device->catch_up();
    }
  }
};

class ThreadRank final : public RankApi {
 public:
  ThreadRank(std::unique_ptr<engine::Session>& owner, std::uint64_t seed, Gpu gpu)
      : owner_(owner),
        session_(*owner),
        random_(seed * 1000003U + static_cast<std::uint64_t>(owner->rank())),
        gpu_(gpu) {}

  Rank rank() const override { return session_.rank(); }
  int size() const override { return session_.membership().size(); }
  std::mt19937_64& random() override { return random_; }

  std::uint64_t submit(engine::OpSpec spec) override {
    if (spec.kind != OpKind::kBarrier) {
      spec.input.device = gpu_.where();
      spec.output.device = gpu_.where();
      spec.cuda_stream = gpu_.stream.native;
    }
    if (gpu_.device == nullptr || spec.kind != OpKind::kReduceScatter || spec.output.data != nullptr) {
      return submit_on_host(std::move(spec));
    }
    engine::OpResult rows = give_output(spec, size(), rank());
    const std::uint64_t request = submit_on_host(std::move(spec));
    rows_[request] = std::move(rows);
    return request;
  }
  std::uint64_t submit_on_host(engine::OpSpec spec) override {
    std::vector<engine::OpSpec> ops;
    ops.push_back(std::move(spec));
    auto ids = session_.submit(std::move(ops));
    if (!ids) {
      failed_[--next_failed_] = ids.status();
      return next_failed_;
    }
    return ids->front().value;
  }
  Await<Status> wait(std::uint64_t request) override {
    return Await<Status>([this, request]() -> Status {
      if (const auto failed = failed_.find(request); failed != failed_.end()) {
        return failed->second;
      }
      Status status = *session_.wait(RequestId(request), Duration(-1));
      gpu_.synchronize();
      return status;
    });
  }
  const engine::OpResult& result(std::uint64_t request) override {
    static const engine::OpResult kEmpty;
    if (const auto rows = rows_.find(request); rows != rows_.end()) {
      return rows->second;
    }
    const engine::OpResult* result = session_.result(RequestId(request));
    return result == nullptr ? kEmpty : *result;
  }

  Await<Result<StreamId>> open_stream(engine::StreamSpec spec) override {
    for (engine::StreamTensor& tensor : spec.tensors) {
      tensor.device = gpu_.where();
    }
    return Await<Result<StreamId>>([this, spec] {
      Result<StreamId> stream = session_.open_stream(spec, kOpenTimeout);
      if (gpu_.device != nullptr) {
        *gpu_.calls_at_opening = gpu_.device->device_memory_calls();
      }
      return stream;
    });
  }
  void ready(StreamId stream, int index, TensorView tensor, bool absent) override {
    tensor.device = gpu_.where();
    const Status status = session_.stream(stream).ready(index, tensor, absent, gpu_.stream.native);
    SRT_CHECK(status.ok());
  }
  void finish(StreamId stream) override {
    const Status status = session_.stream(stream).finish();
    SRT_CHECK(status.ok());
  }
  Await<Status> wait_stream(StreamId stream) override {
    return Await<Status>([this, stream] {
      Status status = *session_.stream(stream).wait(Duration(-1));
      gpu_.synchronize();
      return status;
    });
  }
  Await<Status> wait_tensors(StreamId stream, std::vector<int> tensors) override {
    return Await<Status>([this, stream, tensors] {
      Status status = *session_.stream(stream).wait_tensors(tensors, Duration(-1));
      gpu_.synchronize();
      return status;
    });
  }
  Await<Status> abort_stream(StreamId stream, std::string why) override {
    return Await<Status>([this, stream, why] {
      Status status = session_.stream(stream).abort(why);
      gpu_.synchronize();
      return status;
    });
  }
  Await<Status> close_stream(StreamId stream) override {
    return Await<Status>([this, stream] {
      Status status = session_.stream(stream).close();
      gpu_.synchronize();
      return status;
    });
  }
  std::vector<std::uint8_t> used(StreamId stream) override { return *session_.stream(stream).used(); }

  Status residual(StreamId stream, int index, std::span<float> out) override {
    return session_.stream(stream).residual(index, out);
  }
  Status set_residual(StreamId stream, int index, std::span<const float> in) override {
    return session_.stream(stream).set_residual(index, in);
  }
  void report_loss(StreamId stream, double loss) override {
    const Status status = session_.stream(stream).report_loss(loss);
    SRT_CHECK(status.ok());
  }

  Await<Result<Rank>> join() override {
    return Await<Result<Rank>>([this] { return *session_.join(Duration(-1)); });
  }

  // Real time passes by itself; a yield lets the threads mix.
  Await<Status> compute(Duration /*duration*/) override {
    return Await<Status>([] {
      std::this_thread::yield();
      return Status();
    });
  }
  Await<Status> leave() override {
    return Await<Status>([this] {
      session_.close();
      return Status();
    });
  }
  // The session goes first: it works on the memory of the scenario, whose frame the exception ends.
  void die() override {
    owner_.reset();
    throw Died();
  }

 private:
  std::unique_ptr<engine::Session>& owner_;
  engine::Session& session_;
  std::mt19937_64 random_;
  const Gpu gpu_;
  // Gives a reduce-scatter memory for its rows, which the runtime does not allocate on a GPU.
  static engine::OpResult give_output(engine::OpSpec& spec, int size, Rank rank) {
    const std::int64_t rows = spec.dims.front();
    const int among = spec.ranks.empty() ? size : static_cast<int>(spec.ranks.size());
    const auto place = spec.ranks.empty() ? rank : std::ranges::find(spec.ranks, rank) - spec.ranks.begin();
    const std::int64_t own = engine::scattered_rows(rows, among, static_cast<Rank>(place));
    engine::OpResult result;
    spec.output.numel = rows == 0 ? 0 : own * (spec.input.numel / rows);
    spec.output.dtype = spec.input.dtype;
    result.data.resize(spec.output.size_bytes());
    spec.output.data = result.data.data();
    return result;
  }

  std::map<std::uint64_t, engine::OpResult> rows_;  // results of reduce-scatters that submit() gave memory
  std::map<std::uint64_t, Status> failed_;
  std::uint64_t next_failed_ = ~std::uint64_t{0};
};

struct Job {
  std::vector<std::shared_ptr<const Config>> configs;  // one entry per rank
  rendezvous::Secret secret;
  std::string address;
  const net::testing::FakeNccl* nccl;  // may be null
};

using Body = std::function<void(std::unique_ptr<engine::Session>&, const Gpu&)>;

Gpu make_fake_gpu(engine::JobSpec& spec, const net::testing::FakeNccl* nccl) {
  using Owner = std::unique_ptr<device::DeviceApi>;
  auto device = std::make_unique<device::testing::FakeDevice>();
  const Gpu gpu{device.get(), *device->make_stream(device::Priority::kNormal), device->watch(),
                std::make_shared<int>(0)};
  device->be_slow();
  const auto owner = std::make_shared<Owner>(std::move(device));
  spec.open_device = [owner](int /*index*/) -> Result<Owner> {
    SRT_TRY((*owner)->enter_thread());
    return std::move(*owner);
  };
  spec.open_nccl = [nccl](const net::nccl::LoadOptions& options) -> Result<net::nccl::Library> {
    if (!options.path.empty()) {
      return net::nccl::load(options);
    }
    if (nccl == nullptr) {
      return unavailable("there is no NCCL here");
    }
    return net::nccl::Library{nccl->api(), 22809, "a test"};
  };
  return gpu;
}

std::string unsteady_memory(const ThreadOptions& options, Rank rank, const Gpu& gpu) {
  if (!options.expect_steady_memory || gpu.device == nullptr) {
    return {};
  }
  const int calls = gpu.device->device_memory_calls() - *gpu.calls_at_opening;
  return calls == 0 ? ""
                    : "rank " + std::to_string(rank) + ": calls for memory after the opening: " + std::to_string(calls);
}

// Returns a description of misuse of the device; empty: none.
std::string misuse_of_device(const ThreadOptions& options, Rank rank, const Gpu& gpu) {
  const std::string who = "rank " + std::to_string(rank);
  if (gpu.device != nullptr && !gpu.seen->breaches.empty()) {
    return who + ": a thread that the device does not know calls " + gpu.seen->breaches.front();
  }
  if (gpu.device != nullptr && gpu.seen->stuck > 0) {
    return who + ": releases of memory that would wait for the device for ever: " + std::to_string(gpu.seen->stuck);
  }
  const int left = gpu.device == nullptr ? 0 : gpu.seen->left - 1;  // the stream of the program remains
  if (options.expect_no_leaks && left != 0) {
    return who + ": objects of the device that were not released: " + std::to_string(left);
  }
  return {};
}

std::string run_rank(const ThreadOptions& options, const Job& job, Rank rank, std::latch& joined, const Body& body) {
  engine::JobSpec spec{rank, options.size, job.address, job.secret};
  const Gpu gpu = options.on_device && rank != options.cpu_rank
                      ? make_fake_gpu(spec, rank == options.rank_without_nccl ? nullptr : job.nccl)
                      : Gpu();
  if (rank == options.broken_rank) {
    gpu.device->break_down(unavailable("an illegal address"));
  }
  if (rank == options.rank_without_kernels) {
    gpu.device->refuse_kernels(unavailable("no kernels"));
  }
  if (rank == options.short_rank) {
    gpu.device->limit_memory(1000, 950);
  }
  auto session = engine::Session::open(job.configs[static_cast<std::size_t>(rank)], spec, {});
  joined.count_down();
  if (options.broken_rank >= 0) {
    joined.wait();  // a GPU that fails earlier would end the joining of the others instead of their scenario
  }
  if (!session) {
    return "rank " + std::to_string(rank) + " cannot join: " + session.status().to_string();
  }
  try {
    body(*session, gpu);
  } catch (const Died&) {
    return {};
  } catch (const std::exception& error) {
    return "seed " + std::to_string(options.seed) + ", rank " + std::to_string(rank) + ": " + error.what();
  }
  if (options.stats) {
    options.stats(rank, (*session)->stats_json());
  }
  const std::string unsteady = unsteady_memory(options, rank, gpu);
  (*session)->close();
  session->reset();
  return unsteady.empty() ? misuse_of_device(options, rank, gpu) : unsteady;
}

std::string run_ranks(const ThreadOptions& options, const Body& body) {
  auto secret = rendezvous::Secret::generate();
  if (!secret) {
    return secret.status().to_string();
  }
  Job job{{}, *secret, {}, nullptr};
  for (Rank rank = 0; rank < options.size; ++rank) {
    ConfigSources sources;
    sources.program = options.options_toml;
    if (options.ranks_per_host > 0) {
      sources.program += "job.host_id = \"host " + std::to_string(rank / options.ranks_per_host) + "\"\n";
    }
    auto config = load_config(sources);
    if (!config) {
      return config.status().to_string();
    }
    job.configs.push_back(std::move(*config));
  }
  hub::CoordinatorServerOptions server_options;
  server_options.server.size = options.size;
  server_options.server.secret = *secret;
  std::unique_ptr<hub::CoordinatorServer> server;
  if (options.size > 1) {
    auto started = hub::CoordinatorServer::start(std::move(server_options), {});
    if (!started) {
      return started.status().to_string();
    }
    server = std::move(*started);
  }
  std::optional<net::testing::FakeNccl> nccl;
  if (options.nccl) {
    nccl.emplace().break_down(options.nccl_error_rank, options.nccl_error_after);
  }
  job.address = server ? "127.0.0.1:" + std::to_string(server->port()) : "";
  job.nccl = nccl ? &*nccl : nullptr;
  std::mutex mutex;
  std::string outcome;
  for (int epoch = 0; epoch < options.epochs && outcome.empty(); ++epoch) {
    std::latch joined(options.size);
    std::vector<std::jthread> threads;
    for (Rank rank = 0; rank < options.size; ++rank) {
      threads.emplace_back([&, rank] {
        const std::string mine = run_rank(options, job, rank, joined, body);
        const std::lock_guard lock(mutex);
        outcome += mine.empty() ? "" : mine + "\n";
      });
    }
  }
  return outcome;
}

}  // namespace

std::string run_threads(const ThreadOptions& options, const ScenarioFn& scenario) {
  return run_ranks(options, [&](std::unique_ptr<engine::Session>& session, const Gpu& gpu) {
    ThreadRank api(session, options.seed, gpu);
    Scenario run = scenario(api);
    run.resume();
    SRT_CHECK(run.done());
    run.rethrow();
  });
}

std::string run_sessions(const ThreadOptions& options, const std::function<void(engine::Session&)>& program) {
  return run_ranks(options, [&](std::unique_ptr<engine::Session>& session, const Gpu& /*gpu*/) { program(*session); });
}

}  // namespace sirtaki::world
