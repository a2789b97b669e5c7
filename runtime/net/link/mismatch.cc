#include "runtime/net/link/mismatch.h"

#include <string>

namespace sirtaki::net {

Status mismatch_error(Rank peer, const Expectation& here, const Expectation& there) {
  std::string text = "rank " + std::to_string(peer) + " takes part in the same operation with other arguments: ";
  if (here.length != there.length) {
    text +=
        "a message of " + std::to_string(there.length) + " bytes there, " + std::to_string(here.length) + " bytes here";
  } else {
    text += "kind, dtype, reduce operation, root or total size differ";
  }
  return {Code::kMismatch, std::move(text), {peer, {}}};
}

}  // namespace sirtaki::net
