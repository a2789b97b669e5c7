// Reads structs of the interface as callers built against older and newer headers lay them out.
//
// A struct begins with struct_size, its size in the caller's header, and versions append fields only. An older caller's
// fields are there, and those that came later get the value that means nothing. A newer caller's additional bytes have
// to be zero, which means nothing too. Pure functions; any thread. Nothing is read behind a struct's own size.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>

#include "adapters/c/sirtaki.h"
#include "runtime/base/status.h"

namespace sirtaki::adapters {

// Checks struct_size of the struct at `given`: at least `least` bytes, the fields of the first version, and zeros
// behind `known`, the size in this library's header. Returns struct_size.
Result<std::size_t> check_struct_size(const void* given, std::size_t least, std::size_t known, const char* name);

// Copies the fields that the caller and this library both know over `fields`, which holds the meaning of absent ones.
void copy_known(const void* given, std::size_t size, void* fields, std::size_t known);

template <class Struct>
Result<Struct> known_fields(const void* given, Struct absent, std::size_t least, const char* name) {
  SRT_ASSIGN(const std::size_t size, check_struct_size(given, least, sizeof(Struct), name));
  copy_known(given, size, &absent, sizeof(Struct));
  absent.struct_size = sizeof(Struct);
  return absent;
}

Result<sirtaki_tensor> known_tensor(const void* given);
// Returns tensor `index` of an array, whose elements are all as long as the first.
Result<sirtaki_tensor> tensor_at(const sirtaki_tensor* tensors, int index);

// Returns a request with its tensors in place. They lie in the middle of the caller's struct, and all that follows
// moves with their size, which is input.struct_size: of output nothing is checked here.
Result<sirtaki_request_args> known_request(const void* given);
Result<sirtaki_init_args> known_init(const void* given);
Result<sirtaki_stream_args> known_stream(const void* given);
Result<sirtaki_local_args> known_local(const void* given);
Result<sirtaki_local_step_args> known_local_step(const void* given);

// Writes an outcome as far as the caller's header knows it; zeros behind.
Status write_outcome(const sirtaki_local_outcome& from, sirtaki_local_outcome* to);

}  // namespace sirtaki::adapters
