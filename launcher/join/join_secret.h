// The secret that a host has to know to join a job: from a file, or from an environment variable.
#pragma once

#include <string>

#include "runtime/base/config/config_load.h"
#include "runtime/base/status.h"
#include "runtime/rendezvous/auth/secret.h"

namespace sirtaki::launcher {

// Reads the secret from `file`, or without a file from kJoinSecretVariable. With `may_create`, a file that does not
// exist is written with a new secret, for this user alone.
Result<rendezvous::Secret> join_secret(const std::string& file, const Environment& environment, bool may_create);

}  // namespace sirtaki::launcher
