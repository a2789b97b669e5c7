#include "runtime/engine/ops/op_check.h"

#include <gtest/gtest.h>

#include <array>

namespace sirtaki::engine {
namespace {

std::array<float, 12> op_memory{};

OpSpec spec(OpKind kind, std::vector<std::int64_t> dims) {
  OpSpec s;
  s.kind = kind;
  s.name = "x";
  s.dims = std::move(dims);
  std::int64_t numel = 1;
  for (const std::int64_t d : s.dims) {
    numel *= d;
  }
  s.input = {reinterpret_cast<std::byte*>(op_memory.data()), numel, DType::kF32, {}};
  s.output = s.input;
  return s;
}

struct Case {
  const char* what;
  OpSpec spec;
  const char* expected;  // part of the error; nullptr: no error
};

OpSpec with(OpSpec s, void (*change)(OpSpec&)) {
  change(s);
  return s;
}

void on_gpu_without_output(OpSpec& s) {
  s.input.device.type = DeviceType::kCuda;
  s.output = {};
}

// Checks the operations as rank 1.
void expect_said(const std::vector<Case>& cases, int size) {
  for (const Case& c : cases) {
    const Status status = check_op(c.spec, 1, size);
    if (c.expected == nullptr) {
      EXPECT_TRUE(status.ok()) << c.what << ": " << status.to_string();
      continue;
    }
    EXPECT_FALSE(status.ok()) << c.what;
    EXPECT_NE(status.text().find(c.expected), std::string_view::npos) << c.what << ": " << status.to_string();
    EXPECT_NE(status.text().find("'" + c.spec.name + "'"), std::string_view::npos)
        << c.what << ": " << status.to_string();
    EXPECT_NE(status.text().find("on rank 1"), std::string_view::npos) << c.what << ": " << status.to_string();
  }
}

TEST(OpCheck, SaysWhatIsWrongAndNamesTheTensor) {
  const std::vector<Case> cases = {
      {"plain", spec(OpKind::kAllreduce, {3, 4}), nullptr},
      {"no dimensions", spec(OpKind::kAllreduce, {}), nullptr},
      {"empty", spec(OpKind::kAllreduce, {0, 4}), nullptr},
      {"barrier", spec(OpKind::kBarrier, {}), nullptr},
      {"numel", with(spec(OpKind::kAllreduce, {3, 4}), [](OpSpec& s) { s.input.numel = 5; }), "does not hold 5"},
      {"negative",
       with(spec(OpKind::kAllreduce, {1}),
            [](OpSpec& s) {
              s.dims = {-1, -1};
            }),
       "negative dimension"},
      {"output", with(spec(OpKind::kAllreduce, {3}), [](OpSpec& s) { s.output.numel = 2; }), "differ in size"},
      {"no memory", with(spec(OpKind::kAllreduce, {3}), [](OpSpec& s) { s.input.data = nullptr; }), "no memory"},
      {"gpu", with(spec(OpKind::kAllreduce, {3}), [](OpSpec& s) { s.input.device.type = DeviceType::kCuda; }),
       "the input is on cuda:0 and the output on cpu"},
      {"gpu rows", with(spec(OpKind::kReduceScatter, {3, 4}), on_gpu_without_output),
       "give an output of 4 elements on cuda:0"},
      {"gpu rows of a set",
       with(with(spec(OpKind::kReduceScatter, {3, 4}), on_gpu_without_output), [](OpSpec& s) { s.ranks = {1}; }),
       "give an output of 12 elements on cuda:0"},
      {"gpu without rows", with(spec(OpKind::kReduceScatter, {1, 4}), on_gpu_without_output), nullptr},
      {"gpu of no elements", with(spec(OpKind::kReduceScatter, {0, 4}), on_gpu_without_output), nullptr},
      {"gather into other elements",
       with(spec(OpKind::kAllgather, {3, 4}), [](OpSpec& s) { s.output.dtype = DType::kF64; }),
       "input and output differ in data type"},
      {"gpu gather", with(spec(OpKind::kAllgather, {3, 4}), on_gpu_without_output), nullptr},
      {"rows", with(spec(OpKind::kReduceScatter, {3, 4}), [](OpSpec& s) { s.output = {}; }), nullptr},
      {"bool average",
       with(spec(OpKind::kAllreduce, {3}),
            [](OpSpec& s) {
              s.input.dtype = s.output.dtype = DType::kBool;
              s.reduce_op = ReduceOp::kAverage;
            }),
       "average of bool"},
      {"root", with(spec(OpKind::kBroadcast, {3}), [](OpSpec& s) { s.root = 2; }), "root rank 2 does not exist"},
      {"allgather of a scalar", spec(OpKind::kAllgather, {}), "no rows"},
      {"alltoall uneven", spec(OpKind::kAlltoall, {3, 2}), "not a multiple"},
      {"alltoall even", spec(OpKind::kAlltoall, {4, 2}), nullptr},
      {"splits count", with(spec(OpKind::kAlltoall, {4}), [](OpSpec& s) { s.splits = {4}; }), "1 entries"},
      {"splits sum",
       with(spec(OpKind::kAlltoall, {4}),
            [](OpSpec& s) {
              s.splits = {1, 2};
            }),
       "sum of splits (3)"},
      {"splits sign",
       with(spec(OpKind::kAlltoall, {4}),
            [](OpSpec& s) {
              s.splits = {5, -1};
            }),
       "negative number"},
      {"splits",
       with(spec(OpKind::kAlltoall, {4}),
            [](OpSpec& s) {
              s.splits = {4, 0};
            }),
       nullptr},
  };
  expect_said(cases, 2);
}

TEST(OpCheck, StreamsNeedDifferentTensorNames) {
  StreamSpec stream;
  stream.name = "opt";
  stream.tensors = {{"w", {1}, {}, DType::kF32, {}}, {"w", {2}, {}, DType::kF32, {}}};
  EXPECT_NE(check_stream(stream, 0, 2).text().find("'w'"), std::string_view::npos);
  stream.tensors.pop_back();
  EXPECT_TRUE(check_stream(stream, 0, 2).ok());
}

TEST(OpCheck, StreamsKnowProcessSets) {
  StreamSpec stream;
  stream.name = "opt";
  stream.ranks = {0, 2};
  EXPECT_TRUE(check_stream(stream, 2, 3).ok());
  EXPECT_NE(check_stream(stream, 1, 3).text().find("not in the process set"), std::string_view::npos);
  EXPECT_NE(check_stream(stream, 0, 2).text().find("each once, in order"), std::string_view::npos);
  stream.ranks.clear();
  stream.name = "opt of rank 1";
  EXPECT_NE(check_stream(stream, 0, 2).text().find("means a process set"), std::string_view::npos);
}

TEST(OpCheck, AdasumIsForWholeFloatingPointTensors) {
  OpSpec op = spec(OpKind::kAllreduce, {3});
  op.reduce_op = ReduceOp::kAdasum;
  EXPECT_TRUE(check_op(op, 0, 2).ok());
  op.input.dtype = op.output.dtype = DType::kI32;
  EXPECT_EQ(check_op(op, 0, 2).code(), Code::kInvalidArgument);
  op = spec(OpKind::kReduceScatter, {3});
  op.reduce_op = ReduceOp::kAdasum;
  EXPECT_EQ(check_op(op, 0, 2).code(), Code::kUnsupported);
}

TEST(OpCheck, KnowsProcessSets) {
  const std::vector<Case> cases = {
      {"process set",
       with(spec(OpKind::kAllreduce, {3}),
            [](OpSpec& s) {
              s.ranks = {0, 1, 3};
            }),
       nullptr},
      {"not in it",
       with(spec(OpKind::kAllreduce, {3}),
            [](OpSpec& s) {
              s.ranks = {0, 3};
            }),
       "not in the process set"},
      {"out of order",
       with(spec(OpKind::kAllreduce, {3}),
            [](OpSpec& s) {
              s.ranks = {1, 0};
            }),
       "each once, in order"},
      {"twice",
       with(spec(OpKind::kBarrier, {}),
            [](OpSpec& s) {
              s.ranks = {1, 1};
            }),
       "each once, in order"},
      {"no such rank",
       with(spec(OpKind::kAllreduce, {3}),
            [](OpSpec& s) {
              s.ranks = {1, 4};
            }),
       "ranks from 0 to 3"},
      {"root outside",
       with(spec(OpKind::kBroadcast, {3}),
            [](OpSpec& s) {
              s.ranks = {0, 1};
              s.root = 2;
            }),
       "not in the process set"},
      {"splits of a set",
       with(spec(OpKind::kAlltoall, {4}),
            [](OpSpec& s) {
              s.ranks = {0, 1};
              s.splits = {1, 3};
            }),
       nullptr},
      {"name of a set", with(spec(OpKind::kAllreduce, {3}), [](OpSpec& s) { s.name = "x of ranks 0, 1"; }),
       "means a process set"},
  };
  expect_said(cases, 4);
}

}  // namespace
}  // namespace sirtaki::engine
