#include "adapters/c/convert.h"

#include <gtest/gtest.h>

#include <array>

namespace sirtaki::adapters {
namespace {

class ConvertTest : public testing::Test {
 protected:
  sirtaki_tensor tensor() {
    sirtaki_tensor out{};
    out.struct_size = sizeof(out);
    out.data = memory_.data();
    out.dtype = SIRTAKI_F32;
    out.ndim = 2;
    out.dims = dims_.data();
    return out;
  }
  sirtaki_request_args request(int op) {
    sirtaki_request_args args{};
    args.struct_size = sizeof(args);
    args.op = op;
    args.name = "weights";
    args.input = tensor();
    args.output = tensor();
    args.prescale = 1.0;
    args.postscale = 1.0;
    return args;
  }
  static void expect_refused(const Status& status, const char* word) {
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_NE(status.text().find(word), std::string_view::npos) << status.to_string();
  }

  std::array<float, 6> memory_{};
  std::array<std::int64_t, 2> dims_{2, 3};
  std::array<std::int64_t, 2> strides_{1, 2};
};

TEST_F(ConvertTest, TensorKeepsMemoryDimsAndStrides) {
  sirtaki_tensor in = tensor();
  in.strides = strides_.data();
  const auto out = to_tensor(in, Data::kNeeded, "t");
  ASSERT_TRUE(out) << out.status().to_string();
  EXPECT_EQ(out->view.numel, 6);
  EXPECT_EQ(out->view.size_bytes(), 24U);
  EXPECT_EQ(static_cast<void*>(out->view.data), memory_.data());
  EXPECT_EQ(out->dims, (std::vector<std::int64_t>{2, 3}));
  EXPECT_EQ(out->strides, (std::vector<std::int64_t>{1, 2}));
}

TEST_F(ConvertTest, ScalarAndEmptyTensorsAreValid) {
  sirtaki_tensor scalar = tensor();
  scalar.ndim = 0;
  scalar.dims = nullptr;
  EXPECT_EQ(to_tensor(scalar, Data::kNeeded, "t")->view.numel, 1);
  sirtaki_tensor empty = tensor();
  dims_ = {0, 3};
  empty.data = nullptr;
  EXPECT_EQ(to_tensor(empty, Data::kNeeded, "t")->view.numel, 0);
}

TEST_F(ConvertTest, BadTensorsAreRefusedWithTheField) {
  sirtaki_tensor bad = tensor();
  bad.struct_size = 8;
  expect_refused(to_tensor(bad, Data::kNeeded, "t").status(), "struct_size");
  bad = tensor();
  bad.ndim = -1;
  expect_refused(to_tensor(bad, Data::kNeeded, "t").status(), "ndim");
  bad = tensor();
  bad.dims = nullptr;
  expect_refused(to_tensor(bad, Data::kNeeded, "t").status(), "dims");
  for (const int dtype : {-1, 11, 256, 1 << 20}) {
    bad = tensor();
    bad.dtype = dtype;
    expect_refused(to_tensor(bad, Data::kNeeded, "t").status(), "dtype");
  }
  bad = tensor();
  bad.data = nullptr;
  expect_refused(to_tensor(bad, Data::kNeeded, "t").status(), "data");
  bad = tensor();
  bad.device_type = 7;
  expect_refused(to_tensor(bad, Data::kNeeded, "t").status(), "device_type");
  dims_ = {-2, 3};
  expect_refused(to_tensor(tensor(), Data::kNeeded, "t").status(), "dimension 0");
}

TEST_F(ConvertTest, DimensionsThatOverflowAreRefused) {
  dims_ = {std::int64_t{1} << 40, std::int64_t{1} << 40};
  expect_refused(to_tensor(tensor(), Data::kNeeded, "t").status(), "multiply");
}

TEST_F(ConvertTest, MemoryOfAGpuSaysWhichOne) {
  sirtaki_tensor cuda = tensor();
  cuda.device_type = SIRTAKI_CUDA;
  cuda.device_index = 3;
  const auto found = to_tensor(cuda, Data::kNeeded, "t");
  ASSERT_TRUE(found);
  EXPECT_EQ(found->view.device, (Device{DeviceType::kCuda, 3}));
  cuda.device_index = -1;
  expect_refused(to_tensor(cuda, Data::kNeeded, "t").status(), "device_index");
}

TEST_F(ConvertTest, MemoryWithHolesIsRefused) {
  sirtaki_tensor holes = tensor();
  strides_ = {6, 2};
  holes.strides = strides_.data();
  expect_refused(to_tensor(holes, Data::kNeeded, "t").status(), "holes");
}

TEST(IsDenseTest, AnswersForLayouts) {
  EXPECT_TRUE(is_dense({}, {}));
  EXPECT_TRUE(is_dense({2, 3}, {3, 1}));
  EXPECT_TRUE(is_dense({2, 3}, {1, 2}));
  EXPECT_TRUE(is_dense({2, 1, 3}, {3, 77, 1}));
  EXPECT_TRUE(is_dense({2, 4, 3, 3}, {36, 1, 12, 4}));
  EXPECT_TRUE(is_dense({0, 3}, {9, 9}));
  EXPECT_FALSE(is_dense({2, 3}, {0, 1}));
  EXPECT_FALSE(is_dense({2, 3}, {3, 2}));
  EXPECT_FALSE(is_dense({2, 3}, {-3, 1}));
}

TEST_F(ConvertTest, OperationTakesAllFields) {
  sirtaki_request_args args = request(SIRTAKI_ALLREDUCE);
  args.reduce_op = SIRTAKI_MAX;
  args.prescale = 0.5;
  args.priority = -3;
  const auto op = to_op(args);
  ASSERT_TRUE(op) << op.status().to_string();
  EXPECT_EQ(op->kind, OpKind::kAllreduce);
  EXPECT_EQ(op->name, "weights");
  EXPECT_EQ(op->reduce_op, ReduceOp::kMax);
  EXPECT_EQ(op->prescale, 0.5);
  EXPECT_EQ(op->priority, -3);
  EXPECT_EQ(op->output.data, op->input.data);
}

TEST_F(ConvertTest, RuntimeAllocatesForGatherAndAlltoall) {
  for (const int kind : {SIRTAKI_ALLGATHER, SIRTAKI_ALLTOALL, SIRTAKI_REDUCESCATTER}) {
    sirtaki_request_args args = request(kind);
    args.output = sirtaki_tensor{};
    const auto op = to_op(args);
    ASSERT_TRUE(op) << op.status().to_string();
    EXPECT_EQ(op->output.data, nullptr);
    EXPECT_EQ(op->output.dtype, DType::kF32);
  }
}

TEST_F(ConvertTest, GatherAndAlltoallTakeMemoryForTheirResult) {
  for (const int kind : {SIRTAKI_ALLGATHER, SIRTAKI_ALLTOALL}) {
    sirtaki_request_args args = request(kind);
    const auto op = to_op(args);
    ASSERT_TRUE(op) << op.status().to_string();
    EXPECT_EQ(static_cast<void*>(op->output.data), args.output.data);
    args.output.dtype = SIRTAKI_I32;
    expect_refused(to_op(args).status(), "dtype");
  }
}

TEST_F(ConvertTest, BadOperationsAreRefusedWithTheName) {
  sirtaki_request_args args = request(99);
  expect_refused(to_op(args).status(), "weights");
  args = request(SIRTAKI_ALLREDUCE);
  args.reduce_op = 9;
  expect_refused(to_op(args).status(), "reduce_op");
  args = request(SIRTAKI_ALLREDUCE);
  args.output.data = nullptr;
  expect_refused(to_op(args).status(), "output.data");
  args = request(SIRTAKI_ALLREDUCE);
  args.output.dtype = SIRTAKI_I32;
  expect_refused(to_op(args).status(), "dtype");
  args = request(SIRTAKI_BROADCAST);
  args.output.data = memory_.data() + 1;
  expect_refused(to_op(args).status(), "in place");
  args = request(SIRTAKI_ALLREDUCE);
  args.struct_size = 4;
  expect_refused(to_op(args).status(), "struct_size");
}

TEST_F(ConvertTest, BarrierNeedsNoTensor) {
  sirtaki_request_args args{};
  args.struct_size = sizeof(args);
  args.op = SIRTAKI_BARRIER;
  EXPECT_TRUE(to_op(args));
}

TEST_F(ConvertTest, StreamTakesNamesTensorsAndOrder) {
  const std::array<const char*, 2> names{"a", "b"};
  const std::array<sirtaki_tensor, 2> tensors{tensor(), tensor()};
  const std::array<std::int32_t, 2> order{1, 0};
  sirtaki_stream_args args{};
  args.struct_size = sizeof(args);
  args.name = "optimizer";
  args.count = 2;
  args.names = names.data();
  args.tensors = tensors.data();
  args.order = order.data();
  args.reduce_op = SIRTAKI_AVERAGE;
  args.prescale = args.postscale = 1;
  args.codec = "fp16";
  const auto stream = to_stream(args);
  ASSERT_TRUE(stream) << stream.status().to_string();
  ASSERT_EQ(stream->tensors.size(), 2U);
  EXPECT_EQ(stream->tensors[1].name, "b");
  EXPECT_EQ(stream->order, (std::vector<int>{1, 0}));
  EXPECT_EQ(stream->codec, "fp16");
  args.prescale = 0;
  expect_refused(to_stream(args).status(), "prescale of the stream is 0");
  args.prescale = std::numeric_limits<double>::quiet_NaN();
  expect_refused(to_stream(args).status(), "finite");
  args.prescale = 1;
  args.reduce_op = SIRTAKI_MAX;
  expect_refused(to_stream(args).status(), "optimizer");
  args.name = nullptr;
  expect_refused(to_stream(args).status(), "name");
}

}  // namespace
}  // namespace sirtaki::adapters
