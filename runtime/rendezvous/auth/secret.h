// Secret: the key of a job, which every connection must prove. It is never on a command line and never logged.
#pragma once

#include <array>
#include <cstddef>
#include <string>

#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::rendezvous {

class Secret {
 public:
  static constexpr std::size_t kBytes = 32;

  Secret() = default;  // all zero, which every handshake refuses
  // Returns a new random secret.
  static Result<Secret> generate();
  // Reads kBytes as hexadecimal digits from a file that only its owner can access (mode 0600 or 0400).
  static Result<Secret> from_file(const std::string& path);
  // Reads the same content from an inherited descriptor of a file or a pipe, from its beginning, and closes it. A
  // descriptor of any other kind is an error and stays open.
  static Result<Secret> from_fd(int fd);
  // Parses 2 * kBytes hexadecimal digits.
  static Result<Secret> from_hex(const std::string& hex);
  static Secret from_bytes(const std::array<std::byte, kBytes>& bytes);

  // Creates a file with mode 0600; fails if it exists.
  Status write_file(const std::string& path) const;
  std::string to_hex() const;
  ConstBytes bytes() const { return bytes_; }
  bool is_set() const;

 private:
  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace sirtaki::rendezvous
