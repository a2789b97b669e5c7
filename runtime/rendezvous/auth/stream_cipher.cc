#include "runtime/rendezvous/auth/stream_cipher.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <string_view>

#include "runtime/base/check.h"

namespace sirtaki::rendezvous {

namespace {

constexpr std::size_t kLength = sizeof(std::uint32_t);
constexpr std::size_t kTag = 16;
constexpr std::size_t kNonceBytes = 12;

unsigned char* raw(std::byte* bytes) {
  return reinterpret_cast<unsigned char*>(bytes);
}

const unsigned char* raw(const std::byte* bytes) {
  return reinterpret_cast<const unsigned char*>(bytes);
}

}  // namespace

// Key and position of one direction.
struct StreamCipher::Direction {
  Direction(const Secret& session, std::string_view label) : context(EVP_CIPHER_CTX_new(), EVP_CIPHER_CTX_free) {
    unsigned int size = 0;
    const auto* made = HMAC(EVP_sha256(), session.bytes().data(), static_cast<int>(session.bytes().size()),
                            reinterpret_cast<const unsigned char*>(label.data()), label.size(), key.data(), &size);
    SRT_CHECK(made != nullptr && size == key.size() && context != nullptr);
  }
  ~Direction() { OPENSSL_cleanse(key.data(), key.size()); }
  Direction(const Direction&) = delete;
  Direction& operator=(const Direction&) = delete;

  // Returns the nonce of the next record, which is used once.
  std::array<unsigned char, kNonceBytes> next() {
    std::array<unsigned char, kNonceBytes> nonce{};
    std::memcpy(nonce.data(), &number, sizeof(number));
    ++number;
    return nonce;
  }

  std::array<unsigned char, Secret::kBytes> key{};
  std::uint64_t number = 0;
  std::unique_ptr<EVP_CIPHER_CTX, decltype(&EVP_CIPHER_CTX_free)> context;
};

StreamCipher::StreamCipher(const Secret& session, Side side)
    : out_(std::make_unique<Direction>(session, side == Side::kInitiator ? "to acceptor" : "to initiator")),
      in_(std::make_unique<Direction>(session, side == Side::kInitiator ? "to initiator" : "to acceptor")) {
  SRT_CHECK(session.is_set());
}

StreamCipher::StreamCipher(StreamCipher&&) noexcept = default;
StreamCipher::~StreamCipher() = default;

std::vector<std::byte> StreamCipher::seal(ConstBytes plain) {
  std::vector<std::byte> sealed;
  sealed.reserve(plain.size() + (plain.size() / kMaxRecord + 1) * (kLength + kTag));
  while (!plain.empty()) {
    const ConstBytes part = plain.first(std::min(plain.size(), kMaxRecord));
    plain = plain.subspan(part.size());
    const std::size_t at = sealed.size();
    sealed.resize(at + kLength + part.size() + kTag);
    const auto length = static_cast<std::uint32_t>(part.size());
    std::memcpy(sealed.data() + at, &length, kLength);
    EVP_CIPHER_CTX* context = out_->context.get();
    std::byte* text = sealed.data() + at + kLength;
    int size = 0;
    const bool done =
        EVP_EncryptInit_ex(context, EVP_aes_256_gcm(), nullptr, out_->key.data(), out_->next().data()) == 1 &&
        EVP_EncryptUpdate(context, raw(text), &size, raw(part.data()), static_cast<int>(part.size())) == 1 &&
        EVP_EncryptFinal_ex(context, raw(text) + size, &size) == 1 &&
        EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_GET_TAG, kTag, text + part.size()) == 1;
    SRT_CHECK(done);
  }
  return sealed;
}

Status StreamCipher::open_record(ConstBytes record, std::vector<std::byte>& plain) {
  const std::size_t size = record.size() - kTag;
  const std::size_t at = plain.size();
  plain.resize(at + size);
  std::array<unsigned char, kTag> tag{};
  std::memcpy(tag.data(), record.data() + size, kTag);
  EVP_CIPHER_CTX* context = in_->context.get();
  int written = 0;
  const bool genuine =
      EVP_DecryptInit_ex(context, EVP_aes_256_gcm(), nullptr, in_->key.data(), in_->next().data()) == 1 &&
      EVP_DecryptUpdate(context, raw(plain.data() + at), &written, raw(record.data()), static_cast<int>(size)) == 1 &&
      EVP_CIPHER_CTX_ctrl(context, EVP_CTRL_GCM_SET_TAG, kTag, tag.data()) == 1 &&
      EVP_DecryptFinal_ex(context, raw(plain.data() + at) + written, &written) == 1;
  if (!genuine) {
    plain.resize(at);
    return corrupt("the bytes of the connection have been changed on their way");
  }
  return {};
}

Status StreamCipher::open(ConstBytes sealed, std::vector<std::byte>& plain) {
  SRT_TRY(failed_);
  received_.insert(received_.end(), sealed.begin(), sealed.end());
  std::size_t used = 0;
  while (failed_.ok() && received_.size() - used >= kLength) {
    std::uint32_t length = 0;
    std::memcpy(&length, received_.data() + used, kLength);
    if (length == 0 || length > kMaxRecord) {
      failed_ = corrupt("a record of " + std::to_string(length) + " bytes");
      break;
    }
    if (received_.size() - used < kLength + length + kTag) {
      break;
    }
    failed_ = open_record(ConstBytes(received_).subspan(used + kLength, length + kTag), plain);
    used += kLength + length + kTag;
  }
  received_.erase(received_.begin(), received_.begin() + static_cast<std::ptrdiff_t>(used));
  return failed_;
}

}  // namespace sirtaki::rendezvous
