// Codec: the encoding of the elements of a partition, one number for each element.
//
// The size of a payload follows from dtype and number of elements alone, so a receiver knows it in advance. Elements of
// a dtype that a codec does not handle are sent unchanged. Memory may be unaligned; in and out do not overlap.
// Used by the reduction algorithms of the engine, which combine codecs with collectives. Owned by the catalog
// (codecs/catalog.h); immutable, so any thread may use one. Has no notion of a network, a plan or tensor names.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

#include "runtime/base/codec_id.h"
#include "runtime/base/dtype.h"
#include "runtime/base/status.h"
#include "runtime/base/types.h"

namespace sirtaki::compression {

struct CodecInfo {
  CodecId id;
  std::string_view name;  // value of the option
};

class Codec {
 public:
  explicit Codec(CodecInfo info) : info_(info) {}
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec() = default;

  CodecId id() const { return info_.id; }
  std::string_view name() const { return info_.name; }

  virtual bool handles(DType dtype) const = 0;

  // Returns true if a sum of payloads decodes to the sum, so that a dense allreduce in wire_dtype() may carry them. The
  // payload then has one number of wire_dtype() for each element.
  virtual bool summable() const = 0;

  // Returns the dtype of the numbers in a payload of `dtype`; `dtype` itself means that encode() and decode() copy.
  DType wire_dtype(DType dtype) const { return handles(dtype) ? wire_of(dtype) : dtype; }

  // Returns the exact size of the payload of n elements, n >= 0.
  std::size_t encoded_bytes(DType dtype, std::int64_t n) const;

  // in: whole elements of `dtype`; out: exactly their encoded_bytes(). The same input gives the same payload on every
  // CPU.
  void encode(DType dtype, ConstBytes in, Bytes out) const;

  // out: whole elements of `dtype`. `in` came over a network: returns kCorrupt if it cannot be their payload; `out` is
  // undefined then.
  Status decode(DType dtype, ConstBytes in, Bytes out) const;

 private:
  // Implement the public methods, for dtypes that the codec handles and sizes that fit.
  virtual DType wire_of(DType dtype) const = 0;
  virtual std::size_t payload_bytes(DType dtype, std::int64_t n) const = 0;
  virtual void encode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const = 0;
  virtual Status decode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const = 0;

  CodecInfo info_;
};

}  // namespace sirtaki::compression
