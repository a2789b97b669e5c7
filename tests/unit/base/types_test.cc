#include "runtime/base/types.h"

#include <gtest/gtest.h>

#include <unordered_set>

#include "runtime/base/dtype.h"
#include "runtime/base/tensor.h"

namespace sirtaki {
namespace {

TEST(Types, IdsCompareAndHashByValue) {
  EXPECT_EQ(StreamId(3), StreamId(3));
  EXPECT_LT(RequestId(3), RequestId(4));
  EXPECT_EQ(std::unordered_set<OpTag>({OpTag(1), OpTag(1), OpTag(2)}).size(), 2U);
  static_assert(!std::is_convertible_v<StreamId, RequestId>);
  static_assert(!std::is_convertible_v<int, Epoch>);
}

TEST(DType, SizesAndNamesMatchTheirKinds) {
  EXPECT_EQ(dtype_size(DType::kF16), 2U);
  EXPECT_EQ(dtype_size(DType::kBF16), 2U);
  EXPECT_EQ(dtype_size(DType::kF64), 8U);
  EXPECT_EQ(dtype_name(DType::kBF16), "bfloat16");
  EXPECT_EQ(dtype_name(DType::kBool), "bool");
  EXPECT_TRUE(dtype_is_floating(DType::kF16));
  EXPECT_FALSE(dtype_is_floating(DType::kI64));
}

TEST(DType, EveryWireValueIsKnownAndNoOther) {
  for (int value = 0; value < 256; ++value) {
    const auto dtype = dtype_from_wire(static_cast<std::uint8_t>(value));
    EXPECT_EQ(dtype.has_value(), value < kDTypeCount);
    if (dtype) {
      EXPECT_GT(dtype_size(*dtype), 0U);
      EXPECT_FALSE(dtype_name(*dtype).empty());
    }
  }
}

TEST(Tensor, BytesCoverAllElements) {
  std::array<std::byte, 24> memory{};
  const TensorView view{.data = memory.data(), .numel = 3, .dtype = DType::kF64, .device = {}};
  EXPECT_EQ(view.size_bytes(), 24U);
  EXPECT_EQ(view.bytes().data(), memory.data());
  // More than 2^31 bytes.
  EXPECT_EQ((TensorView{.data = nullptr, .numel = 1LL << 31, .dtype = DType::kF32, .device = {}}).size_bytes(),
            std::size_t{1} << 33U);
}

TEST(Tensor, KindsHaveNames) {
  for (int kind = 0; kind < kOpKindCount; ++kind) {
    EXPECT_NE(op_kind_name(static_cast<OpKind>(kind)), "unknown");
  }
  for (int op = 0; op < kReduceOpCount; ++op) {
    EXPECT_NE(reduce_op_name(static_cast<ReduceOp>(op)), "unknown");
  }
  EXPECT_EQ(op_kind_name(static_cast<OpKind>(99)), "unknown");
  EXPECT_EQ(dims_to_string({64, 3}), "[64, 3]");
  EXPECT_EQ(dims_to_string({}), "[]");
}

}  // namespace
}  // namespace sirtaki
