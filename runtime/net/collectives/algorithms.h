// The direct algorithms, one Operation for each kind. Made by DirectCollectives from arguments that check_args took.
//
// Every rank talks to every other one directly, so a result needs one or two latency steps whatever the size of the
// group, and the bytes sent are those of a ring.
#pragma once

#include <memory>

#include "runtime/net/collectives/operation.h"

namespace sirtaki::net {

std::shared_ptr<Operation> make_operation(Operation::Setup setup);

// Whether an allreduce of `size` ranks sends everything to everybody, for its latency.
bool is_one_exchange(const CollectiveArgs& args, const DirectOptions& options, int size);

// One of the above each; make_operation chooses.
std::shared_ptr<Operation> make_allreduce(Operation::Setup setup);
std::shared_ptr<Operation> make_reducescatter(Operation::Setup setup);
std::shared_ptr<Operation> make_broadcast(Operation::Setup setup);
std::shared_ptr<Operation> make_allgather(Operation::Setup setup);
std::shared_ptr<Operation> make_alltoall(Operation::Setup setup);
std::shared_ptr<Operation> make_barrier(Operation::Setup setup);

// The same through shared memory. Whether an operation takes that way is the same on all ranks.
bool goes_through_shared_memory(const Operation::Setup& setup);
std::shared_ptr<Operation> make_shared_operation(Operation::Setup setup);
std::shared_ptr<Operation> make_shared_reduction(Operation::Setup setup);

}  // namespace sirtaki::net
