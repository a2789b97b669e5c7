#include "scheduler/plan/plan.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <limits>
#include <numeric>
#include <random>

#include "runtime/base/check.h"
#include "tests/unit/scheduler/plan/bad_case.h"

namespace sirtaki::scheduler {
namespace {

struct Inputs {
  std::vector<PlannedTensor> tensors;
  std::vector<int> order;
  LayoutOptions options;
  std::uint64_t version = 1;
  std::int64_t exchange_bytes = kAnySize;
};

Result<std::shared_ptr<const Plan>> build(const Inputs& in) {
  return Plan::build(in.tensors, in.order, in.options, in.version, in.exchange_bytes);
}

Inputs in_order(std::vector<PlannedTensor> tensors, LayoutOptions options) {
  Inputs in;
  in.order.resize(tensors.size());
  std::iota(in.order.begin(), in.order.end(), 0);
  in.tensors = std::move(tensors);
  in.options = options;
  return in;
}

// Tensors of each partition, in order of position.
std::vector<std::vector<int>> members(const Plan& plan) {
  std::vector<std::vector<int>> all;
  for (const Partition& partition : plan.partitions()) {
    std::vector<int> tensors;
    for (const Slice& slice : partition.slices) {
      tensors.push_back(slice.tensor);
    }
    all.push_back(tensors);
  }
  return all;
}

constexpr LayoutOptions kSmall = {.fusion_bytes = 1024, .partition_bytes = 4096, .alignment = 64};

TEST(Plan, FillsABucketWithSmallTensorsUpToFusionBytes) {
  const auto plan = build(in_order({{"a", 100}, {"b", 100}, {"c", 56}, {"d", 1}}, kSmall));
  ASSERT_TRUE(plan) << plan.status().to_string();
  EXPECT_EQ(members(**plan), (std::vector<std::vector<int>>{{0, 1, 2}, {3}}));
  const Partition& bucket = (*plan)->partitions()[0];
  EXPECT_EQ(bucket.size_bytes(), 1024U);
  EXPECT_EQ(bucket.slices[2].at, 200);
  EXPECT_EQ(bucket.slices[2].offset, 0);
}

TEST(Plan, FusesAcrossTensorsOfAnotherDtype) {
  const auto plan = build(in_order({{"a", 10}, {"n", 1, DType::kI64}, {"b", 10}, {"m", 1, DType::kI64}}, kSmall));
  ASSERT_TRUE(plan);
  EXPECT_EQ(members(**plan), (std::vector<std::vector<int>>{{0, 2}, {1, 3}}));
}

TEST(Plan, PutsABucketAtThePlaceOfItsLastMember) {
  // 1 and 3 are too big for buckets. The first bucket is full with 2; 4 opens another.
  const auto plan = build(in_order({{"a", 128}, {"B", 1000}, {"c", 128}, {"D", 1000}, {"e", 1}}, kSmall));
  ASSERT_TRUE(plan);
  EXPECT_EQ(members(**plan), (std::vector<std::vector<int>>{{1}, {0, 2}, {3}, {4}}));
}

TEST(Plan, BucketsGrowToTheirFullSize) {
  std::vector<PlannedTensor> tensors;
  for (int i = 0; i < 400; ++i) {
    tensors.push_back({std::to_string(i), 1024});  // 4 KiB
  }
  const auto plan = build(in_order(std::move(tensors), {.fusion_bytes = 300 << 10}));
  ASSERT_TRUE(plan);
  std::vector<std::size_t> kib;
  for (const Partition& partition : (*plan)->partitions()) {
    kib.push_back(partition.size_bytes() >> 10);
  }
  EXPECT_EQ(kib, (std::vector<std::size_t>{64, 128, 256, 300, 300, 300, 252}));
}

TEST(Plan, FollowsTheGivenOrder) {
  Inputs in = in_order({{"a", 1000}, {"b", 1000}, {"c", 1000}}, kSmall);
  in.order = {2, 0, 1};
  const auto plan = build(in);
  ASSERT_TRUE(plan);
  EXPECT_EQ(members(**plan), (std::vector<std::vector<int>>{{2}, {0}, {1}}));
}

TEST(Plan, CutsABigTensorIntoNearlyEqualPieces) {
  // 1024 elements a piece at most; 2100 are 33 blocks of 64: three pieces of 11 blocks.
  const auto plan = build(in_order({{"a", 2100}}, kSmall));
  ASSERT_TRUE(plan);
  std::vector<std::int64_t> sizes;
  for (const Partition& partition : (*plan)->partitions()) {
    sizes.push_back(partition.numel);
  }
  EXPECT_EQ(sizes, (std::vector<std::int64_t>{704, 704, 692}));
  EXPECT_EQ((*plan)->partitions_of(0), (std::vector<int>{0, 1, 2}));
}

TEST(Plan, LeavesOutTensorsWithoutElements) {
  const auto plan = build(in_order({{"none", 0}, {"a", 5}}, kSmall));
  ASSERT_TRUE(plan);
  EXPECT_EQ(members(**plan), (std::vector<std::vector<int>>{{1}}));
  EXPECT_TRUE((*plan)->partitions_of(0).empty());
  const auto empty = build(in_order({}, kSmall));
  ASSERT_TRUE(empty);
  EXPECT_TRUE((*empty)->partitions().empty());
  EXPECT_THROW((*empty)->partitions_of(0), BugError);
}

TEST(Plan, FusesNothingWhenFusionBytesIsZero) {
  const auto plan = build(in_order({{"a", 1}, {"b", 1}}, {.fusion_bytes = 0, .partition_bytes = 4096}));
  ASSERT_TRUE(plan);
  EXPECT_EQ(members(**plan), (std::vector<std::vector<int>>{{0}, {1}}));
}

PlannedTensor sparse(std::string name, std::int64_t numel, std::int64_t stripe, std::int64_t wire_bytes) {
  PlannedTensor tensor{std::move(name), numel};
  tensor.decision = {CodecId::kGroupTopk, ReductionKind::kGather, {1, 512, 5}};
  tensor.stripe = stripe;
  tensor.wire_bytes = wire_bytes;
  return tensor;
}

TEST(Plan, FusesOnlyWhatTravelsTheSameWay) {
  PlannedTensor b = sparse("b", 1000, 1024, 40);
  PlannedTensor d = sparse("d", 1000, 1024, 40);
  d.decision.params = {1, 512, 10};  // each slice is encoded with its own tensor's parameters
  PlannedTensor e = sparse("e", 1000, 1024, 40);
  e.decision.reduction = ReductionKind::kScatter;
  const auto plan = build(in_order({{"a", 10}, b, {"c", 10}, d, e}, kSmall));
  ASSERT_TRUE(plan) << plan.status().to_string();
  EXPECT_EQ(members(**plan), (std::vector<std::vector<int>>{{0, 2}, {1, 3}, {4}}));
  const Partition& bucket = (*plan)->partitions()[1];
  EXPECT_EQ(bucket.format, b.decision.format());
  EXPECT_EQ(bucket.wire_bytes, 80);
  EXPECT_EQ((*plan)->partitions()[0].wire_bytes, 80) << "as held";
}

TEST(Plan, CutsAtStripesAndWeighsWhatTravels) {
  // 100,000 elements that are 8,000 bytes: two partitions of 49 stripes.
  const auto plan = build(in_order({sparse("a", 100'000, 1024, 8000)}, kSmall));
  ASSERT_TRUE(plan) << plan.status().to_string();
  std::vector<std::int64_t> offsets;
  for (const Partition& partition : (*plan)->partitions()) {
    offsets.push_back(partition.slices.front().offset);
    EXPECT_LE(partition.wire_bytes, kSmall.partition_bytes);
  }
  EXPECT_EQ(offsets, (std::vector<std::int64_t>{0, 49 * 1024}));
}

TEST(Plan, NeverCutsATensorOfOneStripe) {
  const std::int64_t numel = 5 * kMaxCompressedElements;
  const auto plan = build(
      in_order({sparse("a", numel, numel, 1 << 20), sparse("b", 1000, 1000, 10), sparse("c", 2000, 2000, 20)}, kSmall));
  ASSERT_TRUE(plan) << plan.status().to_string();
  EXPECT_EQ(members(**plan), (std::vector<std::vector<int>>{{0}, {1, 2}}));
}

TEST(Plan, KeepsTheElementsOfALossyPartitionFew) {
  // Hardly any bytes: only the work of encoding has to overlap.
  std::vector<PlannedTensor> tensors = {sparse("big", 3 * kMaxCompressedElements, 4096, 300)};
  for (int i = 0; i < 10; ++i) {
    tensors.push_back(sparse(std::to_string(i), kMaxCompressedElements / 4, 4096, 5));
  }
  const auto plan = build(in_order(std::move(tensors), {}));
  ASSERT_TRUE(plan) << plan.status().to_string();
  EXPECT_EQ((*plan)->partitions_of(0).size(), 3U);
  EXPECT_EQ((*plan)->partitions().size(), 6U) << "and three buckets of at most four";
  for (const Partition& partition : (*plan)->partitions()) {
    EXPECT_LE(partition.numel, kMaxCompressedElements);
  }
}

TEST(Plan, RefusesBadInputNamingIt) {
  const std::vector<BadCase<Inputs>> cases = {
      {"'a' is listed twice", [](Inputs& in) { in.tensors[1].name = "a"; }},
      {"'b' cannot have -1 elements", [](Inputs& in) { in.tensors[1].numel = -1; }},
      {"'b' cannot have", [](Inputs& in) { in.tensors[1].numel = std::numeric_limits<std::int64_t>::max(); }},
      {"1 entries for 2 tensors", [](Inputs& in) { in.order.pop_back(); }},
      {"names tensor 2 of 2", [](Inputs& in) { in.order[0] = 2; }},
      {"names tensor -1 of 2", [](Inputs& in) { in.order[0] = -1; }},
      {"names tensor 1 ('b') twice", [](Inputs& in) { in.order[0] = 1; }},
      {"fusion_bytes is -1", [](Inputs& in) { in.options.fusion_bytes = -1; }},
      {"alignment is 0", [](Inputs& in) { in.options.alignment = 0; }},
      {"exchange_bytes is -1", [](Inputs& in) { in.exchange_bytes = -1; }},
      {"partition_bytes is 511", [](Inputs& in) { in.options.partition_bytes = 511; }},
      {"partition_bytes is -4096", [](Inputs& in) { in.options.partition_bytes = -4096; }},
      {"raise partition_bytes", [](Inputs& in) { in.tensors[1].numel = std::int64_t{1} << 40; }},
  };
  for (const BadCase<Inputs>& bad : cases) {
    Inputs in = in_order({{"a", 5}, {"b", 5}}, kSmall);
    bad.spoil(in);
    const auto plan = build(in);
    ASSERT_FALSE(plan) << bad.text;
    EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
    EXPECT_NE(plan.status().text().find(bad.text), std::string_view::npos) << plan.status().text();
  }
}

TEST(Plan, DigestChangesWithEveryInput) {
  const Inputs base = in_order({{"a", 5000}, {"b", 5}, {"c", 6, DType::kI32}}, kSmall);
  const std::vector<std::function<void(Inputs&)>> changes = {
      [](Inputs& in) { in.tensors[1].name = "B"; },
      [](Inputs& in) { in.tensors[1].numel = 6; },
      [](Inputs& in) { in.tensors[1].dtype = DType::kI32; },
      [](Inputs& in) { in.tensors.pop_back(), in.order.pop_back(); },
      [](Inputs& in) { std::swap(in.order[0], in.order[1]); },
      [](Inputs& in) { in.options.fusion_bytes += 1; },
      [](Inputs& in) { in.options.partition_bytes *= 2; },
      [](Inputs& in) { in.options.alignment = 32; },
      [](Inputs& in) { in.tensors[1].decision.codec = CodecId::kFp16; },
      [](Inputs& in) { in.tensors[1].decision.reduction = ReductionKind::kGather; },
      [](Inputs& in) { in.tensors[1].decision.params = {0}; },
      [](Inputs& in) { in.tensors[1].stripe = 5; },
      [](Inputs& in) { in.tensors[1].wire_bytes = 10; },
      [](Inputs& in) { in.version = 2; },
  };
  std::vector<std::uint64_t> digests = {(*build(base))->digest()};
  for (const auto& change : changes) {
    Inputs in = base;
    change(in);
    const auto plan = build(in);
    ASSERT_TRUE(plan) << plan.status().to_string();
    digests.push_back((*plan)->digest());
  }
  std::sort(digests.begin(), digests.end());
  EXPECT_EQ(std::adjacent_find(digests.begin(), digests.end()), digests.end());
}

Inputs random_inputs(std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<PlannedTensor> tensors(random() % 40);
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    const auto scale = random() % 3;
    tensors[i].name = std::to_string(i);
    tensors[i].numel = static_cast<std::int64_t>(random() % (scale == 0 ? 8 : scale == 1 ? 600 : 20000));
    tensors[i].dtype = static_cast<DType>(random() % 4 == 0 ? random() % kDTypeCount : 8);
  }
  LayoutOptions options;
  options.alignment = std::int64_t{1} << random() % 8;
  options.fusion_bytes = static_cast<std::int64_t>(random() % 3000);
  options.partition_bytes = options.alignment * 8 + static_cast<std::int64_t>(random() % 8000);
  Inputs in = in_order(std::move(tensors), options);
  std::shuffle(in.order.begin(), in.order.end(), random);
  in.version = random();
  return in;
}

void expect_sound_partition(const Partition& partition, const Inputs& in) {
  const auto bytes = static_cast<std::int64_t>(partition.size_bytes());
  std::int64_t at = 0;
  ASSERT_FALSE(partition.slices.empty());
  for (const Slice& slice : partition.slices) {
    const PlannedTensor& tensor = in.tensors[static_cast<std::size_t>(slice.tensor)];
    EXPECT_EQ(tensor.dtype, partition.dtype);
    EXPECT_EQ(slice.at, at);
    EXPECT_GT(slice.numel, 0);
    EXPECT_EQ(slice.offset % in.options.alignment, 0);
    at += slice.numel;
  }
  EXPECT_EQ(at, partition.numel);
  const Slice& first = partition.slices.front();
  const bool whole = first.numel == in.tensors[static_cast<std::size_t>(first.tensor)].numel;
  const bool bucket = partition.slices.size() > 1 || (whole && bytes <= in.options.fusion_bytes);
  EXPECT_LE(bytes, bucket ? in.options.fusion_bytes : in.options.partition_bytes);
}

// Checks, too, that the partition whose last member is expected first goes first.
void expect_sound(const Plan& plan, const Inputs& in) {
  std::vector<std::int64_t> place(in.tensors.size());
  for (std::size_t i = 0; i < in.order.size(); ++i) {
    place[static_cast<std::size_t>(in.order[i])] = static_cast<std::int64_t>(i);
  }
  std::vector<std::int64_t> covered(in.tensors.size(), 0);
  std::int64_t last_place = -1;
  for (std::size_t p = 0; p < plan.partitions().size(); ++p) {
    const Partition& partition = plan.partitions()[p];
    EXPECT_EQ(partition.position, static_cast<int>(p));
    ASSERT_NO_FATAL_FAILURE(expect_sound_partition(partition, in));
    std::int64_t latest = 0;
    for (const Slice& slice : partition.slices) {
      const auto tensor = static_cast<std::size_t>(slice.tensor);
      EXPECT_EQ(slice.offset, covered[tensor]) << "pieces of one tensor follow each other without gap or overlap";
      covered[tensor] += slice.numel;
      latest = std::max(latest, place[tensor]);
      const std::vector<int>& of = plan.partitions_of(slice.tensor);
      EXPECT_EQ(std::count(of.begin(), of.end(), partition.position), 1);
      EXPECT_TRUE(std::is_sorted(of.begin(), of.end()));
    }
    EXPECT_GE(latest, last_place);
    last_place = latest;
  }
  for (std::size_t i = 0; i < covered.size(); ++i) {
    EXPECT_EQ(covered[i], in.tensors[i].numel);
  }
}

TEST(Plan, HoldsItsInvariantsForRandomInputs) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const Inputs in = random_inputs(seed);
    const auto plan = build(in);
    ASSERT_TRUE(plan) << plan.status().to_string();
    ASSERT_NO_FATAL_FAILURE(expect_sound(**plan, in));
    const auto again = build(in);
    ASSERT_TRUE(again);
    EXPECT_EQ((*plan)->digest(), (*again)->digest());
    EXPECT_EQ(members(**plan), members(**again));
  }
}

}  // namespace
}  // namespace sirtaki::scheduler
