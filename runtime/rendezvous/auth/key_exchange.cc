#include "runtime/rendezvous/auth/key_exchange.h"

#include <openssl/evp.h>

#include <array>
#include <memory>
#include <string>
#include <string_view>

namespace sirtaki::rendezvous {
namespace {

using Key = std::unique_ptr<EVP_PKEY, decltype(&EVP_PKEY_free)>;
using Context = std::unique_ptr<EVP_PKEY_CTX, decltype(&EVP_PKEY_CTX_free)>;
using Raw = std::array<unsigned char, Secret::kBytes>;

Result<Secret> secret_of(const Raw& bytes) {
  constexpr std::string_view kDigits = "0123456789abcdef";
  std::string hex;
  for (const unsigned char byte : bytes) {
    hex += kDigits[byte / 16];
    hex += kDigits[byte % 16];
  }
  return Secret::from_hex(hex);
}

const unsigned char* raw(const Secret& secret) {
  return reinterpret_cast<const unsigned char*>(secret.bytes().data());
}

}  // namespace

Result<KeyPair> make_key_pair() {
  KeyPair pair;
  // Any 32 bytes are a valid private key.
  SRT_ASSIGN(pair.own, Secret::generate());
  const Key key(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, raw(pair.own), Secret::kBytes), EVP_PKEY_free);
  Raw shown{};
  std::size_t size = shown.size();
  if (!key || EVP_PKEY_get_raw_public_key(key.get(), shown.data(), &size) != 1 || size != shown.size()) {
    return unavailable("OpenSSL has no X25519");
  }
  SRT_ASSIGN(pair.shown, secret_of(shown));
  return pair;
}

Result<Secret> shared_key(const Secret& own, const Secret& shown) {
  const Key mine(EVP_PKEY_new_raw_private_key(EVP_PKEY_X25519, nullptr, raw(own), Secret::kBytes), EVP_PKEY_free);
  const Key theirs(EVP_PKEY_new_raw_public_key(EVP_PKEY_X25519, nullptr, raw(shown), Secret::kBytes), EVP_PKEY_free);
  if (!mine || !theirs) {
    return unavailable("OpenSSL has no X25519");
  }
  const Context context(EVP_PKEY_CTX_new(mine.get(), nullptr), EVP_PKEY_CTX_free);
  Raw made{};
  std::size_t size = made.size();
  const bool derived = context && EVP_PKEY_derive_init(context.get()) == 1 &&
                       EVP_PKEY_derive_set_peer(context.get(), theirs.get()) == 1 &&
                       EVP_PKEY_derive(context.get(), made.data(), &size) == 1 && size == made.size();
  if (!derived) {
    return invalid_argument("the public key of the other rank is none of X25519's");
  }
  return secret_of(made);
}

}  // namespace sirtaki::rendezvous
