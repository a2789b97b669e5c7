// The C interface: start and end of the session, and operations by name. Streams and introspection are in
// sirtaki_stream.cc.
#include "adapters/c/sirtaki.h"

#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "adapters/c/convert.h"
#include "adapters/c/default_session.h"
#include "adapters/c/last_error.h"
#include "adapters/c/struct_size.h"
#include "runtime/base/version.h"
#include "runtime/rendezvous/auth/key_exchange.h"

using sirtaki::Code;
using sirtaki::RequestId;
using sirtaki::Status;
using sirtaki::adapters::Active;
using sirtaki::adapters::DefaultSession;
using sirtaki::adapters::guarded;
using sirtaki::adapters::timed_out;
using sirtaki::adapters::to_duration;
using sirtaki::rendezvous::Secret;

namespace {

constexpr int kGenerationShift = 48;
constexpr std::uint64_t kIdMask = (std::uint64_t{1} << kGenerationShift) - 1;

std::uint16_t generation_of(sirtaki_request request) {
  return static_cast<std::uint16_t>(request >> kGenerationShift);
}
RequestId id_of(sirtaki_request request) {
  return RequestId{request & kIdMask};
}
sirtaki_request request_of(std::uint16_t generation, RequestId id) {
  return (static_cast<std::uint64_t>(generation) << kGenerationShift) | id.value;
}

Status null_argument(const char* name) {
  return sirtaki::invalid_argument(std::string(name) + " is NULL");
}

void copy_hex(const std::string& hex, char* out) {
  constexpr std::size_t kDigits = 2 * Secret::kBytes;
  SRT_CHECK(hex.size() == kDigits);
  std::memcpy(out, hex.c_str(), kDigits + 1);
}

// Returns the answer of `question`, asked of the open session; -1 without a session.
template <class Question>
int ask(Question&& question) noexcept {
  try {
    const auto active = DefaultSession::instance().active();
    return active ? question(*active) : -1;
  } catch (...) {
    return -1;
  }
}

sirtaki::Result<sirtaki::adapters::InitRequest> init_request(const sirtaki_init_args* given) {
  sirtaki::adapters::InitRequest request;
  if (given == nullptr) {
    return request;
  }
  SRT_ASSIGN(const sirtaki_init_args known, sirtaki::adapters::known_init(given));
  const sirtaki_init_args* args = &known;
  request.options_toml = args->options_toml != nullptr ? args->options_toml : "";
  request.interrupt = {args->interrupted, args->interrupted_context};
  request.job.rank = args->rank;
  request.job.size = args->size;
  request.job.rendezvous = args->rendezvous != nullptr ? args->rendezvous : "";
  request.job.secret_hex = args->secret_hex != nullptr ? args->secret_hex : "";
  return request;
}

Status submit(const sirtaki_request_args* args, int count, sirtaki_request* requests) {
  if (count < 0 || (count > 0 && (args == nullptr || requests == nullptr))) {
    return null_argument("args or requests");
  }
  SRT_ASSIGN(const auto active, DefaultSession::instance().need());
  std::vector<sirtaki::engine::OpSpec> ops;
  ops.reserve(static_cast<std::size_t>(count));
  const char* cursor = reinterpret_cast<const char*>(args);
  for (int i = 0; i < count; ++i) {
    const auto* current = reinterpret_cast<const sirtaki_request_args*>(cursor);
    SRT_ASSIGN(auto op, sirtaki::adapters::to_op(*current));
    ops.push_back(std::move(op));
    // The header of the caller may have another size than sizeof(sirtaki_request_args) here.
    cursor += current->struct_size;
  }
  SRT_ASSIGN(const auto ids, active->session->submit(std::move(ops)));
  for (std::size_t i = 0; i < ids.size(); ++i) {
    requests[i] = request_of(active->generation, ids[i]);
  }
  return {};
}

Status result_of(sirtaki_request request, sirtaki_tensor* output, const std::int64_t** received_splits) {
  SRT_ASSIGN(const auto active, DefaultSession::instance().need(generation_of(request)));
  const auto* result = active->session->result(id_of(request));
  if (result == nullptr) {
    return sirtaki::invalid_argument("the request has no result of the runtime's; was it waited for successfully?");
  }
  // No check of the size is needed: all fields written below exist since the first version of the struct.
  SRT_TRY(sirtaki::adapters::known_tensor(output).status());
  // The caller may write to the result, too, until it releases the request.
  output->data = const_cast<std::byte*>(result->data.data());
  output->dims = result->dims.data();
  output->ndim = static_cast<std::int32_t>(result->dims.size());
  output->strides = nullptr;
  output->device_type = SIRTAKI_CPU;
  output->device_index = 0;
  if (received_splits != nullptr) {
    *received_splits = result->received_splits.empty() ? nullptr : result->received_splits.data();
  }
  DefaultSession::instance().pin(request, active);
  return {};
}

}  // namespace

extern "C" {

sirtaki_status sirtaki_host(int32_t size, const char* bind_address, uint16_t* port, char secret_hex[65]) {
  return guarded([&]() -> Status {
    if (port == nullptr || secret_hex == nullptr) {
      return null_argument("port or secret_hex");
    }
    std::string hex;
    SRT_TRY(DefaultSession::instance().host(size, bind_address != nullptr ? bind_address : "127.0.0.1", *port, hex));
    copy_hex(hex, secret_hex);
    return {};
  });
}

sirtaki_status sirtaki_key_pair(char private_hex[65], char public_hex[65]) {
  return guarded([&]() -> Status {
    if (private_hex == nullptr || public_hex == nullptr) {
      return null_argument("private_hex or public_hex");
    }
    SRT_ASSIGN(const auto pair, sirtaki::rendezvous::make_key_pair());
    copy_hex(pair.own.to_hex(), private_hex);
    copy_hex(pair.shown.to_hex(), public_hex);
    return {};
  });
}

sirtaki_status sirtaki_shared_key(const char* private_hex, const char* other_public_hex, char key_hex[65]) {
  return guarded([&]() -> Status {
    if (private_hex == nullptr || other_public_hex == nullptr || key_hex == nullptr) {
      return null_argument("private_hex, other_public_hex or key_hex");
    }
    SRT_ASSIGN(const Secret own, Secret::from_hex(private_hex));
    SRT_ASSIGN(const Secret shown, Secret::from_hex(other_public_hex));
    SRT_ASSIGN(const Secret key, sirtaki::rendezvous::shared_key(own, shown));
    copy_hex(key.to_hex(), key_hex);
    return {};
  });
}

sirtaki_status sirtaki_init(const sirtaki_init_args* args) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const auto request, init_request(args));
    return DefaultSession::instance().init(request);
  });
}

sirtaki_status sirtaki_shutdown(void) {
  return guarded([] { return DefaultSession::instance().shutdown(); });
}

sirtaki_status sirtaki_regroup(void) {
  return guarded([] { return DefaultSession::instance().regroup(0); });
}

sirtaki_status sirtaki_regroup_at(uint32_t change) {
  return guarded([&] { return DefaultSession::instance().regroup(change); });
}

sirtaki_status sirtaki_leave_soon(void) {
  return guarded([]() -> Status {
    SRT_ASSIGN(const auto active, DefaultSession::instance().need());
    return active->session->leave_soon();
  });
}

sirtaki_status sirtaki_admit(int admits) {
  return guarded([&] { return DefaultSession::instance().admit(admits != 0); });
}

sirtaki_status sirtaki_change_wanted(int* grows, int* fresh, uint32_t* change) {
  return guarded([&]() -> Status {
    if (grows == nullptr || fresh == nullptr || change == nullptr) {
      return null_argument("grows, fresh or change");
    }
    SRT_ASSIGN(const auto found, DefaultSession::instance().growth());
    *grows = found.grows ? 1 : 0;
    *fresh = found.fresh ? 1 : 0;
    *change = found.wanted;
    return {};
  });
}

sirtaki_status sirtaki_changes_announced(uint32_t* processes) {
  return guarded([&]() -> Status {
    if (processes == nullptr) {
      return null_argument("processes");
    }
    SRT_ASSIGN(const auto found, DefaultSession::instance().growth());
    *processes = found.announced;
    return {};
  });
}

int sirtaki_is_initialized(void) {
  return ask([](const Active&) { return 1; }) == 1 ? 1 : 0;
}

int sirtaki_rank(void) {
  return ask([](const Active& active) { return active.session->rank(); });
}
int sirtaki_size(void) {
  return ask([](const Active& active) { return active.session->membership().size(); });
}
int sirtaki_local_rank(void) {
  return ask([](const Active& active) { return active.local_rank; });
}
int sirtaki_local_size(void) {
  return ask([](const Active& active) { return active.local_size; });
}
int sirtaki_cross_rank(void) {
  return ask([](const Active& active) { return active.cross_rank; });
}
int sirtaki_cross_size(void) {
  return ask([](const Active& active) { return active.cross_size; });
}
int sirtaki_is_homogeneous(void) {
  return ask([](const Active& active) { return active.homogeneous ? 1 : 0; });
}

const char* sirtaki_version(void) {
  return sirtaki::version().data();
}
int sirtaki_nccl_version(void) {
  int version = 0;
  static_cast<void>(guarded([&]() -> Status {
    SRT_ASSIGN(version, DefaultSession::instance().nccl_version());
    return {};
  }));
  return version;
}
const char* sirtaki_last_error(void) {
  return sirtaki::adapters::last_error_text();
}
int sirtaki_last_error_rank(void) {
  return sirtaki::adapters::last_error_rank();
}
const char* sirtaki_last_error_tensor(void) {
  return sirtaki::adapters::last_error_tensor();
}

sirtaki_status sirtaki_submit(const sirtaki_request_args* args, sirtaki_request* request) {
  return guarded([&] { return submit(args, 1, request); });
}

sirtaki_status sirtaki_submit_group(const sirtaki_request_args* args, int count, sirtaki_request* requests) {
  return guarded([&] { return submit(args, count, requests); });
}

sirtaki_status sirtaki_poll(sirtaki_request request, int* done) {
  return guarded([&]() -> Status {
    if (done == nullptr) {
      return null_argument("done");
    }
    SRT_ASSIGN(const auto active, DefaultSession::instance().need(generation_of(request)));
    *done = active->session->done(id_of(request)) ? 1 : 0;
    return {};
  });
}

sirtaki_status sirtaki_wait(sirtaki_request request, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const auto active, DefaultSession::instance().need(generation_of(request)));
    return active->session->wait(id_of(request), to_duration(timeout_ms)).value_or(timed_out());
  });
}

sirtaki_status sirtaki_set_gives_way(int on) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const auto active, DefaultSession::instance().need());
    active->session->set_gives_way(on != 0);
    return {};
  });
}

sirtaki_status sirtaki_result(sirtaki_request request, sirtaki_tensor* output, const int64_t** received_splits) {
  return guarded(
      [&] { return output == nullptr ? null_argument("output") : result_of(request, output, received_splits); });
}

void sirtaki_release(sirtaki_request request) {
  (void)guarded([&]() -> Status {
    std::shared_ptr<Active> owner = DefaultSession::instance().unpin(request);
    if (!owner) {
      owner = DefaultSession::instance().active();
    }
    if (owner && owner->generation == generation_of(request)) {
      owner->session->release(id_of(request));
    }
    return {};
  });
}

sirtaki_status sirtaki_watch(sirtaki_request request) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const auto active, DefaultSession::instance().need(generation_of(request)));
    active->session->watch(id_of(request));
    return {};
  });
}

sirtaki_status sirtaki_on_done(sirtaki_request request, sirtaki_done_fn done, void* context) {
  return guarded([&]() -> Status {
    if (done == nullptr) {
      return null_argument("done");
    }
    SRT_ASSIGN(const auto active, DefaultSession::instance().need(generation_of(request)));
    return active->session->on_done(id_of(request), [done, context] { done(context); });
  });
}

int sirtaki_wait_watched(sirtaki_request* requests, int capacity, int64_t timeout_ms) {
  int count = -1;
  (void)guarded([&]() -> Status {
    if (requests == nullptr || capacity < 1) {
      return null_argument("requests");
    }
    SRT_ASSIGN(const auto active, DefaultSession::instance().need());
    const auto ids = active->session->wait_watched(static_cast<std::size_t>(capacity), to_duration(timeout_ms));
    if (!ids) {
      return Status(Code::kShutdown, "the session has ended");
    }
    for (std::size_t i = 0; i < ids->size(); ++i) {
      requests[i] = request_of(active->generation, (*ids)[i]);
    }
    count = static_cast<int>(ids->size());
    return {};
  });
  return count;
}

}  // extern "C"
