#include "runtime/base/config/config.h"
#include "runtime/engine/engine.h"
#include "runtime/engine/stream/plan/stream_plan.h"

namespace sirtaki::engine {

EngineOptions engine_options(const Config& config, int hosts) {
  EngineOptions options;
  options.layout.fusion_bytes = config.schedule.fusion_bytes;
  options.layout.partition_bytes = config.schedule.partition_bytes;
  options.credit_bytes = config.schedule.credit_bytes;
  options.nccl_partition_bytes = config.device.nccl_partition_bytes;
  options.nccl_credit_bytes = config.device.nccl_credit_bytes;
  options.exchange_bytes = config.net.exchange_bytes;
  // Inside one host the link is the CPU, and the model does not know its cost of a partition.
  options.replan = config.schedule.replan && hosts > 1;
  options.codec = compression_text(config);
  options.finite_only = config.compression.nonfinite != "propagate";
  options.commit_gate = config.elastic.min > 0;
  options.trace_interval = config.timeline.flush_interval;
  return options;
}

}  // namespace sirtaki::engine
