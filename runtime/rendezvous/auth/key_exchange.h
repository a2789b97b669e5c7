// X25519: two processes that send each other their public keys get a key that nobody who reads both can know.
//
// Pure functions; any thread. Neither side learns who the other is: whoever can replace messages on the way can take
// the place of each, so the channel has to protect what is written, though not what is read.
#pragma once

#include "runtime/base/status.h"
#include "runtime/rendezvous/auth/secret.h"

namespace sirtaki::rendezvous {

// Keys of X25519 have the size and the hexadecimal form of secrets.
struct KeyPair {
  Secret own;  // stays in this process
  Secret shown;
};

Result<KeyPair> make_key_pair();
// Returns the key that both sides get of their own private key and the other's public one. kInvalidArgument: `shown` is
// no point that an honest side would show.
Result<Secret> shared_key(const Secret& own, const Secret& shown);

}  // namespace sirtaki::rendezvous
