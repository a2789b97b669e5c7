#include "runtime/device/cuda_device.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace sirtaki::device {
namespace {

const std::string kFolder = FAKE_FOLDER;

TEST(Plugin, IsLoadedWithBothTables) {
  const auto plugin = load_plugin(kFolder + "/libfake_plugin_good.so");
  ASSERT_TRUE(plugin) << plugin.status().to_string();
  EXPECT_EQ(plugin->kernels->version, kernels::cuda::kKernelsVersion);
  EXPECT_EQ(plugin->calls->version, cuda::kCallsVersion);
}

TEST(Plugin, IsRejectedIfItsVersionDiffers) {
  for (const char* const name : {"old", "partial"}) {
    const auto plugin = load_plugin(kFolder + "/libfake_plugin_" + name + ".so");
    ASSERT_FALSE(plugin);
    EXPECT_EQ(plugin.status().code(), Code::kUnsupported) << plugin.status().to_string();
  }
}

TEST(Plugin, IfMissingIsAnErrorWithItsPath) {
  const auto plugin = load_plugin(kFolder + "/no_such_plugin.so");
  ASSERT_FALSE(plugin);
  EXPECT_EQ(plugin.status().code(), Code::kUnavailable);
  EXPECT_NE(plugin.status().text().find("no_such_plugin.so"), std::string::npos);
}

#ifdef REAL_PLUGIN
TEST(Plugin, OfThisBuildLoads) {
  const auto plugin = load_plugin(REAL_PLUGIN);
  ASSERT_TRUE(plugin) << plugin.status().to_string();
  // Opens on a machine with a GPU; elsewhere the error says why not.
  const auto device = CudaDevice::open(*plugin, 0);
  if (!device) {
    EXPECT_EQ(device.status().code(), Code::kUnavailable);
    EXPECT_NE(device.status().text().find("CUDA device"), std::string::npos) << device.status().to_string();
  }
}
#endif

// Calls of a fake plug-in, whose functions record their name and return `code`.
struct Script {
  std::vector<std::string> calls;
  int code = 0;
  bool happened = false;
};
Script* script = nullptr;

int record_call(const char* name) {
  script->calls.emplace_back(name);
  return script->code;
}

class CudaDeviceTest : public ::testing::Test {
 protected:
  CudaDeviceTest() {
    script = &script_;
    calls_.error_text = [](int code) { return code == 700 ? "illegal address" : "another error"; };
    calls_.count_devices = [](int* count) {
      *count = 2;
      return 0;
    };
    calls_.enter_thread = [](int device) { return record_call(device == 1 ? "enter 1" : "enter another"); };
    calls_.visit_thread = [](int device, int* before, int* mode) {
      *before = 4;
      *mode = 2;
      return record_call(device == 1 ? "visit 1" : "visit another");
    };
    calls_.leave_thread = [](int device, int mode) {
      return record_call(device == 4 && mode == 2 ? "leave for 4" : "leave");
    };
    calls_.make_stream = [](bool high, void** stream) {
      *stream = script;
      return record_call(high ? "high stream" : "stream");
    };
    calls_.make_event = [](void** event) {
      *event = script;
      return record_call("event");
    };
    calls_.destroy_stream = [](void*) { return record_call("destroy stream"); };
    calls_.destroy_event = [](void*) { return record_call("destroy event"); };
    calls_.allocate_device = [](void**, std::size_t) { return record_call("allocate device"); };
    calls_.allocate_pinned = [](void**, std::size_t) { return record_call("allocate pinned"); };
    calls_.release_device = [](void*) { return record_call("release device"); };
    calls_.release_pinned = [](void*) { return record_call("release pinned"); };
    calls_.record = [](void*, void*) { return record_call("record"); };
    calls_.record_all = [](void*) { return record_call("record behind all"); };
    calls_.wait = [](void*, void*) { return record_call("wait"); };
    calls_.query = [](void*, bool* done) {
      *done = script->happened;
      return record_call("query");
    };
    calls_.copy = [](void*, void*, const void*, std::size_t) { return record_call("copy"); };
    kernels_.load = [] { return kernels::cuda::Launch{record_call("load")}; };
  }
  ~CudaDeviceTest() override { script = nullptr; }

  std::unique_ptr<CudaDevice> open() {
    auto device = CudaDevice::open({&kernels_, &calls_}, 1);
    EXPECT_TRUE(device) << device.status().to_string();
    script_.calls.clear();
    return std::move(*device);
  }

  Script script_;
  cuda::DeviceCalls calls_{};
  kernels::cuda::Kernels kernels_{};
};

TEST_F(CudaDeviceTest, LoadsAllKernelsWhenItIsOpened) {
  ASSERT_TRUE(CudaDevice::open({&kernels_, &calls_}, 1));
  EXPECT_EQ(script_.calls, (std::vector<std::string>{"enter 1", "load"}));
}

TEST_F(CudaDeviceTest, OpensWithoutKernelsIfThereAreNoneForTheGpu) {
  kernels_.load = [] { return kernels::cuda::Launch{209}; };
  const auto device = CudaDevice::open({&kernels_, &calls_}, 1);
  ASSERT_TRUE(device) << device.status().to_string();
  EXPECT_NE((*device)->kernels_ready().text().find("SIRTAKI_CUDA_ARCHITECTURES"), std::string_view::npos);
  ASSERT_TRUE((*device)->make_event());
  kernels_.load = [] { return kernels::cuda::Launch{700}; };
  EXPECT_EQ(CudaDevice::open({&kernels_, &calls_}, 1).status().text(),
            "CUDA device 1: loading the kernels: illegal address");
  kernels_.load = [] { return kernels::cuda::Launch{}; };
  EXPECT_TRUE((*CudaDevice::open({&kernels_, &calls_}, 1))->kernels_ready().ok());
}

TEST_F(CudaDeviceTest, VisitRestoresTheThread) {
  const auto device = open();
  {
    const Visit visit(*device);
    EXPECT_TRUE(visit.status().ok());
  }
  EXPECT_EQ(script_.calls, (std::vector<std::string>{"visit 1", "leave for 4"}));
  script_.calls.clear();
  script_.code = 700;
  {
    const Visit visit(*device);
    EXPECT_EQ(visit.status().text(), "CUDA device 1: entering a thread of the program: illegal address");
  }
  EXPECT_EQ(script_.calls, std::vector<std::string>{"visit 1"});
}

TEST_F(CudaDeviceTest, OfAnUnknownIndexDoesNotOpen) {
  for (const int index : {-1, 2}) {
    const auto device = CudaDevice::open({&kernels_, &calls_}, index);
    ASSERT_FALSE(device);
    EXPECT_EQ(device.status().code(), Code::kUnavailable);
  }
  EXPECT_TRUE(script_.calls.empty());
}

TEST_F(CudaDeviceTest, CallsTheMatchingFunctions) {
  const auto device = open();
  EXPECT_TRUE(device->enter_thread().ok());
  const Stream stream = *device->make_stream(Priority::kHigh);
  EXPECT_EQ(stream.native, &script_);
  EXPECT_TRUE(device->make_stream(Priority::kNormal));
  const Event event = *device->make_event();
  EXPECT_TRUE(device->allocate(Place::kDevice, 8));
  EXPECT_TRUE(device->allocate(Place::kPinned, 8));
  EXPECT_TRUE(device->record(event, stream).ok());
  EXPECT_TRUE(device->record_all(event).ok());
  EXPECT_TRUE(device->wait(stream, event).ok());
  EXPECT_TRUE(device->copy(stream, nullptr, nullptr, 0).ok());
  EXPECT_FALSE(*device->done(event));
  script_.happened = true;
  EXPECT_TRUE(*device->done(event));
  device->release(Place::kDevice, nullptr);
  device->release(Place::kPinned, nullptr);
  device->destroy(event);
  device->destroy(stream);
  EXPECT_EQ(script_.calls,
            (std::vector<std::string>{"enter 1", "high stream", "stream", "event", "allocate device", "allocate pinned",
                                      "record", "record behind all", "wait", "copy", "query", "query", "release device",
                                      "release pinned", "destroy event", "destroy stream"}));
}

TEST_F(CudaDeviceTest, TellsAShortageOfMemoryFromALostDevice) {
  const auto device = open();
  script_.code = cuda::kOutOfMemory;
  EXPECT_EQ(device->allocate(Place::kDevice, 8).status().code(), Code::kExhausted);
  EXPECT_EQ(device->allocate(Place::kPinned, 8).status().code(), Code::kExhausted);
  EXPECT_EQ(device->make_event().status().code(), Code::kExhausted);
  script_.code = 700;
  EXPECT_EQ(device->make_event().status().code(), Code::kUnavailable);
}

TEST_F(CudaDeviceTest, PassesErrorsOn) {
  const auto device = open();
  script_.code = 700;
  const std::vector<Status> all = {device->enter_thread(),
                                   device->make_stream(Priority::kHigh).status(),
                                   device->make_event().status(),
                                   device->allocate(Place::kDevice, 8).status(),
                                   device->allocate(Place::kPinned, 8).status(),
                                   device->record({}, {}),
                                   device->record_all({}),
                                   device->wait({}, {}),
                                   device->done({}).status(),
                                   device->copy({}, nullptr, nullptr, 0),
                                   CudaDevice::open({&kernels_, &calls_}, 1).status()};
  for (const Status& status : all) {
    EXPECT_EQ(status.code(), Code::kUnavailable);
    EXPECT_NE(status.text().find("CUDA device 1"), std::string::npos) << status.to_string();
    EXPECT_NE(status.text().find("illegal address"), std::string::npos) << status.to_string();
  }
}

}  // namespace
}  // namespace sirtaki::device
