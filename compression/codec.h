// Codec: how the elements of a partition travel.
//
// For: the engine's reductions, which join codecs and collectives. Owned by: the catalog (catalog.h); immutable, so any
// thread may use one. Knows no network, no plan and no tensor names.
// The size of a payload follows from dtype and number of elements alone, so a receiver knows it beforehand. Elements of
// a dtype that a codec does not handle travel as they are. Memory may be unaligned; in and out do not overlap.
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
  std::string_view name;  // value of options
  std::string_view help;  // one line for a person
};

class Codec {
 public:
  explicit Codec(CodecInfo info) : info_(info) {}
  Codec(const Codec&) = delete;
  Codec& operator=(const Codec&) = delete;
  virtual ~Codec() = default;

  CodecId id() const { return info_.id; }
  std::string_view name() const { return info_.name; }
  std::string_view help() const { return info_.help; }

  virtual bool handles(DType dtype) const = 0;

  // A payload is one number of wire_dtype() for each element, and a sum of payloads decodes to the sum: a dense
  // allreduce in wire_dtype() may carry it.
  virtual bool summable() const = 0;

  // What payloads of elements of `dtype` are made of. `dtype` itself: encode() and decode() copy.
  DType wire_dtype(DType dtype) const { return handles(dtype) ? wire_of(dtype) : dtype; }

  // Exact size of the payload of n elements, n >= 0.
  std::size_t encoded_bytes(DType dtype, std::int64_t n) const;

  // in: whole elements of `dtype`; out: exactly their encoded_bytes(). The same input gives the same payload on every
  // CPU.
  void encode(DType dtype, ConstBytes in, Bytes out) const;

  // out: whole elements of `dtype`. `in` came over a network: kCorrupt when it cannot be their payload; `out` is
  // undefined then.
  Status decode(DType dtype, ConstBytes in, Bytes out) const;

 private:
  // As the public methods; for dtypes it handles, with sizes that fit.
  virtual DType wire_of(DType dtype) const = 0;
  virtual std::size_t payload_bytes(DType dtype, std::int64_t n) const = 0;
  virtual void encode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const = 0;
  virtual Status decode_elements(DType dtype, const std::byte* in, std::int64_t n, std::byte* out) const = 0;

  CodecInfo info_;
};

}  // namespace sirtaki::compression
