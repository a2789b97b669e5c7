// X25519 key exchange: two processes that exchange public keys get a key that readers of the exchange do not know.
//
// Pure functions; any thread. The exchange does not authenticate the sides: an attacker who can replace messages can
// impersonate each, so the channel must protect messages against changes, but not against readers.
#pragma once

#include "runtime/base/status.h"
#include "runtime/rendezvous/auth/secret.h"

namespace sirtaki::rendezvous {

// A private and a public key of X25519, which have the size and the hexadecimal form of secrets.
struct KeyPair {
  Secret own;    // private; stays in this process
  Secret shown;  // public; sent to the other side
};

Result<KeyPair> make_key_pair();
// Returns the key that both sides compute, each from its own private key and the public key of the other.
// kInvalidArgument: `shown` is not a public key that an honest side can have.
Result<Secret> shared_key(const Secret& own, const Secret& shown);

}  // namespace sirtaki::rendezvous
