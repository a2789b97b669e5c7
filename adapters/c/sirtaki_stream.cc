// The C interface: streams and introspection.
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "adapters/c/borrowed_json.h"
#include "adapters/c/convert.h"
#include "adapters/c/default_session.h"
#include "adapters/c/last_error.h"
#include "adapters/c/sirtaki.h"
#include "adapters/c/struct_size.h"
#include "runtime/base/config/compression_spec.h"
#include "runtime/base/json.h"
#include "runtime/engine/session/stream_handle.h"

using sirtaki::Duration;
using sirtaki::Status;
using sirtaki::StreamId;
using sirtaki::adapters::Active;
using sirtaki::adapters::borrowed_json;
using sirtaki::adapters::DefaultSession;
using sirtaki::adapters::guarded;
using sirtaki::adapters::timed_out;
using sirtaki::adapters::to_duration;

namespace {

constexpr int kStreamGenerationShift = 16;

std::uint16_t generation_of(sirtaki_stream stream) {
  return static_cast<std::uint16_t>(stream >> kStreamGenerationShift);
}
StreamId id_of(sirtaki_stream stream) {
  return StreamId{static_cast<std::uint16_t>(stream)};
}

// A stream and the session that it needs alive during a call.
struct OpenStream {
  std::shared_ptr<Active> session;
  sirtaki::engine::StreamHandle handle;
};

sirtaki::Result<OpenStream> find_stream(sirtaki_stream stream) {
  SRT_ASSIGN(auto active, DefaultSession::instance().need(generation_of(stream)));
  const auto handle = active->session->stream(id_of(stream));
  return OpenStream{std::move(active), handle};
}

std::string members_json(const Active& active) {
  sirtaki::JsonWriter json;
  json.begin_array();
  for (const auto& member : active.session->membership().members) {
    json.begin_object();
    json.key("rank").value(member.rank);
    json.key("hostname").value(member.hostname);
    json.key("host_id").value(member.host_id);
    json.key("pid").value(member.pid);
    json.end_object();
  }
  json.end_array();
  return std::move(json).take();
}

}  // namespace

extern "C" {

sirtaki_status sirtaki_check_codec(const char* codec) {
  return guarded([&]() -> Status {
    if (codec == nullptr) {
      return sirtaki::invalid_argument("codec is NULL");
    }
    return sirtaki::parse_spec(codec).status();
  });
}

sirtaki_status sirtaki_stream_open(const sirtaki_stream_args* args, sirtaki_stream* stream) {
  return guarded([&]() -> Status {
    if (args == nullptr || stream == nullptr) {
      return sirtaki::invalid_argument("args or stream is NULL");
    }
    SRT_ASSIGN(auto spec, sirtaki::adapters::to_stream(*args));
    SRT_ASSIGN(const auto active, DefaultSession::instance().need());
    // Other ranks have as much time to open the stream as to submit an operation.
    const Duration timeout = active->session->config().control.stall_fail;
    SRT_ASSIGN(const StreamId id, active->session->open_stream(std::move(spec), timeout));
    *stream = (static_cast<sirtaki_stream>(active->generation) << kStreamGenerationShift) | id.value;
    return {};
  });
}

sirtaki_status sirtaki_stream_ready(sirtaki_stream stream, int32_t index, const sirtaki_tensor* tensor, int absent) {
  return guarded([&]() -> Status {
    if (tensor == nullptr) {
      return sirtaki::invalid_argument("tensor is NULL");
    }
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    SRT_ASSIGN(const sirtaki_tensor known, sirtaki::adapters::known_tensor(tensor));
    SRT_ASSIGN(const auto view, sirtaki::adapters::to_view(known, "tensor of a stream"));
    if (view.data == nullptr && view.numel > 0) {
      return sirtaki::invalid_argument("tensor " + std::to_string(index) + " of the stream has no data");
    }
    return found.handle.ready(index, view, absent != 0, known.cuda_stream);
  });
}

sirtaki_status sirtaki_stream_finish(sirtaki_stream stream) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    return found.handle.finish();
  });
}

sirtaki_status sirtaki_stream_wait(sirtaki_stream stream, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    return found.handle.wait(to_duration(timeout_ms)).value_or(timed_out());
  });
}

sirtaki_status sirtaki_stream_committed(sirtaki_stream stream, int* committed) {
  return guarded([&]() -> Status {
    if (committed == nullptr) {
      return sirtaki::invalid_argument("committed is NULL");
    }
    SRT_ASSIGN(const bool counts, DefaultSession::instance().committed(generation_of(stream), id_of(stream)));
    *committed = counts ? 1 : 0;
    return {};
  });
}

sirtaki_status sirtaki_stream_on_done(sirtaki_stream stream, sirtaki_done_fn done, void* context) {
  return guarded([&]() -> Status {
    if (done == nullptr) {
      return sirtaki::invalid_argument("done is NULL");
    }
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    return found.handle.on_done([done, context] { done(context); });
  });
}

sirtaki_status sirtaki_stream_wait_tensors(sirtaki_stream stream, const int32_t* indices, int32_t count,
                                           int64_t timeout_ms) {
  return guarded([&]() -> Status {
    if (count < 0 || (indices == nullptr && count > 0)) {
      return sirtaki::invalid_argument("indices is NULL, or count is negative");
    }
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    const std::span<const int> tensors(indices, static_cast<std::size_t>(count));
    return found.handle.wait_tensors(tensors, to_duration(timeout_ms)).value_or(timed_out());
  });
}

sirtaki_status sirtaki_stream_used(sirtaki_stream stream, uint8_t* used) {
  return guarded([&]() -> Status {
    if (used == nullptr) {
      return sirtaki::invalid_argument("used is NULL");
    }
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    SRT_ASSIGN(const auto flags, found.handle.used());
    std::copy(flags.begin(), flags.end(), used);
    return {};
  });
}

sirtaki_status sirtaki_stream_abort(sirtaki_stream stream, const char* why) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    return found.handle.abort(why != nullptr ? why : "given up by the program");
  });
}

sirtaki_status sirtaki_stream_residual(sirtaki_stream stream, int32_t index, float* out, int64_t numel) {
  return guarded([&]() -> Status {
    if (numel < 0 || (out == nullptr && numel > 0)) {
      return sirtaki::invalid_argument("out is NULL, or numel is negative");
    }
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    return found.handle.residual(index, {out, static_cast<std::size_t>(numel)});
  });
}

sirtaki_status sirtaki_stream_set_residual(sirtaki_stream stream, int32_t index, const float* in, int64_t numel) {
  return guarded([&]() -> Status {
    if (numel < 0 || (in == nullptr && numel > 0)) {
      return sirtaki::invalid_argument("in is NULL, or numel is negative");
    }
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    return found.handle.set_residual(index, {in, static_cast<std::size_t>(numel)});
  });
}

sirtaki_status sirtaki_stream_memory(sirtaki_stream stream, int32_t index, void* out, int64_t room, int64_t* bytes) {
  return guarded([&]() -> Status {
    if (bytes == nullptr || room < 0) {
      return sirtaki::invalid_argument("bytes is NULL, or room is negative");
    }
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    SRT_ASSIGN(const auto memory, found.handle.codec_state(index));
    *bytes = static_cast<int64_t>(memory.size());
    if (out != nullptr && *bytes <= room) {
      std::copy(memory.begin(), memory.end(), static_cast<std::byte*>(out));
    }
    return {};
  });
}

sirtaki_status sirtaki_stream_set_memory(sirtaki_stream stream, int32_t index, const void* in, int64_t bytes) {
  return guarded([&]() -> Status {
    if (bytes < 0 || (in == nullptr && bytes > 0)) {
      return sirtaki::invalid_argument("in is NULL, or bytes is negative");
    }
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    const std::span memory(static_cast<const std::byte*>(in), static_cast<std::size_t>(bytes));
    return found.handle.load_codec_state(index, memory);
  });
}

sirtaki_status sirtaki_stream_report_loss(sirtaki_stream stream, double loss) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    return found.handle.report_loss(loss);
  });
}

sirtaki_status sirtaki_stream_close(sirtaki_stream stream) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    return found.handle.close();
  });
}

sirtaki_status sirtaki_join(int32_t* last_rank, int64_t timeout_ms) {
  return guarded([&]() -> Status {
    SRT_ASSIGN(const auto active, DefaultSession::instance().need());
    const auto answer = active->session->join(to_duration(timeout_ms));
    if (!answer) {
      return timed_out();
    }
    SRT_TRY(answer->status());
    if (last_rank != nullptr) {
      *last_rank = **answer;
    }
    return {};
  });
}

const char* sirtaki_options_json(void) {
  return borrowed_json([] { return DefaultSession::instance().options_json(); });
}

const char* sirtaki_stats_json(void) {
  return borrowed_json([]() -> sirtaki::Result<std::string> {
    SRT_ASSIGN(const auto active, DefaultSession::instance().need());
    return active->session->stats_json();
  });
}

const char* sirtaki_stream_tensors_json(sirtaki_stream stream) {
  return borrowed_json([&]() -> sirtaki::Result<std::string> {
    SRT_ASSIGN(const OpenStream found, find_stream(stream));
    return found.handle.tensors_json();
  });
}

const char* sirtaki_members_json(void) {
  return borrowed_json([]() -> sirtaki::Result<std::string> {
    SRT_ASSIGN(const auto active, DefaultSession::instance().need());
    return members_json(*active);
  });
}

sirtaki_status sirtaki_timeline_start(const char* path) {
  return guarded([&]() -> Status {
    if (path == nullptr || path[0] == '\0') {
      return sirtaki::invalid_argument("the timeline needs a path");
    }
    SRT_ASSIGN(const auto active, DefaultSession::instance().need());
    return active->session->timeline_start(path);
  });
}

sirtaki_status sirtaki_timeline_stop(void) {
  return guarded([]() -> Status {
    SRT_ASSIGN(const auto active, DefaultSession::instance().need());
    return active->session->timeline_stop();
  });
}

void sirtaki_timeline_mark(const char* name, int64_t begin_ns, int64_t end_ns) {
  (void)guarded([&]() -> Status {
    const auto active = DefaultSession::instance().active();
    if (active && name != nullptr) {
      active->session->timeline_mark(name, begin_ns, end_ns);
    }
    return {};
  });
}

}  // extern "C"
