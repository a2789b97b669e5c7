#include "runtime/base/digest.h"

// The header holds the code, so that no library is linked.
#define XXH_INLINE_ALL  // NOLINT(readability-identifier-naming)
#include <xxhash.h>

namespace sirtaki {

std::uint64_t digest_of(ConstBytes bytes, std::uint64_t seed) {
  return XXH64(bytes.data(), bytes.size(), seed);
}

}  // namespace sirtaki
