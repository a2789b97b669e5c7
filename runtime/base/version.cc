#include "runtime/base/version.h"

namespace sirtaki {

std::string_view version() {
  return SIRTAKI_VERSION;
}

}  // namespace sirtaki
