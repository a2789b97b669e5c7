#include "runtime/device/cuda_calls.h"

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "tests/unit/device/fake_cuda/cuda_runtime_api.h"

namespace sirtaki::device::cuda {
namespace {

using fake::cuda;

class CudaCallsTest : public ::testing::Test {
 protected:
  CudaCallsTest() { cuda() = {}; }
  ~CudaCallsTest() override { cuda() = {}; }

  const DeviceCalls& calls_ = *sirtaki_cuda_device();
};

TEST_F(CudaCallsTest, ThreadsAreKeptOutOfCaptures) {
  EXPECT_EQ(calls_.version, kCallsVersion);
  EXPECT_EQ(calls_.enter_thread(2), 0);
  EXPECT_EQ(cuda().device, 2);
  EXPECT_EQ(cuda().capture_mode, cudaStreamCaptureModeThreadLocal);
  cuda().errors["SetDevice"] = 101;
  cuda().capture_mode = -1;
  EXPECT_EQ(calls_.enter_thread(7), 101);
  EXPECT_EQ(cuda().capture_mode, -1);
}

TEST_F(CudaCallsTest, AThreadOfTheProgramIsLeftAsItWas) {
  cuda().device = 5;
  int device = -1;
  int mode = -1;
  EXPECT_EQ(calls_.visit_thread(2, &device, &mode), 0);
  EXPECT_EQ(cuda().device, 2);
  EXPECT_EQ(cuda().capture_mode, cudaStreamCaptureModeThreadLocal);
  EXPECT_EQ(device, 5);
  EXPECT_EQ(calls_.leave_thread(device, mode), 0);
  EXPECT_EQ(cuda().device, 5);
  EXPECT_EQ(cuda().capture_mode, cudaStreamCaptureModeGlobal);
  cuda().calls.clear();
  EXPECT_EQ(calls_.visit_thread(5, &device, &mode), 0);
  EXPECT_EQ(calls_.leave_thread(device, mode), 0);
  EXPECT_EQ(std::ranges::count(cuda().calls, "SetDevice"), 0) << "it is the right one";
  cuda().errors["SetDevice"] = 101;
  EXPECT_EQ(calls_.visit_thread(2, &device, &mode), 101);
}

TEST_F(CudaCallsTest, AThreadThatCannotBeEnteredOrLeftKeepsItsDevice) {
  cuda().device = 5;
  cuda().errors["ThreadExchangeStreamCaptureMode"] = 102;
  int device = -1;
  int mode = -1;
  EXPECT_EQ(calls_.visit_thread(2, &device, &mode), 102);
  EXPECT_EQ(cuda().device, 5);
  cuda().device = 2;
  EXPECT_EQ(calls_.leave_thread(5, cudaStreamCaptureModeGlobal), 102);
  EXPECT_EQ(cuda().device, 5);
}

TEST_F(CudaCallsTest, StreamsDoNotWaitForTheDefaultOne) {
  void* stream = nullptr;
  EXPECT_EQ(calls_.make_stream(true, &stream), 0);
  EXPECT_EQ(stream, &cuda());
  EXPECT_EQ(cuda().flags, cudaStreamNonBlocking);
  EXPECT_EQ(cuda().priority, -5);
  EXPECT_EQ(calls_.make_stream(false, &stream), 0);
  EXPECT_EQ(cuda().priority, 0);
  cuda().errors["DeviceGetStreamPriorityRange"] = 3;
  EXPECT_EQ(calls_.make_stream(false, &stream), 3);
  EXPECT_EQ(calls_.destroy_stream(stream), 0);
}

TEST_F(CudaCallsTest, EventsHaveNoTiming) {
  void* event = nullptr;
  EXPECT_EQ(calls_.make_event(&event), 0);
  EXPECT_EQ(event, &cuda());
  EXPECT_EQ(cuda().flags, cudaEventDisableTiming);
  EXPECT_EQ(calls_.destroy_event(event), 0);
}

TEST_F(CudaCallsTest, AnEventThatHasNotHappenedIsNoError) {
  bool done = false;
  EXPECT_EQ(calls_.query(nullptr, &done), 0);
  EXPECT_TRUE(done);
  cuda().errors["EventQuery"] = cudaErrorNotReady;
  EXPECT_EQ(calls_.query(nullptr, &done), 0);
  EXPECT_FALSE(done);
  EXPECT_EQ(cuda().calls.back(), "GetLastError") << "a sticky error would reach the next caller";
  cuda().errors["EventQuery"] = 700;
  EXPECT_EQ(calls_.query(nullptr, &done), 700);
  EXPECT_FALSE(done);
  EXPECT_EQ(cuda().calls.back(), "EventQuery") << "a real error stays visible to others";
}

TEST_F(CudaCallsTest, AnEventIsBehindAllStreamsIfTheDriverCanDoThat) {
  EXPECT_EQ(calls_.record_all(nullptr), 0);
  EXPECT_EQ(cuda().calls, std::vector<std::string>{"EventRecord"}) << "there is no driver";
  EXPECT_EQ(cuda().stream, nullptr) << "the default stream waits for others";
  void* const driver = dlopen(FAKE_DRIVER, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(driver, nullptr) << dlerror();
  auto* const recorded = reinterpret_cast<int (*)(int)>(dlsym(driver, "fake_driver_recorded"));
  cuda().calls.clear();
  EXPECT_EQ(calls_.record_all(nullptr), 0);
  EXPECT_EQ(recorded(801), 1);
  EXPECT_TRUE(cuda().calls.empty());
  cuda().errors["EventRecord"] = 700;
  EXPECT_EQ(calls_.record_all(nullptr), 700) << "if it cannot, the default stream has to do";
  EXPECT_EQ(recorded(900), 2);
  cuda().calls.clear();
  EXPECT_EQ(calls_.record_all(nullptr), 900) << "the program captures a graph";
  EXPECT_TRUE(cuda().calls.empty()) << "the default stream would meet the same capture";
  EXPECT_EQ(recorded(0), 3);
  dlclose(driver);
}

TEST_F(CudaCallsTest, AShortageOfMemoryIsNoErrorOfTheThread) {
  void* data = nullptr;
  cuda().errors["Malloc"] = kOutOfMemory;
  EXPECT_EQ(calls_.allocate_device(&data, 1), kOutOfMemory);
  EXPECT_EQ(cuda().calls.back(), "GetLastError");
  cuda().errors["HostAlloc"] = kOutOfMemory;
  cuda().calls.clear();
  EXPECT_EQ(calls_.allocate_pinned(&data, 1), kOutOfMemory);
  EXPECT_EQ(cuda().calls.back(), "GetLastError");
  cuda().errors["Malloc"] = 700;
  EXPECT_EQ(calls_.allocate_device(&data, 1), 700);
  EXPECT_EQ(cuda().calls.back(), "Malloc") << "a real error stays visible to others";
}

TEST_F(CudaCallsTest, OtherFunctionsPassResultsOn) {
  int count = 0;
  EXPECT_EQ(calls_.count_devices(&count), 0);
  EXPECT_EQ(count, 3);
  void* data = nullptr;
  EXPECT_EQ(calls_.allocate_device(&data, 1), 0);
  EXPECT_EQ(calls_.allocate_pinned(&data, 1), 0);
  EXPECT_EQ(calls_.release_device(data), 0);
  EXPECT_EQ(calls_.release_pinned(data), 0);
  EXPECT_EQ(calls_.record(nullptr, nullptr), 0);
  EXPECT_EQ(calls_.wait(nullptr, nullptr), 0);
  EXPECT_EQ(calls_.copy(nullptr, nullptr, nullptr, 1), 0);
  EXPECT_EQ(cuda().calls, (std::vector<std::string>{"GetDeviceCount", "Malloc", "HostAlloc", "Free", "FreeHost",
                                                    "EventRecord", "StreamWaitEvent", "MemcpyAsync"}));
  EXPECT_STREQ(calls_.error_text(cudaErrorNotReady), "not ready");
}

}  // namespace
}  // namespace sirtaki::device::cuda
