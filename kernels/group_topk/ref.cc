#include <algorithm>
#include <cstring>
#include <numeric>
#include <vector>

#include "kernels/group_topk/payload.h"

namespace sirtaki::kernels::ref {
namespace {

// Returns the offsets of the `keep` largest, ascending.
std::vector<std::int32_t> select(const std::vector<float>& group, std::size_t keep) {
  std::vector<std::int32_t> order(group.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&group](std::int32_t a, std::int32_t b) {
    return magnitude_bits(group[static_cast<std::size_t>(a)]) > magnitude_bits(group[static_cast<std::size_t>(b)]);
  });
  order.resize(keep);
  std::sort(order.begin(), order.end());
  return order;
}

}  // namespace

bool group_topk_encode(const GroupTopk& how, std::int64_t n, const Feedback& arrays, std::byte* payload) {
  PayloadWriter writer(how, static_cast<std::size_t>(group_topk_entries(how, n)), payload);
  for_each_group(how, static_cast<std::size_t>(n), [&](const GroupEntries& group) {
    std::vector<float> a(group.elements);
    for (std::size_t i = 0; i < group.elements; ++i) {
      a[i] = element(arrays, group.first + i);
    }
    std::vector<float> left = a;
    const std::vector<std::int32_t> chosen = select(a, group.entries);
    writer.put_all(chosen, reinterpret_cast<const std::byte*>(a.data()), reinterpret_cast<std::byte*>(left.data()));
    if (arrays.left != nullptr) {
      std::memcpy(arrays.left + group.first * sizeof(float), left.data(), group.elements * sizeof(float));
    }
  });
  return writer.finite();
}

}  // namespace sirtaki::kernels::ref
