// Tests of GPU tensors through the C interface, with a fake CUDA plug-in.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <string>
#include <utility>
#include <vector>

#include "adapters/c/sirtaki.h"

namespace {

sirtaki_tensor on_gpu(std::vector<float>& values, const std::int64_t& dim, int index = 0) {
  sirtaki_tensor out{};
  out.struct_size = sizeof(out);
  out.data = values.data();
  out.dtype = SIRTAKI_F32;
  out.device_type = SIRTAKI_CUDA;
  out.device_index = index;
  out.ndim = 1;
  out.dims = &dim;
  return out;
}

sirtaki_status run(int op, const sirtaki_tensor& tensor, double prescale = 1.0) {
  sirtaki_request_args args{};
  args.struct_size = sizeof(args);
  args.op = op;
  args.name = "gradient";
  args.input = tensor;
  if (op == SIRTAKI_ALLREDUCE) {
    args.output = tensor;
  }
  args.prescale = prescale;
  args.postscale = 1.0;
  sirtaki_request request = 0;
  if (const sirtaki_status status = sirtaki_submit(&args, &request); status != SIRTAKI_OK) {
    return status;
  }
  const sirtaki_status status = sirtaki_wait(request, 10000);
  if (op == SIRTAKI_ALLGATHER && status == SIRTAKI_OK) {
    sirtaki_tensor result{};
    result.struct_size = sizeof(result);
    EXPECT_EQ(sirtaki_result(request, &result, nullptr), SIRTAKI_OK) << sirtaki_last_error();
    EXPECT_EQ(result.device_type, SIRTAKI_CPU);
    EXPECT_NE(result.data, tensor.data);
  }
  sirtaki_release(request);
  return status;
}

// The order of the tests matters: a process keeps the libraries that it has loaded.
TEST(CudaAbi, WithoutThePlugInTheCpuGoesOn) {
  ASSERT_EQ(sirtaki_init(nullptr), SIRTAKI_OK) << sirtaki_last_error();
  std::vector<float> values{1, 2, 3};
  const std::int64_t dim = 3;
  sirtaki_tensor tensor = on_gpu(values, dim);
  for (int i = 0; i < 2; ++i) {
    EXPECT_EQ(run(SIRTAKI_ALLREDUCE, tensor), SIRTAKI_UNAVAILABLE);
    EXPECT_NE(std::string(sirtaki_last_error()).find("tensor 'gradient' is on cuda:0: the CUDA plug-in"),
              std::string::npos)
        << sirtaki_last_error();
  }
  tensor.device_type = SIRTAKI_CPU;
  EXPECT_EQ(run(SIRTAKI_ALLREDUCE, tensor, 2.0), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(values, (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(sirtaki_shutdown(), SIRTAKI_OK);
}

TEST(CudaAbi, NcclIsThereWhereBothLibrariesAre) {
  ASSERT_EQ(setenv("SIRTAKI_DEVICE_NCCL_LIBRARY", FAKE_NCCL, 1), 0);
  EXPECT_EQ(sirtaki_nccl_version(), 0) << "no tensor on a GPU travels without the plug-in";
  ASSERT_NE(dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  EXPECT_EQ(sirtaki_nccl_version(), 22809);
  ASSERT_EQ(setenv("SIRTAKI_DEVICE_NCCL_LIBRARY", OLD_NCCL, 1), 0);
  EXPECT_EQ(sirtaki_nccl_version(), 0) << "too old";
  EXPECT_NE(std::string(sirtaki_last_error()).find("older than 2.18.1"), std::string::npos) << sirtaki_last_error();
  ASSERT_EQ(unsetenv("SIRTAKI_DEVICE_NCCL_LIBRARY"), 0);
}

using Counts = std::pair<int, int>;  // numbers of recorded events and of queued waits

TEST(CudaAbi, WithItTensorsOfTheGpuTravel) {
  void* const fake = dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL);
  ASSERT_NE(fake, nullptr) << dlerror();
  const auto counts_of =
      [ask = reinterpret_cast<void (*)(void*, int*, int*)>(dlsym(fake, "fake_cuda_counts"))](void* stream) {
        Counts counts;
        ask(stream, &counts.first, &counts.second);
        return counts;
      };
  int streams[2];  // only their addresses matter
  void* const one = &streams[0];
  void* const two = &streams[1];
  ASSERT_EQ(sirtaki_init(nullptr), SIRTAKI_OK) << sirtaki_last_error();
  std::vector<float> values{1, 2, 3};
  const std::int64_t dim = 3;
  sirtaki_tensor tensor = on_gpu(values, dim);
  tensor.cuda_stream = one;
  EXPECT_EQ(run(SIRTAKI_ALLREDUCE, tensor, 2.0), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(values, (std::vector<float>{2, 4, 6}));
  EXPECT_EQ(counts_of(one), Counts(1, 1)) << "waited for, and made to wait for the result";
  EXPECT_EQ(run(SIRTAKI_ALLGATHER, tensor), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(counts_of(one), Counts(2, 1)) << "the result is not on the GPU";
  EXPECT_EQ(run(SIRTAKI_ALLREDUCE, on_gpu(values, dim, 1)), SIRTAKI_INVALID_ARGUMENT);

  const char* name = "weight";
  sirtaki_stream_args args{};
  args.struct_size = sizeof(args);
  args.name = "optimizer";
  args.count = 1;
  args.names = &name;
  args.tensors = &tensor;
  args.reduce_op = SIRTAKI_AVERAGE;
  args.prescale = 0.5;
  args.postscale = 1.0;
  sirtaki_stream stream = 0;
  ASSERT_EQ(sirtaki_stream_open(&args, &stream), SIRTAKI_OK) << sirtaki_last_error();
  tensor.cuda_stream = two;
  for (int step = 0; step < 2; ++step) {
    ASSERT_EQ(sirtaki_stream_ready(stream, 0, &tensor, 0), SIRTAKI_OK) << sirtaki_last_error();
    ASSERT_EQ(sirtaki_stream_finish(stream), SIRTAKI_OK);
    ASSERT_EQ(sirtaki_stream_wait(stream, 10000), SIRTAKI_OK) << sirtaki_last_error();
  }
  EXPECT_EQ(values, (std::vector<float>{0.5, 1, 1.5}));
  EXPECT_EQ(counts_of(two).first, 2);
  EXPECT_LE(counts_of(two).second, 2) << "a result that is there before the wait needs none";
  EXPECT_EQ(counts_of(one), Counts(2, 1));
  EXPECT_EQ(counts_of(nullptr), Counts());
  EXPECT_NE(std::string(sirtaki_stats_json()).find("\"device.fetched_bytes\":48"), std::string::npos)
      << sirtaki_stats_json();
  EXPECT_EQ(sirtaki_shutdown(), SIRTAKI_OK);
}

TEST(CudaAbi, AGpuThatIsNotThereIsNamed) {
  ASSERT_NE(dlopen(FAKE_CUDA, RTLD_NOW | RTLD_LOCAL), nullptr) << dlerror();
  ASSERT_EQ(sirtaki_init(nullptr), SIRTAKI_OK) << sirtaki_last_error();
  std::vector<float> values{1};
  const std::int64_t dim = 1;
  EXPECT_EQ(run(SIRTAKI_ALLREDUCE, on_gpu(values, dim, 3)), SIRTAKI_UNAVAILABLE);
  EXPECT_NE(std::string(sirtaki_last_error()).find("there is no CUDA device 3; there are 1"), std::string::npos)
      << sirtaki_last_error();
  EXPECT_EQ(sirtaki_shutdown(), SIRTAKI_OK);
}

TEST(CudaAbi, LocalUpdatesWantMemoryOfTheHost) {
  ASSERT_EQ(sirtaki_init(nullptr), SIRTAKI_OK) << sirtaki_last_error();
  std::vector<float> values{1};
  const std::int64_t dim = 1;
  const sirtaki_tensor tensor = on_gpu(values, dim);
  const char* name = "weight";
  sirtaki_local_args args{};
  args.struct_size = sizeof(args);
  args.name = "training";
  args.interval = "4";
  args.count = 1;
  args.names = &name;
  args.tensors = &tensor;
  args.outer = SIRTAKI_OUTER_PRESET;
  sirtaki_local local = nullptr;
  EXPECT_EQ(sirtaki_local_open(&args, &local), SIRTAKI_UNSUPPORTED);
  EXPECT_NE(std::string(sirtaki_last_error()).find("weight is on cuda:0"), std::string::npos) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_shutdown(), SIRTAKI_OK);
}

}  // namespace
