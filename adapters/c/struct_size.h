// Reads structs of callers that were built with an older or a newer version of sirtaki.h.
//
// A struct begins with struct_size, its size in the header of the caller, and versions only append fields. Fields that
// an older caller lacks get their neutral value. Additional bytes of a newer caller must be zero, which is neutral,
// too. Pure functions; any thread. Nothing is read past struct_size bytes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "adapters/c/sirtaki.h"
#include "runtime/base/status.h"

namespace sirtaki::adapters {

// Returns struct_size of the struct at `given`. Requires at least `least` bytes, the size of the first version, and
// zeros after `known` bytes, the size in the header of this library.
Result<std::size_t> check_struct_size(const void* given, std::size_t least, std::size_t known, const char* name);

// Copies the fields that the caller and this library both know over `fields`, which holds the values of absent fields.
void copy_known(const void* given, std::size_t size, void* fields, std::size_t known);

// Returns the struct at `given`, with values of `absent` for the fields that the caller lacks.
template <class Struct>
Result<Struct> known_fields(const void* given, Struct absent, std::size_t least, const char* name) {
  SRT_ASSIGN(const std::size_t size, check_struct_size(given, least, sizeof(Struct), name));
  copy_known(given, size, &absent, sizeof(Struct));
  absent.struct_size = sizeof(Struct);
  return absent;
}

// Returns the struct in the layout of this library, with neutral values for absent fields.
Result<sirtaki_tensor> known_tensor(const void* given);
// Returns tensor `index` of an array whose elements all have the struct_size of the first.
Result<sirtaki_tensor> tensor_at(const sirtaki_tensor* tensors, int index);

// Returns a request with its tensors in place. The tensors are in the middle of the struct, so the offsets of later
// fields depend on their size, input.struct_size. Fields of `output` are not checked here.
Result<sirtaki_request_args> known_request(const void* given);
Result<sirtaki_init_args> known_init(const void* given);
Result<sirtaki_stream_args> known_stream(const void* given);
Result<sirtaki_local_args> known_local(const void* given);
Result<sirtaki_local_step_args> known_local_step(const void* given);
Result<sirtaki_forecast_args> known_forecast(const void* given);

// Writes the fields of an outcome that the header of the caller has, and zeros after them.
Status write_outcome(const sirtaki_local_outcome& from, sirtaki_local_outcome* to);

}  // namespace sirtaki::adapters
