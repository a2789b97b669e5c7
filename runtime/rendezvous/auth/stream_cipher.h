// StreamCipher: encrypts the bytes of one connection after its handshake, and notices every change of them.
//
// Each direction is a sequence of records {u32 length, ciphertext, tag of 16 bytes} of AES-256-GCM under a key of its
// own, made from the session key of the handshake; the nonce is the number of the record. So nobody without the secret
// can read, change, repeat, reorder or insert bytes. The end of a connection is not protected: the user's protocol
// says what is missing then.
// Used by the launcher for hosts that join a job. One thread.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "runtime/base/status.h"
#include "runtime/base/types.h"
#include "runtime/rendezvous/auth/secret.h"

namespace sirtaki::rendezvous {

class StreamCipher {
 public:
  static constexpr std::size_t kMaxRecord = std::size_t{64} << 10;  // payload bytes; longer input is cut
  enum class Side { kInitiator, kAcceptor };                        // role in the handshake

  StreamCipher(const Secret& session, Side side);
  StreamCipher(StreamCipher&&) noexcept;
  ~StreamCipher();

  // Returns the records for these bytes.
  std::vector<std::byte> seal(ConstBytes plain);
  // Takes received bytes, and appends the payload of each record that is complete to `plain`. Holds at most one record
  // between two calls. kCorrupt, which is final: the bytes are not those that the other side has sent.
  Status open(ConstBytes sealed, std::vector<std::byte>& plain);

 private:
  struct Direction;
  Status open_record(ConstBytes record, std::vector<std::byte>& plain);

  std::unique_ptr<Direction> out_;
  std::unique_ptr<Direction> in_;
  std::vector<std::byte> received_;
  Status failed_;
};

}  // namespace sirtaki::rendezvous
