// sirtaki_regroup() in processes that are killed: the test process has the hub, and its children are the ranks.
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <condition_variable>
#include <csignal>
#include <cstring>
#include <mutex>
#include <string>
#include <vector>

#include "adapters/c/sirtaki.h"
#include "runtime/base/config/config_load.h"
#include "runtime/hub/coordinator_server.h"

namespace sirtaki::adapters {
namespace {

constexpr int kRanks = 4;

// The address of the hub and the secret, for a child; written through a pipe.
struct Address {
  std::array<char, 64> endpoint{};
  std::array<char, 65> secret{};
};

// Ends a child if something is not as expected; the line becomes its exit code.
#define NEED(condition)                                                                                  \
  do {                                                                                                   \
    if (!(condition)) {                                                                                  \
      std::fprintf(stderr, "line %d: %s; last error: %s\n", __LINE__, #condition, sirtaki_last_error()); \
      _exit(__LINE__ % 200 + 1);                                                                         \
    }                                                                                                    \
  } while (false)

sirtaki_status sum(float value, float& total, sirtaki_request& request) {
  const std::int64_t dims[] = {1};
  sirtaki_request_args args = {};
  args.struct_size = sizeof(args);
  args.op = SIRTAKI_ALLREDUCE;
  args.name = "members";
  args.prescale = args.postscale = 1.0;
  args.reduce_op = SIRTAKI_SUM;
  args.input.struct_size = args.output.struct_size = sizeof(sirtaki_tensor);
  args.input.data = &value;
  args.output.data = &total;
  args.input.dtype = args.output.dtype = SIRTAKI_F32;
  args.input.ndim = args.output.ndim = 1;
  args.input.dims = args.output.dims = dims;
  if (const sirtaki_status status = sirtaki_submit(&args, &request); status != SIRTAKI_OK) {
    return status;
  }
  const sirtaki_status status = sirtaki_wait(request, -1);
  sirtaki_release(request);
  return status;
}

void init(Rank slot, const Address& address) {
  sirtaki_init_args args = {};
  args.struct_size = sizeof(args);
  args.options_toml = "elastic.min = 2\nlog.level = \"error\"\n";
  args.rank = slot;
  args.size = kRanks;
  args.rendezvous = address.endpoint.data();
  args.secret_hex = address.secret.data();
  NEED(sirtaki_init(&args) == SIRTAKI_OK);
}

// The others begin another sum only then, and this one may fail on them.
void die_once_the_others_have_the_last_sum() {
  float total = 0;
  sirtaki_request request = 0;
  NEED(sum(1, total, request) == SIRTAKI_OK);
  raise(SIGKILL);
}

sirtaki_stream open_stream() {
  const std::int64_t dims[] = {1};
  sirtaki_tensor tensor = {};
  tensor.struct_size = sizeof(tensor);
  tensor.dtype = SIRTAKI_F32;
  tensor.ndim = 1;
  tensor.dims = dims;
  const char* name = "weight";
  sirtaki_stream_args args = {};
  args.struct_size = sizeof(args);
  args.name = "gradients";
  args.count = 1;
  args.names = &name;
  args.tensors = &tensor;
  args.reduce_op = SIRTAKI_SUM;
  args.prescale = args.postscale = 1;
  sirtaki_stream stream = 0;
  NEED(sirtaki_stream_open(&args, &stream) == SIRTAKI_OK);
  return stream;
}

// Works until the epoch has ended, then goes on in the next one.
void regroup() {
  float total = 0;
  sirtaki_request request = 0;
  sirtaki_status status = SIRTAKI_OK;
  while (status == SIRTAKI_OK) {
    status = sum(1, total, request);
  }
  NEED(status == SIRTAKI_RANKS_CHANGED);
  NEED(std::strstr(sirtaki_last_error(), "killed by signal 9") != nullptr);
  NEED(std::strstr(sirtaki_last_error(), "go on as epoch") != nullptr);
  const sirtaki_request old = request;
  NEED(sirtaki_regroup() == SIRTAKI_OK);
  int done = 0;
  NEED(old == 0 || sirtaki_poll(old, &done) == SIRTAKI_NOT_INITIALIZED);
}

void child(Rank slot, int pipe) {
  Address address;
  NEED(read(pipe, &address, sizeof(address)) == static_cast<ssize_t>(sizeof(address)));
  init(slot, address);
  float total = 0;
  sirtaki_request request = 0;
  const sirtaki_stream stream = open_stream();
  int committed = -1;
  NEED(sirtaki_stream_committed(stream, &committed) == SIRTAKI_INVALID_ARGUMENT && committed == -1);
  NEED(sum(1, total, request) == SIRTAKI_OK && total == 4);
  if (slot == 0) {
    die_once_the_others_have_the_last_sum();
  }
  regroup();
  NEED(sirtaki_size() == 3 && sirtaki_rank() == slot - 1 && sirtaki_local_size() == 3);
  NEED(sirtaki_stream_committed(stream, &committed) == SIRTAKI_OK && committed == 0);
  NEED(sum(1, total, request) == SIRTAKI_OK && total == 3);
  if (slot == 2) {
    die_once_the_others_have_the_last_sum();
  }
  regroup();
  NEED(sirtaki_size() == 2 && sirtaki_rank() == (slot == 1 ? 0 : 1));
  NEED(sirtaki_stream_committed(stream, &committed) == SIRTAKI_INVALID_ARGUMENT);
  NEED(sum(1, total, request) == SIRTAKI_OK && total == 2);
  NEED(sirtaki_shutdown() == SIRTAKI_OK);
  NEED(sirtaki_regroup() == SIRTAKI_NOT_INITIALIZED);
  _exit(0);
}

class Losses {
 public:
  void add(std::string event) {
    const std::lock_guard lock(mutex_);
    events_.push_back(std::move(event));
    changed_.notify_all();
  }
  std::vector<std::string> wait_for(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, std::chrono::seconds(20), [&] { return events_.size() >= count; });
    return events_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> events_;
};

TEST(RegroupTest, SurvivorsOfKilledProcessesStayTheProcessesTheyAre) {
  std::array<std::array<int, 2>, kRanks> pipes{};
  std::array<pid_t, kRanks> children{};
  for (Rank slot = 0; slot < kRanks; ++slot) {  // before this process has a thread
    const auto at = static_cast<std::size_t>(slot);
    ASSERT_EQ(pipe(pipes[at].data()), 0);
    children[at] = fork();
    if (children[at] == 0) {
      child(slot, pipes[at][0]);
    }
  }
  ConfigSources sources;
  sources.program = "elastic.min = 2\n";
  hub::CoordinatorServerOptions options = hub::coordinator_options(*load_config(sources).value());
  const auto secret = rendezvous::Secret::generate().value();
  options.server.size = kRanks;
  options.server.secret = secret;
  options.server.exit_report_wait = std::chrono::seconds(20);
  Losses losses;
  hub::CoordinatorServerEvents events;
  events.on_survived = [&](const hub::Survived& survived) {
    losses.add("slot " + std::to_string(survived.slot) + ", " + std::to_string(survived.remaining) + " remain");
  };
  events.on_over = [&](const Status& why) { losses.add(std::string(code_name(why.code()))); };
  const auto server = hub::CoordinatorServer::start(std::move(options), std::move(events)).value();
  Address address;
  const std::string endpoint = "127.0.0.1:" + std::to_string(server->port());
  endpoint.copy(address.endpoint.data(), endpoint.size());
  secret.to_hex().copy(address.secret.data(), 64);
  for (const auto& pipe : pipes) {
    ASSERT_EQ(write(pipe[1], &address, sizeof(address)), static_cast<ssize_t>(sizeof(address)));
  }
  for (int ended = 0; ended < kRanks; ++ended) {
    int status = 0;
    const pid_t pid = wait(&status);
    const auto slot = static_cast<Rank>(std::ranges::find(children, pid) - children.begin());
    if (slot == 0 || slot == 2) {
      EXPECT_TRUE(WIFSIGNALED(status));
      server->report_exit(slot, "killed by signal 9 (Killed)");
    } else {
      EXPECT_EQ(status, 0) << "slot " << slot;
    }
  }
  EXPECT_EQ(losses.wait_for(3), (std::vector<std::string>{"slot 0, 3 remain", "slot 2, 2 remain", "shut down"}));
}

}  // namespace
}  // namespace sirtaki::adapters
