// The direct algorithms, one Operation per kind. Made by DirectCollectives from arguments that passed check_args().
//
// Every rank exchanges messages with every other one, so a result takes one or two latency steps for any number of
// ranks, and the bytes sent are those of a ring.
#pragma once

#include <memory>

#include "runtime/net/collectives/operation.h"

namespace sirtaki::net {

std::shared_ptr<Operation> make_operation(Operation::Setup setup);

// Returns whether an allreduce among `size` ranks sends all data to all ranks, which has the lowest latency.
bool is_one_exchange(const CollectiveArgs& args, const DirectOptions& options, int size);

// Factories, one per algorithm; make_operation() chooses.
std::shared_ptr<Operation> make_allreduce(Operation::Setup setup);
std::shared_ptr<Operation> make_reducescatter(Operation::Setup setup);
std::shared_ptr<Operation> make_broadcast(Operation::Setup setup);
std::shared_ptr<Operation> make_allgather(Operation::Setup setup);
std::shared_ptr<Operation> make_alltoall(Operation::Setup setup);
std::shared_ptr<Operation> make_barrier(Operation::Setup setup);

// An allreduce in a batch with others (batch_exchange.h). All ranks make the same choice.
bool goes_in_a_batch(const Operation::Setup& setup);
std::shared_ptr<Operation> make_batched_allreduce(Operation::Setup setup);

// The same through shared memory. All ranks make the same choice.
bool goes_through_shared_memory(const Operation::Setup& setup);
std::shared_ptr<Operation> make_shared_operation(Operation::Setup setup);
std::shared_ptr<Operation> make_shared_reduction(Operation::Setup setup);

}  // namespace sirtaki::net
