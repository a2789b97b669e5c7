#include "launcher/join/join_secret.h"

#include <filesystem>

namespace sirtaki::launcher {

using rendezvous::Secret;

Result<Secret> join_secret(const std::string& file, const Environment& environment, bool may_create) {
  if (file.empty()) {
    const auto found = environment.find(kJoinSecretVariable);
    if (found == environment.end()) {
      return invalid_argument(
          std::string("the secret of the job is missing; give --secret-file FILE") +
          (may_create ? ", which is written if it does not exist, or set " : ", the file of the launcher, or set ") +
          std::string(kJoinSecretVariable));
    }
    Result<Secret> secret = Secret::from_hex(found->second);
    return secret ? secret : secret.status().with_context(kJoinSecretVariable);
  }
  std::error_code error;
  const bool missing = std::filesystem::symlink_status(file, error).type() == std::filesystem::file_type::not_found;
  if (missing && may_create) {
    SRT_ASSIGN(const Secret secret, Secret::generate());
    SRT_TRY(secret.write_file(file).with_context("--secret-file"));
    return secret;
  }
  Result<Secret> secret = Secret::from_file(file);
  return secret ? secret : secret.status().with_context("--secret-file");
}

}  // namespace sirtaki::launcher
