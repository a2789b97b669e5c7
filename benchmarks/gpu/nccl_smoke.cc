// NCCL on a device as the runtime calls it: one rank of several, which compares results of collectives with the
// expected ones.
//
// usage: nccl_smoke RANK SIZE FOLDER [LIBRARY]. All ranks get the same empty FOLDER for their rendezvous. Loads
// libsirtaki_cuda.so, and LIBRARY or the libnccl.so.2 of the system. All ranks use device 0: benchmarks/gpu/smoke.py
// sets the environment that NCCL needs for that. Exit status: 0 if all results are as expected, 1 if not, 2 without a
// device or NCCL.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <future>
#include <iterator>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "runtime/base/telemetry/log.h"
#include "runtime/device/cuda_device.h"
#include "runtime/net/device/nccl/loader.h"
#include "runtime/net/device/nccl/nccl_collectives.h"
#include "runtime/rendezvous/link/asio_loop.h"

namespace sirtaki::net::nccl {
namespace {

constexpr Duration kDeadline = std::chrono::seconds(50);
constexpr Duration kPoll = std::chrono::milliseconds(2);
constexpr int kMaxCtas = 4;  // ranks that share a device take turns on it

// Exchange of small files between ranks.
class Folder {
 public:
  Folder(Loop& loop, std::filesystem::path path) : loop_(loop), path_(std::move(path)) {}

  Status put(const std::string& name, const std::string& content) {
    const auto target = path_ / name;
    const std::filesystem::path made = target.string() + ".new";
    std::ofstream(made, std::ios::binary) << content;
    std::error_code error;
    std::filesystem::rename(made, target, error);
    return error ? unavailable(target.string() + ": " + error.message()) : Status();
  }
  // Calls `done` with the content once the file exists; main() has the deadline.
  void get(const std::string& name, MoveFunction<void(std::string)> done) {
    std::ifstream file(path_ / name, std::ios::binary);
    if (!file) {
      loop_.after(kPoll, [this, name, moved = std::move(done)]() mutable { get(name, std::move(moved)); });
      return;
    }
    done(std::string(std::istreambuf_iterator<char>(file), {}));
  }

 private:
  Loop& loop_;
  const std::filesystem::path path_;
};

class FolderIds final : public IdExchange {
 public:
  FolderIds(Loop& loop, Folder& folder) : loop_(loop), folder_(folder) {}

  void exchange(const std::string& key, const UniqueId* own, MoveFunction<void(Result<UniqueId>)> done) override {
    std::string name = key;
    std::replace(name.begin(), name.end(), '/', '.');
    Status put;
    if (own != nullptr) {
      put = folder_.put(name, std::string(own->internal, sizeof(own->internal)));
    }
    loop_.post([this, name, put, moved = std::move(done)]() mutable {
      if (!put.ok()) {
        moved(put);
        return;
      }
      folder_.get(name, [answer = std::move(moved)](const std::string& content) mutable {
        UniqueId id{};
        if (content.size() != sizeof(id.internal)) {
          answer(corrupt("an id of " + std::to_string(content.size()) + " bytes"));
          return;
        }
        std::memcpy(id.internal, content.data(), sizeof(id.internal));
        answer(id);
      });
    });
  }

 private:
  Loop& loop_;
  Folder& folder_;
};

using Numbers = std::vector<float>;

// One collective of float32: input of each rank, and its expected result. Numbers are small and whole, so that sums in
// any order are exact.
struct Case {
  std::string name;
  CollectiveArgs args;
  Numbers given;
  Numbers expected;
  std::int64_t place = -1;  // not negative: the input is a part of the output, from this element on
};

class Cases {
 public:
  Cases(Rank rank, int size) : rank_(rank), size_(size) {}

  std::vector<Case> all() {
    for (const std::int64_t n : {std::int64_t{1}, std::int64_t{1000}, std::int64_t{1} << 18}) {
      reduced("sum", n, ReduceOp::kSum);
      reduced("average", n, ReduceOp::kAverage);
      reduced("largest", n, ReduceOp::kMax);
      broadcast(n);
      for (const bool equal : {true, false}) {
        equal_ = equal;
        gathered(n, false);
        gathered(n, true);
        exchanged(n);
        scattered(n);
      }
      exchanged_without_rank_0(n);
    }
    return std::move(cases_);
  }

 private:
  // Returns element i of a rank in the next case.
  float number(Rank rank, std::int64_t i) const {
    return static_cast<float>((7 * i + 31 * rank + static_cast<std::int64_t>(cases_.size())) % 101);
  }
  Numbers numbers(Rank rank, std::int64_t count) const {
    Numbers made(static_cast<std::size_t>(count));
    for (std::int64_t i = 0; i < count; ++i) {
      made[static_cast<std::size_t>(i)] = number(rank, i);
    }
    return made;
  }
  float reduced_number(ReduceOp op, std::int64_t i) const {
    float found = number(0, i);
    for (Rank rank = 1; rank < size_; ++rank) {
      found = op == ReduceOp::kMax ? std::max(found, number(rank, i)) : found + number(rank, i);
    }
    return op == ReduceOp::kAverage ? found / static_cast<float>(size_) : found;
  }
  // Returns the size of the block of a rank: NCCL has separate functions for equal blocks.
  std::int64_t block(Rank rank, std::int64_t n) const { return equal_ ? n : n * (rank + 1); }
  std::int64_t begin(Rank rank, std::int64_t n) const { return equal_ ? n * rank : n * rank * (rank + 1) / 2; }

  void add(const std::string& name, std::int64_t n, CollectiveArgs args, Numbers given, Numbers expected) {
    args.tag = OpTag(cases_.size() + 1);
    cases_.push_back({name + " of " + std::to_string(n), std::move(args), std::move(given), std::move(expected)});
  }
  void reduced(const std::string& name, std::int64_t n, ReduceOp op) {
    Numbers expected(static_cast<std::size_t>(n));
    for (std::int64_t i = 0; i < n; ++i) {
      expected[static_cast<std::size_t>(i)] = reduced_number(op, i);
    }
    CollectiveArgs args;
    args.op = op;
    add(name, n, std::move(args), numbers(rank_, n), std::move(expected));
  }
  void broadcast(std::int64_t n) {
    CollectiveArgs args;
    args.kind = OpKind::kBroadcast;
    args.root = size_ - 1;
    add("broadcast", n, std::move(args), numbers(rank_, n), numbers(size_ - 1, n));
  }
  void gathered(std::int64_t n, bool in_place) {
    CollectiveArgs args;
    args.kind = OpKind::kAllgather;
    Numbers expected;
    for (Rank rank = 0; rank < size_; ++rank) {
      args.recv_counts.push_back(block(rank, n));
      const Numbers part = numbers(rank, block(rank, n));
      expected.insert(expected.end(), part.begin(), part.end());
    }
    add(in_place ? "allgather in place" : "allgather", n, std::move(args), numbers(rank_, block(rank_, n)),
        std::move(expected));
    cases_.back().place = in_place ? begin(rank_, n) : -1;
  }
  void exchanged(std::int64_t n) {
    CollectiveArgs args;
    args.kind = OpKind::kAlltoall;
    Numbers expected;
    for (Rank rank = 0; rank < size_; ++rank) {
      args.send_counts.push_back(block(rank, n));
      args.recv_counts.push_back(block(rank_, n));
      for (std::int64_t i = 0; i < block(rank_, n); ++i) {
        expected.push_back(number(rank, begin(rank_, n) + i));
      }
    }
    add("alltoall", n, std::move(args), numbers(rank_, begin(size_, n)), std::move(expected));
  }
  // Rank 0 neither sends nor receives, so its group of calls of NCCL is empty.
  void exchanged_without_rank_0(std::int64_t n) {
    CollectiveArgs args;
    args.kind = OpKind::kAlltoall;
    Numbers expected;
    for (Rank rank = 0; rank < size_; ++rank) {
      const std::int64_t count = rank == 0 || rank_ == 0 ? 0 : n;
      args.send_counts.push_back(count);
      args.recv_counts.push_back(count);
      for (std::int64_t i = 0; i < count; ++i) {
        expected.push_back(number(rank, n * (rank_ - 1) + i));
      }
    }
    add("alltoall without rank 0", n, std::move(args), numbers(rank_, rank_ == 0 ? 0 : n * (size_ - 1)),
        std::move(expected));
  }
  void scattered(std::int64_t n) {
    CollectiveArgs args;
    args.kind = OpKind::kReduceScatter;
    Numbers expected;
    for (Rank rank = 0; rank < size_; ++rank) {
      args.recv_counts.push_back(block(rank, n));
    }
    for (std::int64_t i = 0; i < block(rank_, n); ++i) {
      expected.push_back(reduced_number(ReduceOp::kSum, begin(rank_, n) + i));
    }
    add("reducescatter", n, std::move(args), numbers(rank_, begin(size_, n)), std::move(expected));
  }

  const Rank rank_;
  const int size_;
  bool equal_ = true;
  std::vector<Case> cases_;
};

// Starts all cases at once, then compares all results. Runs on the loop.
class Smoke {
 public:
  Smoke(Loop& loop, device::DeviceApi& device, Folder& folder, Rank rank, int size)
      : loop_(loop), device_(device), folder_(folder), rank_(rank), size_(size), cases_(Cases(rank, size).all()) {}
  ~Smoke() {
    for (const auto& [place, data] : memory_) {
      device_.release(place, data);
    }
    for (const device::Event event : {ready_, fetched_}) {
      if (event) {
        device_.destroy(event);
      }
    }
    if (stream_.native != nullptr) {
      device_.destroy(stream_);
    }
  }

  std::size_t count() const { return cases_.size(); }

  // Calls `done` once, on the loop. `collectives` belong to the caller, and have no communicator yet.
  void run(NcclCollectives& collectives, Done done) {
    collectives_ = &collectives;
    done_ = std::move(done);
    if (const Status status = prepare(); !status.ok()) {
      finish(status);
      return;
    }
    collectives.connect_set(kJobSet,
                            [this](const Status& connected) { connected.ok() ? start_all() : finish(connected); });
  }

 private:
  struct Memory {
    Bytes given, got;  // device memory
    Bytes sent, came;  // pinned host memory
  };

  Status allocate(device::Place place, std::size_t bytes, Bytes& out) {
    SRT_ASSIGN(std::byte* const data, device_.allocate(place, std::max(bytes, sizeof(float))));
    memory_.emplace_back(place, data);
    out = {data, bytes};
    return {};
  }

  // Makes all allocations now, because an allocation may wait for the device while collectives are in flight.
  Status prepare() {
    SRT_ASSIGN(stream_, device_.make_stream(device::Priority::kNormal));
    SRT_ASSIGN(ready_, device_.make_event());
    SRT_ASSIGN(fetched_, device_.make_event());
    for (Case& one : cases_) {
      Memory& memory = places_.emplace_back();
      const std::size_t in = one.given.size() * sizeof(float);
      const std::size_t out = one.expected.size() * sizeof(float);
      SRT_TRY(allocate(device::Place::kDevice, out, memory.got));
      if (one.place >= 0) {
        memory.given = memory.got.subspan(static_cast<std::size_t>(one.place) * sizeof(float), in);
      } else {
        SRT_TRY(allocate(device::Place::kDevice, in, memory.given));
      }
      SRT_TRY(allocate(device::Place::kPinned, in, memory.sent));
      SRT_TRY(allocate(device::Place::kPinned, out, memory.came));
      // All bits set is no number of any case, so that an element that is not written is detected.
      std::memset(memory.came.data(), 0xff, out);
      std::memcpy(memory.sent.data(), one.given.data(), in);
      SRT_TRY(device_.copy(stream_, memory.got.data(), memory.came.data(), out));
      SRT_TRY(device_.copy(stream_, memory.given.data(), memory.sent.data(), in));
      const bool root = one.args.kind == OpKind::kBroadcast && one.args.root == rank_;
      if (root) {
        SRT_TRY(device_.copy(stream_, memory.got.data(), memory.sent.data(), out));
      }
      one.args.in = memory.given;
      one.args.out = memory.got;
    }
    return device_.record(ready_, stream_);
  }

  void start_all() {
    for (const Case& one : cases_) {
      collectives_->start_work(one.args, {.ready = ready_}, [this, &one](const Status& status) {
        if (!status.ok()) {
          finish(status.with_context(one.name));
        } else if (++arrived_ == cases_.size()) {
          fetch();
        }
      });
    }
  }

  void fetch() {
    Status status;
    for (const Memory& memory : places_) {
      status.update(device_.copy(stream_, memory.came.data(), memory.got.data(), memory.got.size()));
    }
    status.update(device_.record(fetched_, stream_));
    status.ok() ? wait_for_copies() : finish(status);
  }

  void wait_for_copies() {
    const auto there = device_.done(fetched_);
    if (!there) {
      finish(there.status());
    } else if (!*there) {
      loop_.after(kPoll, [this] { wait_for_copies(); });
    } else {
      finish(compare());
    }
  }

  Status compare() const {
    for (std::size_t i = 0; i < cases_.size(); ++i) {
      const Numbers& expected = cases_[i].expected;
      for (std::size_t at = 0; at < expected.size(); ++at) {
        float found = 0;
        std::memcpy(&found, places_[i].came.data() + at * sizeof(float), sizeof(float));
        if (!(found == expected[at])) {
          return corrupt(cases_[i].name + ": element " + std::to_string(at) + " is " + std::to_string(found) +
                         ", not " + std::to_string(expected[at]));
        }
      }
    }
    return {};
  }

  // Waits for all ranks: a slower rank may still read from the memory of this one.
  void finish(const Status& status) {
    if (!done_) {
      return;
    }
    if (!status.ok()) {
      std::exchange(done_, {})(status);
      return;
    }
    if (const Status put = folder_.put("end." + std::to_string(rank_), ""); !put.ok()) {
      std::exchange(done_, {})(put);
      return;
    }
    wait_for_rank(0);
  }
  void wait_for_rank(Rank other) {
    if (other == size_) {
      std::exchange(done_, {})({});
      return;
    }
    folder_.get("end." + std::to_string(other), [this, other](const std::string&) { wait_for_rank(other + 1); });
  }

  Loop& loop_;
  device::DeviceApi& device_;
  Folder& folder_;
  const Rank rank_;
  const int size_;
  std::vector<Case> cases_;
  NcclCollectives* collectives_ = nullptr;
  Done done_;
  std::vector<Memory> places_;
  std::vector<std::pair<device::Place, std::byte*>> memory_;
  device::Stream stream_;
  device::Event ready_;
  device::Event fetched_;
  std::size_t arrived_ = 0;
};

struct Arguments {
  Rank rank;
  int size;
  std::string folder;
  std::string library;
};

int fail(const Arguments& arguments, const Status& status, int code) {
  std::fprintf(stderr, "nccl_smoke: rank %d: %s\n", arguments.rank, status.to_string().c_str());
  return code;
}

// All objects of the loop, in the order of their construction.
struct World {
  std::unique_ptr<device::CudaDevice> device;
  std::unique_ptr<Folder> folder;
  std::unique_ptr<FolderIds> ids;
  std::unique_ptr<NcclCollectives> collectives;
  std::unique_ptr<Smoke> smoke;
};

Status make(const Arguments& arguments, const device::Plugin& plugin, const Api& api, Logger& log,
            rendezvous::AsioLoop& loop, World& world) {
  SRT_ASSIGN(world.device, device::CudaDevice::open(plugin, 0));
  world.folder = std::make_unique<Folder>(loop, arguments.folder);
  world.ids = std::make_unique<FolderIds>(loop, *world.folder);
  NcclOptions options;
  options.rank = arguments.rank;
  options.size = arguments.size;
  options.communicator.max_ctas = kMaxCtas;
  SRT_ASSIGN(world.collectives, NcclCollectives::create({loop, api, *world.device, *world.ids, log}, options));
  world.smoke = std::make_unique<Smoke>(loop, *world.device, *world.folder, arguments.rank, arguments.size);
  return {};
}

int run(const Arguments& arguments) {
  const auto plugin = device::load_plugin();
  if (!plugin) {
    return fail(arguments, plugin.status(), 2);
  }
  const auto library = load({.path = arguments.library});
  if (!library) {
    return fail(arguments, library.status(), 2);
  }
  Logger log({.level = LogLevel::kWarn, .rank = arguments.rank, .wall_clock = {}, .clock = {}}, stderr_sink());
  rendezvous::AsioLoop loop("nccl-smoke");
  World world;
  Status made;
  loop.run_sync([&] { made = make(arguments, *plugin, library->api, log, loop, world); });
  std::promise<Status> promise;
  if (made.ok()) {
    loop.run_sync(
        [&] { world.smoke->run(*world.collectives, [&](const Status& status) { promise.set_value(status); }); });
    auto ended = promise.get_future();
    if (ended.wait_for(kDeadline) != std::future_status::ready) {
      fail(arguments, {Code::kTimeout, "not done in time"}, 1);
      std::_Exit(1);  // a collective that hangs cannot be shut down in order
    }
    made = ended.get();
  }
  const std::size_t count = world.smoke ? world.smoke->count() : 0;
  const bool no_device = !world.device;
  loop.run_sync([&] {
    world.collectives.reset();
    world.smoke.reset();
  });
  loop.stop();  // ends the timers that still poll for a file
  if (!made.ok()) {
    return fail(arguments, made, no_device ? 2 : 1);
  }
  std::printf("rank %d of %d: %zu collectives as expected, NCCL %s of %s\n", arguments.rank, arguments.size, count,
              version_text(library->version).c_str(), library->from.c_str());
  return 0;
}

}  // namespace
}  // namespace sirtaki::net::nccl

int main(int argc, char** argv) {
  if (argc < 4) {
    std::fprintf(stderr, "usage: nccl_smoke RANK SIZE FOLDER [LIBRARY]\n");
    return 1;
  }
  return sirtaki::net::nccl::run(
      {std::atoi(argv[1]), std::atoi(argv[2]), argv[3], argc > 4 ? std::string(argv[4]) : std::string()});
}
