#include "runtime/base/config/compression_spec.h"

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

namespace sirtaki {
namespace {

Method one(const std::string& text) {
  auto spec = parse_spec(text);
  EXPECT_TRUE(spec) << spec.status().to_string();
  return spec ? spec->rules.at(0).method : method_of(methods().front());
}

TEST(Spec, ANameAloneHasItsDefaults) {
  const Method method = one("group_topk");
  EXPECT_EQ(method.info->id, MethodId::kGroupTopk);
  EXPECT_EQ(method.value("group"), 512);
  EXPECT_EQ(method.value("rate"), 655) << "1 % of 65,536";
  EXPECT_EQ(method.value("ef"), 1);
  EXPECT_EQ(method.choice("wire"), "auto");
  EXPECT_EQ(method.value("min"), 16384);
  EXPECT_EQ(method.choice("values"), "f32");
  EXPECT_EQ(one("threshold_sparse").value("reestimate"), 32);
  EXPECT_EQ(one("powersgd").value("rank"), 2);
  EXPECT_EQ(one("int8").value("block"), 256);
  EXPECT_EQ(one("twobit").value("factor"), 65536);
}

TEST(Spec, EveryMethodCanBeNamedAndItsDefaultsAreInRange) {
  for (const MethodInfo& info : methods()) {
    SCOPED_TRACE(info.name);
    EXPECT_EQ(one(std::string(info.name)).info, &info);
    EXPECT_FALSE(info.help.empty());
    for (const KeyInfo& key : info.keys) {
      EXPECT_LE(key.least, key.initial) << key.name;
      EXPECT_LE(key.initial, key.most) << key.name;
    }
  }
}

TEST(Spec, ParametersOfMostCodecsAreTheirOwnKeys) {
  EXPECT_EQ(plain_params(one("int8:block=64,ef=off")), (std::vector<std::int64_t>{0, 64}));
  EXPECT_EQ(plain_params(one("twobit:by=block")), (std::vector<std::int64_t>{1, 65536, 1}));
  EXPECT_EQ(plain_params(one("powersgd:rank=4,warm=off")), (std::vector<std::int64_t>{1, 4, 0}));
}

TEST(Spec, KeysAreReadByTheirKind) {
  const Method method = one(" group_topk : group=256 , rate=0.1% , ef=off , wire=scatter, min=1KiB,momentum=0.9 ");
  EXPECT_EQ(method.value("group"), 256);
  EXPECT_EQ(method.value("rate"), 66) << "65.5, rounded";
  EXPECT_EQ(method.value("ef"), 0);
  EXPECT_EQ(method.choice("wire"), "scatter");
  EXPECT_EQ(method.value("min"), 1024);
  EXPECT_EQ(method.value("momentum"), 58982);
  EXPECT_EQ(one("group_topk:rate=0.01").value("rate"), 655);
  EXPECT_EQ(one("group_topk:rate=100%").value("rate"), 65536);
  EXPECT_EQ(one("group_topk:rate=.5").value("rate"), 32768);
}

TEST(Spec, RulesKeepTheirOrder) {
  const auto spec = parse_spec("conv*.weight=>kernel_sparse; fc?=>twobit:factor=2 ;*=>none;");
  ASSERT_TRUE(spec) << spec.status().to_string();
  ASSERT_EQ(spec->rules.size(), 3U);
  EXPECT_FALSE(spec->for_all);
  EXPECT_EQ(spec->rules[0].glob, "conv*.weight");
  EXPECT_EQ(spec->rules[1].method.value("factor"), 2 * 65536);
  EXPECT_EQ(spec->rules[2].method.info->id, MethodId::kNone);
  EXPECT_TRUE(parse_spec("none")->for_all);
}

TEST(Spec, ErrorsNameWhatIsWrongAndWhatIsAllowed) {
  const std::vector<std::pair<std::string, std::vector<std::string>>> cases = {
      {"grup_topk", {"'grup_topk'", "did you mean group_topk?", "known are none, fp16"}},
      {"", {"unknown codec or policy ''"}},
      {"group_topk:rte=1%", {"group_topk", "no key 'rte'", "did you mean rate?", "its keys are ef, wire"}},
      {"fp16:ef=on", {"fp16 has no key 'ef'; it has none"}},
      {"group_topk:rate=200%", {"rate is '200%'", "a part such as 1% or 0.01, from 0.002% to 100%"}},
      {"group_topk:rate=0", {"rate is '0'"}},
      {"group_topk:rate=1e-2", {"rate is '1e-2'"}},
      {"group_topk:rate=1.0.0", {"rate is '1.0.0'"}},
      {"group_topk:rate=%", {"rate is '%'"}},
      {"group_topk:rate=9999999999999999999", {"rate is '9999"}},
      {"group_topk:group=0", {"group is '0'", "a whole number from 2 to 65536"}},
      {"group_topk:ef=maybe", {"ef is 'maybe'", "on or off"}},
      {"group_topk:wire=counts", {"wire is 'counts'", "one of auto, gather, scatter, ring"}},
      {"group_topk:min=-1", {"min is '-1'", "a size such as 16KiB"}},
      {"group_topk:momentum=1", {"momentum is '1'"}},
      {"group_topk:rate", {"'rate' is not key=value"}},
      {"group_topk:rate=1%,rate=2%", {"key 'rate' is given twice"}},
      {"a=>none;fc*=>tobit", {"compression rule 2 'fc*=>tobit'", "did you mean twobit?"}},
      {"a=>none;b", {"compression rule 2 'b'", "GLOB=>CODEC"}},
      {"=>none", {"compression rule 1", "*=>CODEC"}},
  };
  for (const auto& [text, parts] : cases) {
    const auto spec = parse_spec(text);
    ASSERT_FALSE(spec) << text;
    EXPECT_EQ(spec.status().code(), Code::kInvalidArgument);
    for (const std::string& part : parts) {
      EXPECT_NE(spec.status().text().find(part), std::string_view::npos) << part << " in " << spec.status().text();
    }
  }
}

TEST(Spec, GlobsMatchWholeNames) {
  EXPECT_TRUE(glob_matches("*", ""));
  EXPECT_TRUE(glob_matches("conv*", "conv1.weight"));
  EXPECT_TRUE(glob_matches("*.weight", "conv1.weight"));
  EXPECT_TRUE(glob_matches("layer?.*.weight", "layer3.conv.1.weight"));
  EXPECT_TRUE(glob_matches("*a*b*", "xaybz"));
  EXPECT_FALSE(glob_matches("conv", "conv1"));
  EXPECT_FALSE(glob_matches("conv?", "conv"));
  EXPECT_FALSE(glob_matches("*.weight", "conv1.weight_g"));
  EXPECT_FALSE(glob_matches("*a*b*c", "xaybz"));
  EXPECT_TRUE(glob_matches("w[0]", "w[0]")) << "brackets are letters";
}

TEST(Spec, PartsArePrintedAsPercent) {
  EXPECT_EQ(part_text(655), "1%");
  EXPECT_EQ(part_text(327), "0.499%");
  EXPECT_EQ(part_text(328), "0.5%");
  EXPECT_EQ(factor_text(65536), "1");
  EXPECT_EQ(factor_text(98304), "1.5");
  EXPECT_EQ(part_text(65536), "100%");
  EXPECT_EQ(part_text(32768), "50%");
  EXPECT_EQ(part_text(1), "0.002%");
  EXPECT_EQ(part_text(65535), "99.998%");
}

TEST(Spec, EveryPartIsReadAsWhatItWasWrittenFrom) {
  const std::vector<KeyInfo> keys = {{"part", KeyKind::kPart, 0, 0, params::kOne},
                                     {"factor", KeyKind::kFactor, 0, 0, params::kOne}};
  for (std::int64_t part = 0; part <= params::kOne; ++part) {
    std::vector<std::int64_t> values = {0, 0};
    const std::string text = "part=" + part_text(part) + ",factor=" + factor_text(part);
    ASSERT_TRUE(read_keys("it", keys, text, values).ok()) << text;
    ASSERT_EQ(values, (std::vector<std::int64_t>{part, part})) << text;
  }
}

TEST(Spec, DefaultsAreRoundNumbers) {
  for (const MethodInfo& method : methods()) {
    for (const KeyInfo& key : method.keys) {
      const bool part = key.kind == KeyKind::kPart || key.kind == KeyKind::kFactor;
      EXPECT_LE(value_text(key, key.initial).size(), part ? 4U : 32U) << method.name << " " << key.name;
    }
  }
}

}  // namespace
}  // namespace sirtaki
