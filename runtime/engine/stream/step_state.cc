#include "runtime/engine/stream/step_state.h"

namespace sirtaki::engine {

StepState::StepState(const scheduler::Plan& plan)
    : views(plan.tensors().size()),
      submitted(plan.tensors().size(), 0),
      present(plan.tensors().size(), 1),
      used(plan.tensors().size(), 1),
      commit_done(plan.partitions().empty()) {
  for (std::size_t i = 0; i < plan.tensors().size(); ++i) {
    missing.push_back(plan.partitions_of(static_cast<int>(i)).size());
  }
}

}  // namespace sirtaki::engine
