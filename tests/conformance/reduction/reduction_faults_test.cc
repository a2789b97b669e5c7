// Faults of a compressed partition: no part of it is applied, and the next one works.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "runtime/base/config/compression_methods.h"
#include "runtime/engine/reduction/by_host.h"
#include "tests/conformance/reduction/reduction_support.h"

namespace sirtaki::engine::testing {
namespace {

const std::vector<std::size_t> kSizes = {5000, 3000};

constexpr int kFaultRanks = 3;

Gradients ramps() {
  Gradients gradients(kFaultRanks);
  for (std::size_t r = 0; r < gradients.size(); ++r) {
    for (const std::size_t numel : kSizes) {
      Floats& values = gradients[r].emplace_back(numel);
      for (std::size_t i = 0; i < numel; ++i) {
        values[i] = static_cast<float>(i % 1000) + 0.3F * static_cast<float>(r + 1);
      }
    }
  }
  return gradients;
}

struct Damage {
  OpKind kind;
  Rank sender;     // 0 when all ranks have the result
  std::size_t at;  // offset in the block of the sender
  std::byte value;
};

// Overwrites bytes that a collective has received before the reduction sees them.
class Damaging final : public net::Collectives {
 public:
  Damaging(net::Collectives& inner, const std::shared_ptr<std::vector<Damage>>& damage)
      : inner_(inner), damage_(damage) {}
  // `share`: if hosts sum up first, damages the exchange of this share alone.
  Damaging(net::Collectives& inner, const std::shared_ptr<std::vector<Damage>>& damage, int share)
      : inner_(inner), damage_(std::make_shared<std::vector<Damage>>()), groups_(*inner.host_groups()) {
    for (net::HostGroups::Share& own : groups_->own) {
      if (own.number == share) {
        owners_ = std::make_unique<Damaging>(*own.owners, damage);
        own.owners = owners_.get();
      }
    }
  }

  net::Caps caps() const override { return inner_.caps(); }
  Rank rank() const override { return inner_.rank(); }
  int size() const override { return inner_.size(); }
  Rank job_rank(Rank rank) const override { return inner_.job_rank(rank); }
  const net::HostGroups* host_groups() const override { return groups_ ? &*groups_ : inner_.host_groups(); }
  void cancel(net::TagGroup tags, Status cause) override { inner_.cancel(tags, std::move(cause)); }
  void abort(Status cause) override { inner_.abort(std::move(cause)); }
  void start(net::CollectiveArgs args, Done done) override {
    const Bytes out = args.out;
    const OpKind kind = args.kind;
    std::vector<std::int64_t> counts = args.recv_counts;
    inner_.start(std::move(args),
                 [this, out, kind, counts = std::move(counts), done = std::move(done)](const Status& status) mutable {
                   for (const Damage& damage : *damage_) {
                     if (damage.kind == kind) {
                       std::size_t at = damage.at;
                       for (Rank r = 0; r < damage.sender; ++r) {
                         at += static_cast<std::size_t>(counts[static_cast<std::size_t>(r)]);
                       }
                       out[at] = damage.value;
                     }
                   }
                   done(status);
                 });
  }

 private:
  net::Collectives& inner_;
  const std::shared_ptr<std::vector<Damage>> damage_;
  std::optional<net::HostGroups> groups_;
  std::unique_ptr<Damaging> owners_;
};

// Damage to one partition of both tensors on its way to rank 1, always within the first tensor.
struct FaultCase {
  ReductionKind reduction;
  std::string_view codec;
  std::vector<std::vector<Damage>> damages;
  Rank blamed;
};

const FaultCase kCases[] = {
    // Two bytes of header, then the exponents of the first tensor's first stripe.
    {ReductionKind::kGather,
     "int8",
     {{{OpKind::kAllgather, 2, 2, std::byte{0x81}}}, {{OpKind::kAllgather, 2, 0, std::byte{0x40}}}},
     2},
    {ReductionKind::kScatter,
     "int8",
     {{{OpKind::kAlltoall, 2, 2, std::byte{0x81}}},
      {{OpKind::kAlltoall, 2, 0, std::byte{0x40}}},
      {{OpKind::kAllgather, 2, 2, std::byte{0x81}}}},
     2},
    // The offsets of a stripe's groups follow their values, in ascending order.
    {ReductionKind::kGather, "group_topk", {{{OpKind::kAllgather, 2, 86, std::byte{0xFF}}}}, 2},
    {ReductionKind::kScatter,
     "group_topk",
     {{{OpKind::kAlltoall, 2, 86, std::byte{0xFF}}}, {{OpKind::kAllgather, 2, 74, std::byte{0xFF}}}},
     2},
    // The number of entries, the number of the first tile, then values and at last offsets in the tile.
    {ReductionKind::kGather,
     "threshold_sparse",
     {{{OpKind::kAllgather, 2, 5, std::byte{0x7F}}},
      {{OpKind::kAllgather, 2, 7, std::byte{0x7F}}},
      {{OpKind::kAllgather, 2, 511, std::byte{0x7F}}}},
     2},
    // The number of a filter.
    {ReductionKind::kGather, "kernel_sparse", {{{OpKind::kAllgather, 2, 3, std::byte{0x7F}}}}, 2},
    // Two float32 for each tensor, then norms: a count that is not one, a norm below 0. Sums have no sender.
    {ReductionKind::kShared,
     "block_topk",
     {{{OpKind::kAllreduce, 0, 3, std::byte{0x7F}}}, {{OpKind::kAllreduce, 0, 19, std::byte{0xC0}}}},
     -1},
    // A byte for each tensor, then exponents, without a sender; codes up and down at once; counts of more than three
    // ranks.
    {ReductionKind::kCounts,
     "twobit",
     {{{OpKind::kAllreduce, 0, 0, std::byte{3}}}, {{OpKind::kAllreduce, 0, 2, std::byte{0x80}}}},
     -1},
    {ReductionKind::kCounts,
     "twobit",
     {{{OpKind::kAlltoall, 2, 0, std::byte{0xFF}}, {OpKind::kAlltoall, 2, 256, std::byte{0xFF}}},
      {{OpKind::kAllgather, 2, 0, std::byte{0xFF}},
       {OpKind::kAllgather, 2, 113, std::byte{0xFF}},
       {OpKind::kAllgather, 2, 226, std::byte{0xFF}}}},
     2},
    // Two bytes of header, then 32 bits for each cell: a number beyond the number of cells. The first cell of rank 0
    // that rank 1 forwards, or receives at the end: a number of entries beyond its capacity.
    {ReductionKind::kRing, "group_topk", {{{OpKind::kAllgather, 2, 5, std::byte{0x7F}}}}, 2},
    {ReductionKind::kRing, "threshold_sparse", {{{OpKind::kAlltoall, 0, 3, std::byte{0x7F}}}}, 0},
    {ReductionKind::kLowRank, "powersgd", {{{OpKind::kAllreduce, 0, 3, std::byte{0x7F}}}}, -1},
};

std::string case_name(const ::testing::TestParamInfo<FaultCase>& info) {
  return std::string(reduction_name(info.param.reduction)) + "_" + std::string(info.param.codec) +
         (info.param.blamed < 0 ? "_sums" : "");
}

class ReductionFaults : public ::testing::TestWithParam<FaultCase> {
 protected:
  ReductionFaults() : group_(scheme(), kSizes, "local") {
    group_.wrap([this](Rank rank, net::Collectives& inner) {
      return std::make_unique<Damaging>(inner, rank == 1 ? damage_ : std::make_shared<std::vector<Damage>>());
    });
  }

  static Scheme scheme() {
    const compression::PayloadCodec& codec = *compression::find_payload_codec(GetParam().codec);
    return {&codec, GetParam().reduction, example_params(codec, true), kFaultRanks};
  }

  std::vector<Floats> residual() const {
    std::vector<Floats> all;
    for (Rank rank = 0; rank < kFaultRanks; ++rank) {
      for (std::size_t t = 0; t < kSizes.size(); ++t) {
        all.push_back(group_.residual(rank, t));
      }
    }
    return all;
  }

  std::shared_ptr<std::vector<Damage>> damage_ = std::make_shared<std::vector<Damage>>();
  Group group_;
};

TEST_P(ReductionFaults, CorruptPayloadsNameRankAndTensorAndNothingIsApplied) {
  const Layout layout = make_layout(scheme(), kSizes, Cut::kFused);
  ASSERT_EQ(layout.size(), 1U);
  Gradients gradients = ramps();
  for (const Status& status : group_.run(layout, gradients)) {
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  const std::vector<Floats> before = residual();
  for (const std::vector<Damage>& damage : GetParam().damages) {
    *damage_ = damage;
    gradients = ramps();
    const std::vector<Status> outcome = group_.run(layout, gradients);
    EXPECT_EQ(outcome[1].code(), Code::kCorrupt) << outcome[1].to_string();
    EXPECT_EQ(outcome[1].blame().rank, GetParam().blamed);
    EXPECT_EQ(outcome[1].blame().tensor, "tensor0") << outcome[1].to_string();
    const std::vector<Floats> after = residual();
    EXPECT_EQ(after[2], before[2]);
    EXPECT_EQ(after[3], before[3]);
  }
  damage_->clear();
  gradients = ramps();
  for (const Status& status : group_.run(layout, gradients)) {
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[0], gradients[2]);
}

TEST_P(ReductionFaults, CancelledPartitionsEndOnceWithTheCauseAndKeepTheirResidual) {
  const Layout layout = make_layout(scheme(), kSizes, Cut::kCut);
  Gradients gradients = ramps();
  for (const Status& status : group_.run(layout, gradients)) {
    ASSERT_TRUE(status.ok()) << status.to_string();
  }
  const std::vector<Floats> before = residual();
  gradients = ramps();
  const Status cause(Code::kAborted, "out of memory");
  const std::vector<Status> outcome = group_.run(layout, gradients, {.then = [cause](Rank rank, Reduction& reduction) {
                                                   if (rank == 1) {
                                                     reduction.cancel(cause);
                                                   }
                                                 }});
  EXPECT_EQ(outcome[1].text(), cause.text());
  const std::vector<Floats> after = residual();
  EXPECT_EQ(after[2], before[2]);
  EXPECT_EQ(after[3], before[3]);
  gradients = ramps();
  for (const Status& status : group_.run(layout, gradients)) {
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[0], gradients[2]);
}

// Returns the elements of the stripes of one share, in the order of tensors.
Floats of_share(const Scheme& scheme, const net::HostGroups& groups, int share, const Tensors& tensors) {
  Floats values;
  for (std::size_t t = 0; t < tensors.size(); ++t) {
    const compression::Ownership ownership =
        ownership_of(scheme.stripe_of(tensors[t].size()), 1, kFaultRanks, &groups, static_cast<int>(t));
    for (std::size_t i = 0; i < tensors[t].size(); ++i) {
      if (ownership.share_of(static_cast<std::int64_t>(i)) == share) {
        values.push_back(tensors[t][i]);
      }
    }
  }
  return values;
}

Tensors residuals_of(const Group& group, Rank rank) {
  return {group.residual(rank, 0), group.residual(rank, 1)};
}

// Rank 1 is a host and exchanges the first share with rank 0 and the second with rank 2, the ranks of the other host.
TEST(ReductionFaultsByHost, ACorruptShareMovesNothingOfItAndTheOtherMovesWhollyOrNotAtAll) {
  const compression::PayloadCodec& codec = *compression::find_payload_codec("group_topk");
  const Scheme scheme{&codec, ReductionKind::kGather, example_params(codec, true), kFaultRanks};
  const auto damage = std::make_shared<std::vector<Damage>>();
  const net::HostGroups* groups = nullptr;
  Group group(scheme, kSizes, "hosts");
  group.wrap([&](Rank rank, net::Collectives& inner) {
    groups = rank == 1 ? inner.host_groups() : groups;
    return std::make_unique<Damaging>(inner, rank == 1 ? damage : std::make_shared<std::vector<Damage>>(), 1);
  });
  Group sound(scheme, kSizes, "hosts");
  const Layout layout = make_layout(scheme, kSizes, Cut::kFused);
  for (Group* const one : {&group, &sound}) {
    Gradients gradients = ramps();
    for (const Status& status : one->run(layout, gradients)) {
      ASSERT_TRUE(status.ok()) << status.to_string();
    }
  }
  const Tensors before = residuals_of(group, 1);
  Gradients gradients = ramps();
  sound.run(layout, gradients);
  const Tensors moved = residuals_of(sound, 1);
  // Rank 2 is the first of the two ranks that exchange it.
  *damage = {{OpKind::kAllgather, 0, 74, std::byte{0xFF}}};
  gradients = ramps();
  const Status outcome = group.run(layout, gradients)[1];
  EXPECT_EQ(outcome.code(), Code::kCorrupt) << outcome.to_string();
  EXPECT_EQ(outcome.blame().rank, 2);
  EXPECT_EQ(outcome.blame().tensor, "tensor0") << outcome.to_string();
  const Tensors after = residuals_of(group, 1);
  EXPECT_NE(of_share(scheme, *groups, 1, before), of_share(scheme, *groups, 1, moved));
  EXPECT_EQ(of_share(scheme, *groups, 1, after), of_share(scheme, *groups, 1, before));
  const Floats other = of_share(scheme, *groups, 0, after);
  EXPECT_TRUE(other == of_share(scheme, *groups, 0, before) || other == of_share(scheme, *groups, 0, moved));
  damage->clear();
  gradients = ramps();
  for (const Status& status : group.run(layout, gradients)) {
    EXPECT_TRUE(status.ok()) << status.to_string();
  }
  EXPECT_EQ(gradients[0], gradients[1]);
  EXPECT_EQ(gradients[0], gradients[2]);
}

INSTANTIATE_TEST_SUITE_P(All, ReductionFaults, ::testing::ValuesIn(kCases), case_name);

}  // namespace
}  // namespace sirtaki::engine::testing
