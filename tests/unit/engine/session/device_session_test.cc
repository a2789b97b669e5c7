// Session with a fake GPU: results, errors and losses of the device as the program of one rank sees them.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <future>
#include <string>
#include <thread>
#include <vector>

#include "runtime/base/check.h"
#include "runtime/base/config/config_load.h"
#include "runtime/engine/session/session.h"
#include "tests/unit/device/fake_device.h"

namespace sirtaki::engine {
namespace {

using device::testing::FakeDevice;
using Owner = std::unique_ptr<device::DeviceApi>;

constexpr auto kPatience = std::chrono::seconds(20);

class DeviceSession : public ::testing::Test {
 protected:
  // The fake device runs queued work only when the test calls it.
  DeviceSession() {
    auto device = std::make_unique<FakeDevice>();
    gpu_ = device.get();
    program_ = gpu_->make_stream(device::Priority::kNormal)->native;
    device->hold();
    seen_ = device->watch();
    owner_ = std::make_shared<Owner>(std::move(device));
    open([this](int index) -> Result<Owner> {
      opened_.push_back(index);
      static_cast<void>((*owner_)->enter_thread());
      return std::move(*owner_);
    });
  }
  ~DeviceSession() override {
    session_.reset();
    EXPECT_EQ(seen_->breaches, std::vector<std::string>()) << "calls from threads that the device does not know";
  }

  void open(std::function<Result<Owner>(int)> open_device) {
    JobSpec job;
    job.open_device = std::move(open_device);
    ConfigSources sources;
    sources.program = "log.level = \"error\"\n";
    auto config = load_config(sources);
    auto session = Session::open(*config, std::move(job), {});
    SRT_CHECK(session);
    session_ = std::move(*session);
  }

  TensorView view(std::vector<float>& tensor, int index = 0) const {
    return {reinterpret_cast<std::byte*>(tensor.data()),
            static_cast<std::int64_t>(tensor.size()),
            DType::kF32,
            {DeviceType::kCuda, index}};
  }
  OpSpec allreduce(std::vector<float>& tensor, int index = 0) const {
    OpSpec spec;
    spec.name = "gradient";
    spec.input = spec.output = view(tensor, index);
    spec.dims = {spec.input.numel};
    spec.cuda_stream = program_;
    return spec;
  }
  Result<std::vector<RequestId>> submit(OpSpec spec) {
    std::vector<OpSpec> ops;
    ops.push_back(std::move(spec));
    return session_->submit(std::move(ops));
  }
  Result<StreamId> open_stream(int index = 0, const std::string& codec = {}) {
    StreamSpec spec;
    spec.codec = codec;
    spec.name = "training";
    StreamTensor weight;
    weight.name = "weight";
    weight.dims = {3};
    weight.device = {DeviceType::kCuda, index};
    spec.tensors.push_back(weight);
    return session_->open_stream(spec, kPatience);
  }

  FakeDevice* gpu_ = nullptr;
  void* program_ = nullptr;
  std::shared_ptr<Owner> owner_;
  std::vector<int> opened_;
  std::shared_ptr<const FakeDevice::Seen> seen_;
  std::unique_ptr<Session> session_;
};

TEST_F(DeviceSession, AnOperationWaitsForTheGpu) {
  std::vector<float> tensor = {1, 2, 3};
  FakeDevice::queue(program_, [&] { tensor[0] = 7; });
  OpSpec spec = allreduce(tensor);
  spec.prescale = 2;
  const auto requests = submit(std::move(spec));
  ASSERT_TRUE(requests) << requests.status().to_string();
  EXPECT_FALSE(session_->wait(requests->front(), Duration(0)).has_value());
  gpu_->run();
  const auto status = session_->wait(requests->front(), kPatience);
  ASSERT_TRUE(status);
  EXPECT_TRUE(status->ok()) << status->to_string();
  EXPECT_EQ(tensor, (std::vector<float>{14, 4, 6}));
  EXPECT_NE(session_->stats_json().find("\"device.fetched_bytes\":12"), std::string::npos) << session_->stats_json();
}

TEST_F(DeviceSession, WhatTheProgramQueuesLaterIsNotWaitedFor) {
  std::vector<float> tensor = {1, 2, 3};
  std::vector<float> gradient = {4, 5, 6};
  const auto stream = open_stream();
  ASSERT_TRUE(stream);
  // A completion function of the program blocks the loop.
  const auto first = submit(allreduce(tensor));
  ASSERT_TRUE(first);
  std::promise<void> begun;
  std::promise<void> go_on;
  ASSERT_TRUE(session_
                  ->on_done(first->front(),
                            [&] {
                              begun.set_value();
                              go_on.get_future().wait();
                            })
                  .ok());
  gpu_->run();
  begun.get_future().wait();
  OpSpec spec = allreduce(tensor);
  spec.name = "another";
  const auto second = submit(std::move(spec));
  ASSERT_TRUE(second);
  ASSERT_TRUE(session_->stream(*stream).ready(0, view(gradient), false, program_).ok());
  ASSERT_TRUE(session_->stream(*stream).finish().ok());
  std::atomic<bool> may_end{false};
  FakeDevice::queue(
      program_, [] {}, [&] { return may_end.load(); });
  go_on.set_value();
  const auto status = session_->wait(second->front(), kPatience);
  EXPECT_TRUE(status && status->ok());
  const auto step = session_->stream(*stream).wait(kPatience);
  EXPECT_TRUE(step && step->ok());
  may_end = true;
  gpu_->run();
}

TEST_F(DeviceSession, TheFirstGpuIsTheOne) {
  std::vector<float> tensor(3);
  gpu_->run();
  const auto requests = submit(allreduce(tensor, 2));
  ASSERT_TRUE(requests);
  EXPECT_TRUE(session_->wait(requests->front(), kPatience)->ok());
  const Status other = submit(allreduce(tensor, 1)).status();
  EXPECT_EQ(other.code(), Code::kInvalidArgument);
  EXPECT_EQ(other.text(),
            "tensor 'gradient' is on cuda:1, and rank 0 works with cuda:2; a "
            "rank has one GPU: choose it with "
            "torch.cuda.set_device(local_rank()) before anything else");
  EXPECT_EQ(open_stream(0).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(opened_, std::vector<int>{2});
}

TEST_F(DeviceSession, AGpuThatCannotBeOpenedIsAnErrorEachTime) {
  session_->close();
  int asked = 0;
  open([&](int index) -> Result<Owner> {
    ++asked;
    return unavailable("there is no CUDA device " + std::to_string(index));
  });
  std::vector<float> tensor(3);
  for (int i = 0; i < 2; ++i) {
    const Status status = submit(allreduce(tensor)).status();
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_EQ(status.text(), "tensor 'gradient' is on cuda:0: there is no CUDA device 0");
  }
  EXPECT_EQ(asked, 1);
  EXPECT_EQ(submit(allreduce(tensor, 1)).status().text(), "tensor 'gradient' is on cuda:1: there is no CUDA device 1");
  EXPECT_EQ(asked, 2);
  OpSpec on_host = allreduce(tensor);
  on_host.input.device = on_host.output.device = {};
  const auto requests = submit(std::move(on_host));
  ASSERT_TRUE(requests);
  EXPECT_TRUE(session_->wait(requests->front(), kPatience)->ok()) << "the CPU goes on";
}

TEST_F(DeviceSession, InputAndOutputAreOnOneDevice) {
  std::vector<float> tensor(3);
  OpSpec spec = allreduce(tensor);
  spec.output.device = {};
  EXPECT_EQ(submit(std::move(spec)).status().code(), Code::kInvalidArgument);
}

TEST_F(DeviceSession, ALostGpuEndsTheSession) {
  std::vector<float> tensor(3);
  const auto requests = submit(allreduce(tensor));
  ASSERT_TRUE(requests);
  gpu_->break_down(unavailable("an illegal address"));
  const auto status = session_->wait(requests->front(), kPatience);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->text(), "rank 0 has lost its GPU, cuda:0: an illegal address");
  std::vector<float> here(3);
  OpSpec on_host = allreduce(here);
  on_host.input.device = on_host.output.device = {};
  const auto later = submit(std::move(on_host));
  ASSERT_TRUE(later);
  EXPECT_EQ(session_->wait(later->front(), kPatience)->text(), "rank 0 has lost its GPU, cuda:0: an illegal address");
}

TEST_F(DeviceSession, AStepIsReadyWhenTheGpuIs) {
  std::vector<float> tensor = {1, 2, 3};
  const auto stream = open_stream();
  ASSERT_TRUE(stream) << stream.status().to_string();
  FakeDevice::queue(program_, [&] { tensor[2] = 30; });
  ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
  ASSERT_TRUE(session_->stream(*stream).finish().ok());
  EXPECT_FALSE(session_->stream(*stream).wait(std::chrono::milliseconds(20)).has_value());
  gpu_->run();
  const auto status = session_->stream(*stream).wait(kPatience);
  ASSERT_TRUE(status);
  EXPECT_TRUE(status->ok()) << status->to_string();
  EXPECT_EQ(tensor, (std::vector<float>{1, 2, 30}));
  std::vector<float> here(3);
  TensorView moved = view(here);
  moved.device = {};
  const Status other = session_->stream(*stream).ready(0, moved, false);
  EXPECT_EQ(other.code(), Code::kInvalidArgument);
  EXPECT_EQ(other.text(),
            "tensor 'weight' of stream 'training' is on cpu on "
            "rank 0 but was registered on cuda:0; create "
            "the optimizer after the model has moved");
}

TEST_F(DeviceSession, AResultReturnsBeforeTheStepIsWaitedFor) {
  std::vector<float> tensor = {1, 2, 3};
  gpu_->run();
  const auto stream = open_stream();
  ASSERT_TRUE(stream);
  ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
  ASSERT_TRUE(session_->stream(*stream).finish().ok());
  const auto until = std::chrono::steady_clock::now() + kPatience;
  const auto returned = [&] {
    return session_->stats_json().find("\"device.returned_bytes\":12") != std::string::npos;
  };
  while (!returned() && std::chrono::steady_clock::now() < until) {
    std::this_thread::yield();
  }
  EXPECT_TRUE(returned());
  const auto status = session_->stream(*stream).wait(kPatience);
  EXPECT_TRUE(status && status->ok());
}

TEST_F(DeviceSession, ATensorOfAnotherSizeIsRefusedUnread) {
  std::vector<float> tensor = {1, 2};
  gpu_->run();
  const auto stream = open_stream();
  ASSERT_TRUE(stream);
  ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
  ASSERT_TRUE(session_->stream(*stream).finish().ok());
  const auto status = session_->stream(*stream).wait(kPatience);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->code(), Code::kMismatch) << status->to_string();
  EXPECT_NE(session_->stats_json().find("\"device.fetched_bytes\":0"), std::string::npos) << session_->stats_json();
}

TEST_F(DeviceSession, AStepEndsWithItsGpu) {
  std::vector<float> tensor = {1, 2, 3};
  const auto stream = open_stream();
  ASSERT_TRUE(stream);
  ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
  ASSERT_TRUE(session_->stream(*stream).finish().ok());
  gpu_->break_down(unavailable("an illegal address"));
  const auto status = session_->stream(*stream).wait(kPatience);
  ASSERT_TRUE(status);
  EXPECT_EQ(status->text(), "rank 0 has lost its GPU, cuda:0: an illegal address");
}

TEST_F(DeviceSession, AStepIsGivenUpBeforeTheGpuComesToIt) {
  std::vector<float> tensor = {1, 2, 3};
  const auto stream = open_stream();
  ASSERT_TRUE(stream);
  for (const bool told : {true, false}) {
    gpu_->hold();
    ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
    ASSERT_TRUE(session_->stream(*stream).finish().ok());
    std::promise<void> over;
    if (told) {
      ASSERT_TRUE(session_->stream(*stream).on_done([&] { over.set_value(); }).ok());
    } else {
      EXPECT_FALSE(session_->stream(*stream).wait(Duration(0)).has_value());
    }
    auto abort = std::async(std::launch::async, [&] { return session_->stream(*stream).abort("no more"); });
    if (told) {
      EXPECT_EQ(over.get_future().wait_for(kPatience), std::future_status::ready) << "the GPU is waited for";
      const auto status = session_->stream(*stream).wait(kPatience);
      EXPECT_TRUE(status && status->text() == "rank 0 gave the step up: no more");
    }
    EXPECT_NE(abort.wait_for(std::chrono::milliseconds(20)), std::future_status::ready)
        << "the GPU still reads the tensor";
    gpu_->run();
    ASSERT_EQ(abort.wait_for(kPatience), std::future_status::ready);
    EXPECT_TRUE(abort.get().ok());
    ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
    ASSERT_TRUE(session_->stream(*stream).finish().ok());
    const auto next = session_->stream(*stream).wait(kPatience);
    ASSERT_TRUE(next);
    EXPECT_TRUE(next->ok()) << next->to_string();
  }
}

TEST_F(DeviceSession, AStreamIsClosedBeforeTheGpuComesToIt) {
  std::vector<float> tensor = {1, 2, 3};
  const auto stream = open_stream();
  ASSERT_TRUE(stream);
  ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
  ASSERT_TRUE(session_->stream(*stream).finish().ok());
  std::promise<void> over;
  ASSERT_TRUE(session_->stream(*stream).on_done([&] { over.set_value(); }).ok());
  auto close = std::async(std::launch::async, [&] { return session_->stream(*stream).close(); });
  EXPECT_EQ(over.get_future().wait_for(kPatience), std::future_status::ready) << "the GPU is waited for";
  EXPECT_NE(close.wait_for(std::chrono::milliseconds(20)), std::future_status::ready)
      << "the GPU still reads the tensor";
  gpu_->run();
  ASSERT_EQ(close.wait_for(kPatience), std::future_status::ready);
  EXPECT_TRUE(close.get().ok());
}

TEST_F(DeviceSession, JoinComesAfterTheStepsBeforeIt) {
  std::vector<float> tensor = {1, 2, 3};
  const auto stream = open_stream();
  ASSERT_TRUE(stream);
  ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
  ASSERT_TRUE(session_->stream(*stream).finish().ok());
  EXPECT_FALSE(session_->stream(*stream).wait(Duration(0)).has_value());
  EXPECT_FALSE(session_->join(std::chrono::milliseconds(20)).has_value());
  gpu_->run();
  const auto status = session_->stream(*stream).wait(kPatience);
  ASSERT_TRUE(status);
  EXPECT_TRUE(status->ok()) << status->to_string();
  EXPECT_TRUE(session_->join(kPatience).has_value());
}

TEST_F(DeviceSession, MemoryOfTheLastResultIsReleased) {
  std::vector<float> tensor = {1, 2, 3};
  gpu_->be_slow();
  const auto requests = submit(allreduce(tensor));
  ASSERT_TRUE(requests);
  const auto status = session_->wait(requests->front(), kPatience);
  ASSERT_TRUE(status);
  EXPECT_TRUE(status->ok());
  session_.reset();
  EXPECT_EQ(seen_->left, 1) << "the program's stream";
}

// The kernel of the program never ends, and releasing memory would wait for it.
TEST_F(DeviceSession, AGpuThatHangsDoesNotBlockTheEnd) {
  gpu_->run();
  std::vector<float> tensor = {1, 2, 3};
  const auto stream = open_stream(0, "group_topk:min=0,ndim=0,wire=gather");
  ASSERT_TRUE(stream) << stream.status().to_string();
  const int calls = gpu_->device_memory_calls();
  EXPECT_GT(calls, 0);
  FakeDevice::queue(
      program_, [] {}, [] { return false; });
  const auto requests = submit(allreduce(tensor));
  ASSERT_TRUE(requests);
  ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
  ASSERT_TRUE(session_->stream(*stream).finish().ok());
  session_->close();
  EXPECT_EQ(session_->wait(requests->front(), kPatience)->code(), Code::kShutdown);
  session_.reset();
  EXPECT_EQ(seen_->stuck, 0);
}

// Nothing of the runtime is on the device, but releasing memory waits for the program's kernel, too.
TEST_F(DeviceSession, AKernelOfTheProgramThatHangsDoesNotBlockTheEnd) {
  gpu_->run();
  std::vector<float> tensor = {1, 2, 3};
  ASSERT_TRUE(open_stream(0, "group_topk:min=0,ndim=0,wire=gather"));
  EXPECT_GT(gpu_->device_memory_calls(), 0);
  const auto requests = submit(allreduce(tensor));
  ASSERT_TRUE(requests);
  EXPECT_TRUE(session_->wait(requests->front(), kPatience)->ok());
  FakeDevice::queue(
      program_, [] {}, [] { return false; });
  session_->close();
  session_.reset();
  EXPECT_EQ(seen_->stuck, 0);
}

TEST_F(DeviceSession, MemoryOfAFetchThatIsGivenUpIsReleased) {
  std::vector<float> tensor = {1, 2, 3};
  const auto requests = submit(allreduce(tensor));
  ASSERT_TRUE(requests);
  gpu_->be_slow();
  session_->close();
  session_.reset();
  EXPECT_EQ(seen_->left, 1) << "the program's stream";
  EXPECT_EQ(seen_->stuck, 0);
}

TEST_F(DeviceSession, TheEndOfTheSessionEndsWhatIsFetched) {
  std::vector<float> tensor(3);
  const auto requests = submit(allreduce(tensor));
  const auto stream = open_stream();
  ASSERT_TRUE(requests);
  ASSERT_TRUE(stream);
  ASSERT_TRUE(session_->stream(*stream).ready(0, view(tensor), false, program_).ok());
  ASSERT_TRUE(session_->stream(*stream).finish().ok());
  session_->close();
  EXPECT_EQ(session_->wait(requests->front(), kPatience)->code(), Code::kShutdown);
}

TEST_F(DeviceSession, OperationsWithoutNamesKeepTheirOrder) {
  std::vector<float> there(3);
  std::vector<float> here(3);
  OpSpec first = allreduce(there);
  first.name.clear();
  OpSpec second = allreduce(here);
  second.name.clear();
  second.input.device = second.output.device = {};
  const auto one = submit(std::move(first));
  const auto two = submit(std::move(second));
  ASSERT_TRUE(one);
  ASSERT_TRUE(two);
  EXPECT_FALSE(session_->wait(two->front(), std::chrono::milliseconds(20)).has_value()) << "its number is the next";
  gpu_->run();
  EXPECT_TRUE(session_->wait(one->front(), kPatience)->ok());
  EXPECT_TRUE(session_->wait(two->front(), kPatience)->ok());
}

}  // namespace
}  // namespace sirtaki::engine
