// Tests of programs that were built with an older or a newer sirtaki.h than the library.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <vector>

#include "adapters/c/sirtaki.h"

namespace {

// Structs of two other headers: an old one before cuda_stream, priority, ranks and similar fields, and a new one that
// appends a field to every struct, including tensors in arrays and within requests.
namespace old {
struct Tensor {
  std::uint32_t struct_size;
  void* data;
  std::int32_t dtype;
  std::int32_t device_type;
  std::int32_t device_index;
  std::int32_t ndim;
  const std::int64_t* dims;
  const std::int64_t* strides;
};
struct Request {
  std::uint32_t struct_size;
  std::int32_t op;
  const char* name;
  Tensor input;
  Tensor output;
  std::int32_t reduce_op;
  std::int32_t root;
};
struct Init {
  std::uint32_t struct_size;
  const char* options_toml;
};
struct Stream {
  std::uint32_t struct_size;
  const char* name;
  std::int32_t count;
  const char* const* names;
  const Tensor* tensors;
  const std::int32_t* order;
  std::int32_t reduce_op;
};
struct Local {
  std::uint32_t struct_size;
  const char* name;
  const char* interval;
  std::int64_t (*steps)(void*, const char*);
  void* context;
  std::int32_t count;
  const char* const* names;
  const Tensor* tensors;
};
struct LocalStep {
  std::uint32_t struct_size;
  double lr;
  double loss;
  std::int32_t has_loss;
};
struct Outcome {
  std::uint32_t struct_size;
  std::int32_t average_gradients;
  std::int32_t model_changed;
  std::int32_t reset_optimizer;
};
}  // namespace old

namespace later {
struct Tensor {
  sirtaki_tensor known;
  std::int64_t more;
};
struct Request {
  std::uint32_t struct_size;
  std::int32_t op;
  const char* name;
  Tensor input;
  Tensor output;
  std::int32_t reduce_op;
  std::int32_t root;
  double prescale;
  double postscale;
  const std::int64_t* splits;
  std::int32_t splits_count;
  std::int32_t priority;
  const std::int32_t* ranks;
  std::int32_t ranks_count;
  std::int32_t reserved;
  std::int64_t more;
};
struct Stream {
  sirtaki_stream_args known;
  const char* more;
};
struct Init {
  sirtaki_init_args known;
  const char* more;
};
struct Outcome {
  sirtaki_local_outcome known;
  std::int64_t more;
};
}  // namespace later

class OldHeader : public testing::Test {
 protected:
  void SetUp() override { ASSERT_EQ(sirtaki_init(nullptr), SIRTAKI_OK) << sirtaki_last_error(); }
  void TearDown() override { EXPECT_EQ(sirtaki_shutdown(), SIRTAKI_OK); }

  template <class Struct>
  static const auto* as(const void* given) {
    return static_cast<const Struct*>(given);
  }
  old::Tensor tensor(std::vector<float>& values) {
    return {sizeof(old::Tensor), values.data(), SIRTAKI_F32, SIRTAKI_CPU, 0, 1, &dim_, nullptr};
  }
  later::Tensor later_tensor(std::vector<float>& values) {
    return {{sizeof(later::Tensor), values.data(), SIRTAKI_F32, SIRTAKI_CPU, 0, 1, &dim_, nullptr, nullptr}, 0};
  }
  static void expect_refused(sirtaki_status status, sirtaki_status wanted, const char* words) {
    EXPECT_EQ(status, wanted);
    EXPECT_NE(std::string(sirtaki_last_error()).find(words), std::string::npos) << sirtaki_last_error();
  }

  std::vector<float> one_{1, 2, 3};
  std::vector<float> two_{4, 5, 6};
  std::int64_t dim_ = 3;
};

TEST_F(OldHeader, RequestsOfOlderProgramsRun) {
  const old::Tensor first = tensor(one_);
  const old::Tensor second = tensor(two_);
  const old::Request both[2] = {
      {sizeof(old::Request), SIRTAKI_ALLREDUCE, "a", first, first, SIRTAKI_SUM, 0},
      {sizeof(old::Request), SIRTAKI_BROADCAST, "b", second, second, SIRTAKI_SUM, 0},
  };
  sirtaki_request requests[2] = {};
  ASSERT_EQ(sirtaki_submit_group(as<sirtaki_request_args>(both), 2, requests), SIRTAKI_OK) << sirtaki_last_error();
  for (const sirtaki_request request : requests) {
    EXPECT_EQ(sirtaki_wait(request, 10000), SIRTAKI_OK) << sirtaki_last_error();
    sirtaki_release(request);
  }
  EXPECT_EQ(one_, (std::vector<float>{1, 2, 3})) << "no scale is a scale of 1";
}

TEST_F(OldHeader, ResultsFitIntoTheirTensors) {
  const old::Tensor input = tensor(one_);
  const old::Request gather{sizeof(old::Request), SIRTAKI_ALLGATHER, "g", input, {}, SIRTAKI_SUM, 0};
  sirtaki_request request = 0;
  ASSERT_EQ(sirtaki_submit(as<sirtaki_request_args>(&gather), &request), SIRTAKI_OK) << sirtaki_last_error();
  ASSERT_EQ(sirtaki_wait(request, 10000), SIRTAKI_OK);
  struct {
    old::Tensor result{};
    std::uint64_t behind = 0x5a5a5a5a5a5a5a5a;
  } memory;
  memory.result.struct_size = sizeof(memory.result);
  ASSERT_EQ(sirtaki_result(request, reinterpret_cast<sirtaki_tensor*>(&memory.result), nullptr), SIRTAKI_OK)
      << sirtaki_last_error();
  EXPECT_EQ(memory.behind, 0x5a5a5a5a5a5a5a5aU);
  ASSERT_EQ(memory.result.dims[0], 3);
  const auto* values = static_cast<const float*>(memory.result.data);
  EXPECT_EQ(std::vector<float>(values, values + 3), one_);
  sirtaki_release(request);
}

TEST_F(OldHeader, StreamsOfOlderProgramsReadTheirArrays) {
  const old::Tensor tensors[2] = {tensor(one_), tensor(two_)};
  const char* names[2] = {"a", "b"};
  const old::Stream open{sizeof(old::Stream), "old", 2, names, tensors, nullptr, SIRTAKI_AVERAGE};
  sirtaki_stream stream = 0;
  ASSERT_EQ(sirtaki_stream_open(as<sirtaki_stream_args>(&open), &stream), SIRTAKI_OK) << sirtaki_last_error();
  for (int i = 0; i < 2; ++i) {
    ASSERT_EQ(sirtaki_stream_ready(stream, i, as<sirtaki_tensor>(&tensors[i]), 0), SIRTAKI_OK) << sirtaki_last_error();
  }
  ASSERT_EQ(sirtaki_stream_finish(stream), SIRTAKI_OK);
  EXPECT_EQ(sirtaki_stream_wait(stream, 10000), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(two_, (std::vector<float>{4, 5, 6}));
  EXPECT_EQ(sirtaki_stream_close(stream), SIRTAKI_OK);
}

TEST_F(OldHeader, LocalUpdatesOfOlderPrograms) {
  const old::Tensor tensors[2] = {tensor(one_), tensor(two_)};
  const char* names[2] = {"a", "b"};
  const old::Local open{sizeof(old::Local), "old", "4", nullptr, nullptr, 2, names, tensors};
  sirtaki_local local = nullptr;
  ASSERT_EQ(sirtaki_local_open(as<sirtaki_local_args>(&open), &local), SIRTAKI_OK) << sirtaki_last_error();
  struct {
    old::Outcome outcome{};
    std::uint64_t behind = 0x5a5a5a5a5a5a5a5a;
  } memory;
  memory.outcome.struct_size = sizeof(memory.outcome);
  auto* outcome = reinterpret_cast<sirtaki_local_outcome*>(&memory.outcome);
  ASSERT_EQ(sirtaki_local_start(local, outcome), SIRTAKI_OK) << sirtaki_last_error();
  const old::LocalStep step{sizeof(old::LocalStep), 0.1, 1.0, 1};
  EXPECT_EQ(sirtaki_local_step(local, as<sirtaki_local_step_args>(&step), outcome), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(memory.behind, 0x5a5a5a5a5a5a5a5aU);
  later::Outcome larger{};
  larger.more = 7;
  larger.known.struct_size = sizeof(larger);
  EXPECT_EQ(sirtaki_local_drain(local, &larger.known), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(larger.more, 0) << "a field that the library does not know says nothing";
  sirtaki_local_close(local);
}

TEST_F(OldHeader, NewerProgramsRunWhereTheyUseNothingNew) {
  later::Request request{};
  request.struct_size = sizeof(request);
  request.op = SIRTAKI_ALLREDUCE;
  request.name = "n";
  request.input = request.output = later_tensor(one_);
  request.prescale = 1.0;
  request.postscale = 2.0;
  sirtaki_request id = 0;
  ASSERT_EQ(sirtaki_submit(as<sirtaki_request_args>(&request), &id), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_wait(id, 10000), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(one_, (std::vector<float>{2, 4, 6}));
  sirtaki_release(id);

  const later::Tensor tensors[2] = {later_tensor(one_), later_tensor(two_)};
  const char* names[2] = {"a", "b"};
  later::Stream open{};
  open.known.struct_size = sizeof(open);
  open.known.name = "later";
  open.known.count = 2;
  open.known.names = names;
  open.known.tensors = &tensors[0].known;
  open.known.reduce_op = SIRTAKI_SUM;
  open.known.prescale = open.known.postscale = 1.0;
  sirtaki_stream stream = 0;
  ASSERT_EQ(sirtaki_stream_open(&open.known, &stream), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_stream_close(stream), SIRTAKI_OK);

  open.more = "news";
  expect_refused(sirtaki_stream_open(&open.known, &stream), SIRTAKI_UNSUPPORTED, "sirtaki_stream_args");
  request.more = 1;
  expect_refused(sirtaki_submit(as<sirtaki_request_args>(&request), &id), SIRTAKI_UNSUPPORTED, "newer version");
  request.more = 0;
  request.output.more = 1;
  expect_refused(sirtaki_submit(as<sirtaki_request_args>(&request), &id), SIRTAKI_UNSUPPORTED, "sirtaki_tensor");
}

TEST_F(OldHeader, SizesThatCannotBeAreRefused) {
  const old::Tensor input = tensor(one_);
  old::Request request{sizeof(old::Request), SIRTAKI_ALLREDUCE, "r", input, input, SIRTAKI_SUM, 0};
  sirtaki_request id = 0;
  request.struct_size = 0;
  expect_refused(sirtaki_submit(as<sirtaki_request_args>(&request), &id), SIRTAKI_INVALID_ARGUMENT, "struct_size is 0");
  request.struct_size = sizeof(old::Request);
  request.input.struct_size = sizeof(sirtaki_tensor);
  expect_refused(sirtaki_submit(as<sirtaki_request_args>(&request), &id), SIRTAKI_INVALID_ARGUMENT,
                 "too small for two");
  request.input.struct_size = 1U << 30U;
  expect_refused(sirtaki_submit(as<sirtaki_request_args>(&request), &id), SIRTAKI_INVALID_ARGUMENT, "struct_size");
  request.input.struct_size = sizeof(old::Tensor);
  request.output.struct_size = 16;
  expect_refused(sirtaki_submit(as<sirtaki_request_args>(&request), &id), SIRTAKI_INVALID_ARGUMENT,
                 "output.struct_size");
  old::Tensor tensors[2] = {tensor(one_), tensor(two_)};
  tensors[1].struct_size = 0;
  const char* names[2] = {"a", "b"};
  const old::Stream open{sizeof(old::Stream), "odd", 2, names, tensors, nullptr, SIRTAKI_SUM};
  sirtaki_stream stream = 0;
  expect_refused(sirtaki_stream_open(as<sirtaki_stream_args>(&open), &stream), SIRTAKI_INVALID_ARGUMENT, "tensors[1]");
}

TEST(OldHeaderInit, OlderProgramsOpenASession) {
  const old::Init args{sizeof(old::Init), "control.stuck_after = \"3s\"\n"};
  ASSERT_EQ(sirtaki_init(reinterpret_cast<const sirtaki_init_args*>(&args)), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_shutdown(), SIRTAKI_OK);
  later::Init larger{};
  larger.known.struct_size = sizeof(larger);
  ASSERT_EQ(sirtaki_init(&larger.known), SIRTAKI_OK) << sirtaki_last_error();
  EXPECT_EQ(sirtaki_shutdown(), SIRTAKI_OK);
  larger.more = "news";
  EXPECT_EQ(sirtaki_init(&larger.known), SIRTAKI_UNSUPPORTED);
}

}  // namespace
