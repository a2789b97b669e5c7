#include "runtime/control/mismatch.h"

#include <algorithm>

#include "runtime/control/stall.h"

namespace sirtaki::control {
namespace {

// The values of one property by rank; empty when they are all equal. "float32 on ranks 0, 2 but int64 on rank 1"
template <class Item, class Text>
std::string differing(const std::vector<std::optional<Item>>& items, Text text_of, Rank* culprit) {
  std::vector<std::pair<std::string, std::vector<Rank>>> groups;
  for (Rank r = 0; r < static_cast<Rank>(items.size()); ++r) {
    const std::string value = text_of(*items[static_cast<std::size_t>(r)]);
    const auto known = std::find_if(groups.begin(), groups.end(), [&](const auto& g) { return g.first == value; });
    if (known != groups.end()) {
      known->second.push_back(r);
    } else {
      groups.push_back({value, {r}});
    }
  }
  if (groups.size() == 1) {
    return {};
  }
  const auto fewest = std::min_element(groups.begin(), groups.end(), [](const auto& a, const auto& b) {
    return a.second.size() < b.second.size() || (a.second.size() == b.second.size() && a.second > b.second);
  });
  *culprit = fewest->second.front();
  std::string text;
  for (const auto& [value, ranks] : groups) {
    text += (text.empty() ? "" : " but ") + value + " on " + ranks_to_string(ranks);
  }
  return text;
}

std::string dims_text(const OpMeta& m) {
  if (m.kind != OpKind::kAllgather && m.kind != OpKind::kAlltoall) {
    return dims_to_string(m.dims);
  }
  std::vector<std::int64_t> rest(m.dims.begin() + (m.dims.empty() ? 0 : 1), m.dims.end());
  return m.dims.empty() ? "[]" : "[*" + (rest.empty() ? "]" : ", " + dims_to_string(rest).substr(1));
}

std::string device_text(DeviceType device) {
  return device == DeviceType::kCpu ? "CPU" : "GPU";
}

}  // namespace

Status describe_mismatch(const std::string& name, const std::vector<std::optional<OpMeta>>& metas) {
  struct Property {
    const char* what;
    std::string (*text)(const OpMeta&);
    const char* cause;
  };
  static const std::vector<Property> kProperties = {
      {"operations", [](const OpMeta& m) { return std::string(op_kind_name(m.kind)); },
       "two different operations use one name, or the ranks take different branches"},
      {"data types", [](const OpMeta& m) { return std::string(dtype_name(m.dtype)); },
       "a cast or a dtype option on some ranks only"},
      {"reduce operations", [](const OpMeta& m) { return std::string(reduce_op_name(m.reduce_op)); },
       "`op` differs between ranks"},
      {"root ranks", [](const OpMeta& m) { return std::to_string(m.root); }, "`root_rank` must be the same everywhere"},
      {"shapes", dims_text, "different models, batch sizes or data on the ranks"},
      {"memory layouts (strides)",
       [](const OpMeta& m) { return m.strides.empty() ? std::string("row-major") : dims_to_string(m.strides); },
       "channels_last or a transposed tensor on some ranks only"},
      {"devices", [](const OpMeta& m) { return device_text(m.device); }, "a tensor was moved on some ranks only"},
      {"scale factors",
       [](const OpMeta& m) { return std::to_string(m.prescale) + " and " + std::to_string(m.postscale); },
       "prescale_factor or postscale_factor differ"},
  };
  for (const Property& property : kProperties) {
    Rank culprit = -1;
    const std::string text = differing(metas, property.text, &culprit);
    if (!text.empty()) {
      return {Code::kMismatch,
              "tensor '" + name + "': the ranks disagree on " + property.what + ": " + text +
                  ". Likely cause: " + property.cause,
              {culprit, name}};
    }
  }
  return {};
}

Status describe_mismatch(const std::string& name, const std::vector<std::optional<StreamOpen>>& specs) {
  Rank culprit = -1;
  const auto disagree = [&](const std::string& what, const std::string& text, const std::string& tensor) {
    return Status(Code::kMismatch,
                  "stream '" + name + "': the ranks disagree on " + what + ": " + text +
                      ". Likely cause: different models or optimizer arguments on the ranks",
                  {culprit, tensor});
  };
  if (auto t = differing(
          specs, [](const StreamOpen& s) { return std::to_string(s.tensors.size()); }, &culprit);
      !t.empty()) {
    return disagree("the number of tensors", t, name);
  }
  const std::size_t count = specs.front()->tensors.size();
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& tensor = specs.front()->tensors[i].name;
    const auto of = [&](auto property) {
      return differing(
          specs, [&](const StreamOpen& s) { return property(s.tensors[i]); }, &culprit);
    };
    if (auto t = of([](const StreamTensorMeta& m) { return m.name; }); !t.empty()) {
      return disagree("the name of tensor number " + std::to_string(i), t, tensor);
    }
    if (auto t = of([](const StreamTensorMeta& m) { return dims_to_string(m.dims); }); !t.empty()) {
      return disagree("the shape of '" + tensor + "'", t, tensor);
    }
    if (auto t = of([](const StreamTensorMeta& m) { return std::string(dtype_name(m.dtype)); }); !t.empty()) {
      return disagree("the data type of '" + tensor + "'", t, tensor);
    }
    if (auto t = of([](const StreamTensorMeta& m) { return dims_to_string(m.strides); }); !t.empty()) {
      return disagree("the memory layout (strides) of '" + tensor + "'", t, tensor);
    }
    if (auto t = of([](const StreamTensorMeta& m) { return device_text(m.device); }); !t.empty()) {
      return disagree("the device of '" + tensor + "'", t, tensor);
    }
  }
  if (auto t = differing(
          specs, [](const StreamOpen& s) { return std::string(reduce_op_name(s.reduce_op)); }, &culprit);
      !t.empty()) {
    return disagree("the reduce operation", t, name);
  }
  if (auto t = differing(
          specs, [](const StreamOpen& s) { return s.codec; }, &culprit);
      !t.empty()) {
    return disagree("the codec", t, name);
  }
  const auto scales = [](const StreamOpen& s) {
    return std::to_string(s.prescale) + " and " + std::to_string(s.postscale);
  };
  if (auto t = differing(specs, scales, &culprit); !t.empty()) {
    return disagree("the scale factors", t, name);
  }
  if (auto t = differing(
          specs, [](const StreamOpen& s) { return std::to_string(s.plan_digest); }, &culprit);
      !t.empty()) {
    return disagree("the digest of the plan", t, name);
  }
  return {};
}

}  // namespace sirtaki::control
