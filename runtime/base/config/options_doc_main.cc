// Prints docs/options.md.
#include <cstdio>

#include "runtime/base/config/config.h"

int main() {
  const std::string page = sirtaki::options_markdown();
  return std::fwrite(page.data(), 1, page.size(), stdout) == page.size() ? 0 : 1;
}
