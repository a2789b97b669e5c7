#include "runtime/rendezvous/auth/secret.h"

#include <fcntl.h>
#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <system_error>

namespace sirtaki::rendezvous {

namespace {

// Longest secret file: the digits, and white space around them.
constexpr std::size_t kMaxFile = 2 * Secret::kBytes + 32;

constexpr const char* kMakeSecret = "openssl rand -hex 32";

class Fd {
 public:
  explicit Fd(int fd) : fd_(fd) {}
  Fd(const Fd&) = delete;
  Fd& operator=(const Fd&) = delete;
  ~Fd() {
    if (fd_ >= 0) {
      ::close(fd_);
    }
  }
  int get() const { return fd_; }

 private:
  int fd_;
};

std::string error_text(int error) {
  return std::generic_category().message(error);
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') {
    return c - '0';
  }
  if (c >= 'a' && c <= 'f') {
    return c - 'a' + 10;
  }
  if (c >= 'A' && c <= 'F') {
    return c - 'A' + 10;
  }
  return -1;
}

Result<Secret> read_secret(int fd, const std::string& what) {
  std::string text(kMaxFile + 1, '\0');
  std::size_t used = 0;
  while (used < text.size()) {
    const ssize_t got = ::read(fd, text.data() + used, text.size() - used);
    if (got < 0 && errno == EINTR) {
      continue;
    }
    if (got < 0) {
      return unavailable("cannot read " + what + ": " + error_text(errno));
    }
    if (got == 0) {
      break;
    }
    used += static_cast<std::size_t>(got);
  }
  text.resize(used);
  auto is_space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && is_space(text.back())) {
    text.pop_back();
  }
  Result<Secret> secret = Secret::from_hex(text);
  OPENSSL_cleanse(text.data(), text.size());
  if (!secret) {
    return secret.status().with_context(what);
  }
  return secret;
}

}  // namespace

Result<Secret> Secret::generate() {
  Secret secret;
  if (RAND_bytes(reinterpret_cast<unsigned char*>(secret.bytes_.data()), static_cast<int>(kBytes)) != 1) {
    return unavailable("cannot make a job secret: the system's random number generator failed");
  }
  return secret;
}

Result<Secret> Secret::from_file(const std::string& path) {
  const Fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  const std::string what = "secret file " + path;
  if (fd.get() < 0) {
    return unavailable("cannot open " + what + ": " + error_text(errno) + "; fix: write it with (umask 077; " +
                       kMakeSecret + " > FILE), the same on every host");
  }
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) {
    return unavailable("cannot read " + what + ": " + error_text(errno));
  }
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(what + " is not a plain file");
  }
  if ((info.st_mode & 077) != 0) {
    return invalid_argument(what + " can be read or written by other users; fix: chmod 600 " + path);
  }
  if (info.st_uid != ::geteuid() && info.st_uid != 0) {
    return invalid_argument(what + " belongs to another user; fix: make one of your own with mode 600");
  }
  return read_secret(fd.get(), what);
}

Result<Secret> Secret::from_fd(int fd) {
  const std::string what = "secret from file descriptor " + std::to_string(fd);
  struct stat info {};
  if (::fstat(fd, &info) != 0) {
    return unavailable("cannot read " + what + ": " + error_text(errno) +
                       "; a program between the launcher and this one has closed it");
  }
  // A wrapper program may have closed the descriptor and reused its number: neither read nor close anything else.
  const bool file = S_ISREG(info.st_mode) && info.st_size <= static_cast<off_t>(kMaxFile);
  if (!file && !S_ISFIFO(info.st_mode)) {
    return unavailable(what +
                       ": something else is open under this number; a program between the launcher and this "
                       "one has closed the launcher's");
  }
  // Another process that shares the descriptor may have moved its position.
  if (file && ::lseek(fd, 0, SEEK_SET) != 0) {
    return unavailable("cannot read " + what + ": " + error_text(errno));
  }
  const Fd owned(fd);
  return read_secret(fd, what);
}

Result<Secret> Secret::from_hex(const std::string& hex) {
  // Errors never quote the text: it may be a secret with one wrong character.
  if (hex.size() != 2 * kBytes) {
    return invalid_argument("a job secret is " + std::to_string(2 * kBytes) + " hexadecimal digits, not " +
                            std::to_string(hex.size()) + " characters; fix: make one with " + kMakeSecret);
  }
  Secret secret;
  for (std::size_t i = 0; i < kBytes; ++i) {
    const int high = hex_digit(hex[2 * i]);
    const int low = hex_digit(hex[2 * i + 1]);
    if (high < 0 || low < 0) {
      return invalid_argument("a job secret is hexadecimal digits only; other characters were found");
    }
    secret.bytes_[i] = static_cast<std::byte>(high * 16 + low);
  }
  if (!secret.is_set()) {
    return invalid_argument("a job secret of only zeros is not accepted");
  }
  return secret;
}

Secret Secret::from_bytes(const std::array<std::byte, kBytes>& bytes) {
  Secret secret;
  secret.bytes_ = bytes;
  return secret;
}

Status Secret::write_file(const std::string& path) const {
  if (!is_set()) {
    return invalid_argument("there is no job secret to write to " + path);
  }
  const std::string unfinished = path + "." + std::to_string(::getpid());  // nobody reads half a secret
  const Fd fd(::open(unfinished.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (fd.get() < 0) {
    return unavailable("cannot create secret file " + path + ": " + error_text(errno));
  }
  const std::string text = to_hex() + "\n";
  std::size_t written = 0;
  while (written < text.size()) {
    const ssize_t put = ::write(fd.get(), text.data() + written, text.size() - written);
    if (put < 0 && errno == EINTR) {
      continue;
    }
    if (put < 0) {
      const int error = errno;
      ::unlink(unfinished.c_str());
      return unavailable("cannot write secret file " + path + ": " + error_text(error));
    }
    written += static_cast<std::size_t>(put);
  }
  const int error = ::link(unfinished.c_str(), path.c_str()) == 0 ? 0 : errno;
  ::unlink(unfinished.c_str());
  return error == 0 ? Status() : unavailable("cannot create secret file " + path + ": " + error_text(error));
}

std::string Secret::to_hex() const {
  constexpr char kDigits[] = "0123456789abcdef";
  std::string out;
  out.reserve(2 * kBytes);
  for (const std::byte b : bytes_) {
    out += kDigits[std::to_integer<unsigned>(b) >> 4];
    out += kDigits[std::to_integer<unsigned>(b) & 15];
  }
  return out;
}

bool Secret::is_set() const {
  return std::any_of(bytes_.begin(), bytes_.end(), [](std::byte b) { return b != std::byte{0}; });
}

}  // namespace sirtaki::rendezvous
