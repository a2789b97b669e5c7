// Secret: the per-job key every connection, control and data, must prove. Never on a command line, never logged.
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

  Secret() = default;  // all zero: refused by every handshake
  static Result<Secret> generate();
  // A file that only its owner can read (mode 0600 or 0400), holding kBytes as hexadecimal digits.
  static Result<Secret> from_file(const std::string& path);
  // An inherited file descriptor, of a file or a pipe, with the same content; read from its beginning and closed. What
  // is neither is refused and stays open.
  static Result<Secret> from_fd(int fd);
  static Result<Secret> from_hex(const std::string& hex);

  Status write_file(const std::string& path) const;  // creates it with mode 0600; fails if it exists
  std::string to_hex() const;
  ConstBytes bytes() const { return bytes_; }
  bool is_set() const;

 private:
  std::array<std::byte, kBytes> bytes_{};
};

}  // namespace sirtaki::rendezvous
