// Declarations of make_<name>() for every row of runtime/base/codecs.inc.
//
// Used by the catalog, which calls each once, and by the file of each codec, which defines it: make_none() returns a
// Codec, make_int8() a PayloadCodec. A row without a definition is an error of the linker that names the function.
#pragma once

#include <memory>

#include "compression/codec.h"
#include "compression/payload_codec.h"

namespace sirtaki::compression {

#define SRT_DENSE_CODEC(name, Id, number, help) std::unique_ptr<const Codec> make_##name(CodecInfo info);
#define SRT_CODEC(name, Id, number, help, sent, keys) \
  std::unique_ptr<const PayloadCodec> make_##name(PayloadCodecInfo info);
#include "runtime/base/codecs.inc"
#undef SRT_CODEC
#undef SRT_DENSE_CODEC

}  // namespace sirtaki::compression
