#include "runtime/engine/wire_size.h"

#include <gtest/gtest.h>

#include <numeric>

#include "compression/catalog.h"
#include "scheduler/plan.h"

namespace sirtaki::engine {
namespace {

TEST(WireSize, TensorsWeighWhatTheirPartsDoAfterEncoding) {
  const std::vector<scheduler::PlannedTensor> tensors = {
      {"small", 3, DType::kF32}, {"empty", 0, DType::kF32}, {"big", 5000, DType::kF32}, {"counts", 7, DType::kI64}};
  const std::vector<int> order = {3, 2, 1, 0};
  const scheduler::LayoutOptions layout = {.fusion_bytes = 1024, .partition_bytes = 4096, .alignment = 64};
  for (const compression::Codec* codec : compression::codecs()) {
    SCOPED_TRACE(codec->name());
    const auto plan = scheduler::Plan::build(tensors, order, layout, {codec->id(), Recipe::kDense, {}}, 1);
    ASSERT_TRUE(plan) << plan.status().to_string();
    const std::vector<std::int64_t> bytes = wire_bytes_by_tensor(**plan);
    ASSERT_EQ(bytes.size(), tensors.size());
    for (std::size_t i = 0; i < tensors.size(); ++i) {
      EXPECT_EQ(bytes[i], tensors[i].numel * static_cast<std::int64_t>(dtype_size(codec->wire_dtype(tensors[i].dtype))))
          << tensors[i].name;
    }
    std::int64_t all = 0;
    for (const scheduler::Partition& partition : (*plan)->partitions()) {
      all += wire_bytes(partition);
    }
    EXPECT_EQ(std::accumulate(bytes.begin(), bytes.end(), std::int64_t{0}), all);
  }
}

}  // namespace
}  // namespace sirtaki::engine
