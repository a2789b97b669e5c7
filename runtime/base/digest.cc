#include "runtime/base/digest.h"

#include <xxhash.h>

namespace sirtaki {

std::uint64_t digest_of(ConstBytes bytes, std::uint64_t seed) {
  return XXH64(bytes.data(), bytes.size(), seed);
}

}  // namespace sirtaki
