// Declarations of make_<name>() for every row of runtime/base/codecs.inc.
//
// The file of each codec defines its function: make_none() returns a Codec, make_int8() a PayloadCodec. The catalog
// calls each function once. For a row without a definition, the linker reports an error that names the function.
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
