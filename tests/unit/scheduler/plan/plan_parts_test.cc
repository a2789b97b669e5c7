#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <random>
#include <string>

#include "scheduler/plan/plan.h"
#include "tests/unit/scheduler/plan/bad_case.h"

namespace sirtaki::scheduler {
namespace {

Partition partition_of(std::vector<Slice> slices, DType dtype = DType::kF32) {
  Partition partition;
  partition.dtype = dtype;
  for (const Slice& slice : slices) {
    partition.numel += slice.numel;
  }
  partition.slices = std::move(slices);
  return partition;
}

// a: 300 elements in pieces of 128, 128, 44 around b; c and d share a partition.
PlanParts example_parts() {
  PlanParts parts;
  parts.tensors = {{"a", 300}, {"b", 64}, {"c", 10}, {"d", 5}, {"n", 3, DType::kI64}, {"none", 0}};
  parts.partitions = {partition_of({{0, 128, 128, 0}}),
                      partition_of({{1, 0, 64, 0}}),
                      partition_of({{0, 0, 128, 0}}),
                      partition_of({{2, 0, 10, 0}, {3, 0, 5, 10}}),
                      partition_of({{4, 0, 3, 0}}, DType::kI64),
                      partition_of({{0, 256, 44, 0}})};
  parts.credit_bytes = 4096;
  parts.version = 7;
  return parts;
}

TEST(PlanParts, PiecesOfATensorMayStandAnywhere) {
  const auto plan = Plan::from_partitions(example_parts());
  ASSERT_TRUE(plan) << plan.status().to_string();
  EXPECT_EQ((*plan)->version(), 7U);
  EXPECT_EQ((*plan)->credit_bytes(), 4096);
  EXPECT_EQ((*plan)->partitions_of(0), (std::vector<int>{0, 2, 5}));
  EXPECT_EQ((*plan)->partitions_of(3), (std::vector<int>{3}));
  EXPECT_TRUE((*plan)->partitions_of(5).empty());
  for (std::size_t i = 0; i < (*plan)->partitions().size(); ++i) {
    EXPECT_EQ((*plan)->partitions()[i].position, static_cast<int>(i));
  }
}

TEST(PlanParts, RefusesWhatIsNotExactlyOnceNamingTheTensor) {
  const std::vector<BadCase<PlanParts>> cases = {
      {"'b' is in no partition from element 0", [](auto& p) { p.partitions.erase(p.partitions.begin() + 1); }},
      {"'a' is in no partition from element 256", [](auto& p) { p.partitions.pop_back(); }},
      {"'a' is in no partition from element 128", [](auto& p) { p.partitions.erase(p.partitions.begin()); }},
      {"'a' is in two partitions from element 128", [](auto& p) { p.partitions.push_back(p.partitions[0]); }},
      {"'b' is in two partitions from element 0", [](auto& p) { p.partitions.push_back(p.partitions[1]); }},
      {"'a' is cut at element 100", [](auto& p) { p.partitions[0].slices[0].offset = 100; }},
      {"'a' of 300 elements has no slice of 128 from 256", [](auto& p) { p.partitions[0].slices[0].offset = 256; }},
      {"'a' of 300 elements has no slice of 128 from -64", [](auto& p) { p.partitions[0].slices[0].offset = -64; }},
      {"'b' of 64 elements has no slice of 0", [](auto& p) { p.partitions[1].slices[0].numel = 0; }},
      {"has no slice of", [](auto& p) { p.partitions[1].slices[0].numel = std::numeric_limits<std::int64_t>::max(); }},
      {"'d' has a wrong offset", [](auto& p) { p.partitions[3].slices[1].at = 9; }},
      {"a partition of 16 elements has slices of 15", [](auto& p) { p.partitions[3].numel = 16; }},
      {"a partition of 0 elements", [](auto& p) { p.partitions.emplace_back(); }},
      {"'n' is in a partition of another dtype", [](auto& p) { p.partitions[4].dtype = DType::kI32; }},
      {"a slice of tensor 6 of 6", [](auto& p) { p.partitions[1].slices[0].tensor = 6; }},
      {"a slice of tensor -1 of 6", [](auto& p) { p.partitions[1].slices[0].tensor = -1; }},
      {"'a' has two slices in one partition",
       [](auto& p) {
         p.partitions[0] = partition_of({{0, 128, 128, 0}, {0, 256, 44, 128}});
         p.partitions.pop_back();
       }},
      {"'b' is in a partition of another codec", [](auto& p) { p.partitions[1].format.codec = CodecId::kFp16; }},
      {"'b' is in a partition of another codec",
       [](auto& p) { p.tensors[1].decision.reduction = ReductionKind::kGather; }},
      {"'a' is cut at element 128, not a multiple of 256", [](auto& p) { p.tensors[0].stripe = 256; }},
      {"'a' is cut at element 128, not a multiple of 300", [](auto& p) { p.tensors[0].stripe = 300; }},
      {"'b' cannot have stripes of 0", [](auto& p) { p.tensors[1].stripe = 0; }},
      {"'b' cannot be -2 bytes", [](auto& p) { p.tensors[1].wire_bytes = -2; }},
      {"'a' is listed twice", [](auto& p) { p.tensors[1].name = "a"; }},
      {"alignment is 0", [](auto& p) { p.alignment = 0; }},
      {"credit_bytes is -1", [](auto& p) { p.credit_bytes = -1; }},
      {"exchange_bytes is -1", [](auto& p) { p.exchange_bytes = -1; }},
  };
  for (const BadCase<PlanParts>& bad : cases) {
    PlanParts parts = example_parts();
    bad.spoil(parts);
    const auto plan = Plan::from_partitions(std::move(parts));
    ASSERT_FALSE(plan) << bad.text;
    EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
    EXPECT_NE(plan.status().text().find(bad.text), std::string_view::npos) << plan.status().text();
  }
}

TEST(PlanParts, DigestChangesWithEveryInput) {
  const std::vector<std::function<void(PlanParts&)>> changes = {
      [](auto& p) { p.version = 8; },
      [](auto& p) { p.credit_bytes = 4097; },
      [](auto& p) { p.alignment = 32; },
      [](auto& p) { p.tensors[5].name = "zero"; },
      [](auto& p) { std::swap(p.partitions[0], p.partitions[1]); },
      [](auto& p) {
        p.partitions[3].slices = {{3, 0, 5, 0}, {2, 0, 10, 5}};
      },
      [](auto& p) { p.tensors[1].decision.params = {3}; },
      [](auto& p) { p.tensors[1].decision.codec = p.partitions[1].format.codec = CodecId::kFp16; },
      [](auto& p) { p.tensors[1].decision.reduction = p.partitions[1].format.reduction = ReductionKind::kGather; },
      [](auto& p) { p.tensors[1].stripe = 64; },
      [](auto& p) { p.tensors[1].wire_bytes = 4; },
  };
  std::vector<std::uint64_t> digests = {(*Plan::from_partitions(example_parts()))->digest()};
  for (const auto& change : changes) {
    PlanParts parts = example_parts();
    change(parts);
    const auto plan = Plan::from_partitions(std::move(parts));
    ASSERT_TRUE(plan) << plan.status().to_string();
    digests.push_back((*plan)->digest());
  }
  std::ranges::sort(digests);
  EXPECT_EQ(std::ranges::adjacent_find(digests), digests.end());
}

// An independent count of the covers of each element predicts the answer of from_partitions().
bool covers_once(const PlanParts& parts) {
  std::vector<std::vector<int>> count;
  for (const PlannedTensor& tensor : parts.tensors) {
    count.emplace_back(static_cast<std::size_t>(tensor.numel), 0);
  }
  for (const Partition& partition : parts.partitions) {
    for (const Slice& slice : partition.slices) {
      auto& of = count[static_cast<std::size_t>(slice.tensor)];
      for (std::int64_t i = slice.offset; i < slice.offset + slice.numel; ++i) {
        if (i < 0 || i >= static_cast<std::int64_t>(of.size())) {
          return false;
        }
        ++of[static_cast<std::size_t>(i)];
      }
    }
  }
  return std::ranges::all_of(count,
                             [](const auto& of) { return std::ranges::all_of(of, [](int n) { return n == 1; }); });
}

PlanParts random_parts(std::mt19937_64& random) {
  PlanParts parts;
  parts.alignment = 4;
  for (int i = 0; i < 6; ++i) {
    parts.tensors.push_back({std::to_string(i), static_cast<std::int64_t>(random() % 40)});
    std::int64_t offset = 0;
    while (offset < parts.tensors.back().numel) {
      const auto numel =
          std::min(static_cast<std::int64_t>(4 + 4 * (random() % 4)), parts.tensors.back().numel - offset);
      parts.partitions.push_back(partition_of({{i, offset, numel, 0}}));
      offset += numel;
    }
  }
  std::ranges::shuffle(parts.partitions, random);
  return parts;
}

TEST(PlanParts, AgreesWithACountOfEveryElement) {
  int accepted = 0;
  for (std::uint64_t seed = 0; seed < 400; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    PlanParts parts = random_parts(random);
    for (auto changes = random() % 3; changes > 0 && !parts.partitions.empty(); --changes) {
      Partition& partition = parts.partitions[random() % parts.partitions.size()];
      Slice& slice = partition.slices[0];
      slice.offset += 4 * static_cast<std::int64_t>(random() % 3) - 4;
      slice.numel += 4 * static_cast<std::int64_t>(random() % 2);
      partition.numel = slice.numel;
    }
    const bool sound = covers_once(parts);
    const auto plan = Plan::from_partitions(std::move(parts));
    EXPECT_EQ(plan.ok(), sound) << plan.status().to_string();
    accepted += sound ? 1 : 0;
  }
  EXPECT_GT(accepted, 100);
  EXPECT_LT(accepted, 390);
}

}  // namespace
}  // namespace sirtaki::scheduler
