#include "runtime/control/mismatch.h"

#include <algorithm>
#include <array>
#include <utility>

namespace sirtaki::control {
namespace {

// Groups are sorted by their lowest rank, so that texts do not depend on the order of arrival.
template <class Item>
void sort_groups(std::vector<Group<Item>>& groups) {
  std::ranges::sort(groups, {}, [](const Group<Item>& g) { return g.ranks.front(); });
}

// Returns the values of one property by rank ("float32 on ranks 0, 2 but int64 on rank 1"); empty if they are equal.
template <class Item, class Text>
std::string differing(const std::vector<Group<Item>>& items, Text text_of, Rank* culprit) {
  std::vector<Group<std::string>> groups;
  for (const Group<Item>& item : items) {
    std::string value = text_of(item.value);
    const auto known = std::ranges::find(groups, value, &Group<std::string>::value);
    if (known != groups.end()) {
      known->ranks.add(item.ranks);
    } else {
      groups.push_back({std::move(value), item.ranks});
    }
  }
  if (groups.size() == 1) {
    return {};
  }
  const auto fewest = std::ranges::min_element(groups, [](const auto& a, const auto& b) {
    return a.ranks.size() < b.ranks.size() || (a.ranks.size() == b.ranks.size() && a.ranks.front() > b.ranks.front());
  });
  *culprit = fewest->ranks.front();
  std::string text;
  for (const auto& [value, ranks] : groups) {
    text += (text.empty() ? "" : " but ") + value + " on " + ranks.to_string();
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

// Calls that are paired by their order differ in arbitrary properties if a rank makes a call that the others do not
// make.
constexpr const char* kAnotherCall =
    "one rank makes a call here that the others do not make: it evaluates alone, has another number of batches or "
    "takes "
    "another branch. Let every rank make the same calls in the same order";

std::string device_text(DeviceType device) {
  return device == DeviceType::kCpu ? "CPU" : "GPU";
}

// Returns the property in which tensors number `i` differ, and its values; empty texts if there is none.
std::pair<std::string, std::string> tensor_difference(const std::vector<Group<StreamOpen>>& groups, std::size_t i,
                                                      Rank* culprit) {
  struct Property {
    std::string what;
    std::string (*text)(const StreamTensorMeta&);
  };
  const std::string of = " of '" + groups.front().value.tensors[i].name + "'";
  const std::array<Property, 5> properties = {{
      {"the name of tensor number " + std::to_string(i), [](const StreamTensorMeta& m) { return m.name; }},
      {"the shape" + of, [](const StreamTensorMeta& m) { return dims_to_string(m.dims); }},
      {"the data type" + of, [](const StreamTensorMeta& m) { return std::string(dtype_name(m.dtype)); }},
      {"the memory layout (strides)" + of, [](const StreamTensorMeta& m) { return dims_to_string(m.strides); }},
      {"the device" + of, [](const StreamTensorMeta& m) { return device_text(m.device); }},
  }};
  for (const Property& property : properties) {
    std::string text = differing(
        groups, [&](const StreamOpen& s) { return property.text(s.tensors[i]); }, culprit);
    if (!text.empty()) {
      return {property.what, std::move(text)};
    }
  }
  return {};
}

}  // namespace

Status describe_mismatch(const std::string& name, std::vector<Group<OpMeta>> groups) {
  sort_groups(groups);
  struct Property {
    const char* what;
    std::string (*text)(const OpMeta&);
    const char* cause;
  };
  static const std::vector<Property> kProperties = {
      {"operations", [](const OpMeta& m) { return std::string(op_kind_name(m.kind)); },
       "two different operations use one name"},
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
  const Property* first = nullptr;
  std::string what;
  Rank culprit = -1;
  bool several = false;
  for (const Property& property : kProperties) {
    Rank odd = -1;
    const std::string text = differing(groups, property.text, &odd);
    if (text.empty()) {
      continue;
    }
    several = first != nullptr;
    if (several) {
      break;
    }
    first = &property;
    culprit = odd;
    what = std::string(property.what) + ": " + text;
  }
  if (first == nullptr) {
    return {};
  }
  // Tensors of one call rarely differ in two ways.
  const std::string cause = several ? kAnotherCall : std::string(first->cause) + ", or " + kAnotherCall;
  return {Code::kMismatch,
          "tensor '" + name + "': the ranks disagree on " + what + ". Likely cause: " + cause,
          {culprit, name}};
}

Status describe_mismatch(const std::string& name, std::vector<Group<StreamOpen>> groups) {
  if (groups.size() == 1) {
    return {};
  }
  sort_groups(groups);
  Rank culprit = -1;
  const auto disagree = [&](const std::string& what, const std::string& text, const std::string& tensor) {
    return Status(Code::kMismatch,
                  "stream '" + name + "': the ranks disagree on " + what + ": " + text +
                      ". Likely cause: different models or optimizer arguments on the ranks",
                  {culprit, tensor});
  };
  if (auto t = differing(
          groups, [](const StreamOpen& s) { return std::to_string(s.tensors.size()); }, &culprit);
      !t.empty()) {
    return disagree("the number of tensors", t, name);
  }
  for (std::size_t i = 0; i < groups.front().value.tensors.size(); ++i) {
    const auto [what, text] = tensor_difference(groups, i, &culprit);
    if (!text.empty()) {
      return disagree(what, text, groups.front().value.tensors[i].name);
    }
  }
  if (auto t = differing(
          groups, [](const StreamOpen& s) { return std::string(reduce_op_name(s.reduce_op)); }, &culprit);
      !t.empty()) {
    return disagree("the reduce operation", t, name);
  }
  if (auto t = differing(
          groups, [](const StreamOpen& s) { return s.codec; }, &culprit);
      !t.empty()) {
    return disagree("the codec", t, name);
  }
  const auto scales = [](const StreamOpen& s) {
    return std::to_string(s.prescale) + " and " + std::to_string(s.postscale);
  };
  if (auto t = differing(groups, scales, &culprit); !t.empty()) {
    return disagree("the scale factors", t, name);
  }
  if (auto t = differing(
          groups, [](const StreamOpen& s) { return std::to_string(s.plan_digest); }, &culprit);
      !t.empty()) {
    return disagree("the digest of the plan", t, name);
  }
  return {};
}

}  // namespace sirtaki::control
