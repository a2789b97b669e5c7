/* sirtaki.h: the C interface of Sirtaki, by which the processes (ranks) of a job combine tensors. Plain C99.
 * The functions below are the only exported symbols. examples/c_allreduce.c is a small program.
 *
 * Job: a process takes part in one job at a time, from sirtaki_init() to sirtaki_shutdown(), and then in the next.
 * Threads: any thread may call any function, unless the comment of the function says otherwise.
 * Errors: no function throws or aborts the process. Most return a sirtaki_status. If it is not SIRTAKI_OK,
 * sirtaki_last_error() returns a text for the calling thread: the failure, the rank, the tensor, the likely cause and
 * the next step.
 * Units: timeout_ms is in milliseconds, and a negative value waits without limit; *_ns are in nanoseconds. Counts of
 * tensors (numel, splits) are in elements or rows, sizes of memory in bytes. Ranks and indices begin at 0.
 * Memory: a request uses the memory of its tensors until a wait for it has returned, or a poll has reported it as done.
 * Handles: requests and streams belong to their session. After the session, calls with them return
 * SIRTAKI_NOT_INITIALIZED. Calls with a closed stream return SIRTAKI_INVALID_ARGUMENT.
 * Versions: a program and a library may be built with different headers, because later versions only append fields,
 * never in padding. Zero each struct, then set struct_size, its first field, to sizeof(the struct), also in each
 * element of an array. A field that the header of the caller lacks counts as zero, unless its comment says otherwise. A
 * field that the library does not know must be zero; otherwise the call returns SIRTAKI_UNSUPPORTED.
 */
#ifndef SIRTAKI_H_
#define SIRTAKI_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIRTAKI_API __attribute__((visibility("default")))

typedef enum {
  SIRTAKI_OK = 0,
  SIRTAKI_INVALID_ARGUMENT = 1, /* a mistake in the arguments, detected on this rank alone */
  SIRTAKI_MISMATCH = 2,         /* ranks disagree about a shape, dtype, operation or option */
  SIRTAKI_TIMEOUT = 3,          /* the wait ended before its operation; the operation goes on */
  SIRTAKI_PEER_LOST = 4,        /* a rank died, left, or stopped responding */
  SIRTAKI_ABORTED = 5,          /* ended by request, or by the failure of another rank */
  SIRTAKI_CORRUPT = 6,          /* bytes from a peer or a file are damaged */
  SIRTAKI_UNSUPPORTED = 7,      /* valid, but not built or not implemented */
  SIRTAKI_EXHAUSTED = 8,        /* a bounded resource is full */
  SIRTAKI_NOT_INITIALIZED = 9,  /* the session is closed or was never opened */
  SIRTAKI_BUG = 10,             /* a defect of the library; please report it */
  SIRTAKI_UNAVAILABLE = 11,     /* an address, file or library cannot be reached */
  SIRTAKI_STUCK = 12,           /* a deadlock: each rank waits for a request that another will never submit */
  SIRTAKI_NON_FINITE = 13,      /* a gradient holds NaN or infinity, and option compression.nonfinite voids the step */
  SIRTAKI_RANKS_CHANGED = 14    /* a rank of an elastic job was lost and the others go on; see sirtaki_regroup() */
} sirtaki_status;

typedef enum {
  SIRTAKI_U8 = 0,
  SIRTAKI_I8 = 1,
  SIRTAKI_U16 = 2,
  SIRTAKI_I16 = 3,
  SIRTAKI_I32 = 4,
  SIRTAKI_I64 = 5,
  SIRTAKI_F16 = 6,
  SIRTAKI_BF16 = 7,
  SIRTAKI_F32 = 8,
  SIRTAKI_F64 = 9,
  SIRTAKI_BOOL = 10
} sirtaki_dtype;

typedef enum { SIRTAKI_CPU = 0, SIRTAKI_CUDA = 1 } sirtaki_device_type;

typedef enum {
  SIRTAKI_ALLREDUCE = 0,
  SIRTAKI_ALLGATHER = 1,
  SIRTAKI_BROADCAST = 2,
  SIRTAKI_ALLTOALL = 3,
  SIRTAKI_REDUCESCATTER = 4,
  SIRTAKI_BARRIER = 5
} sirtaki_op;

typedef enum {
  SIRTAKI_SUM = 0,
  SIRTAKI_AVERAGE = 1,
  SIRTAKI_MIN = 2,
  SIRTAKI_MAX = 3,
  SIRTAKI_PRODUCT = 4,
  SIRTAKI_ADASUM = 5 /* only for an allreduce of floating-point tensors */
} sirtaki_reduce_op;

/* A tensor in dense memory, without holes or overlaps. strides are in elements; NULL: row-major.
 *
 * GPU memory (SIRTAKI_CUDA): all GPU tensors of a rank must be on one GPU, the GPU of the first one. Queue the work
 * that writes the tensor on cuda_stream before the call. The library reads after that work, so the caller need not wait
 * for it; the library does not wait for work queued later. The call needs no current device and does not change it.
 * Once the request is over, or the wait for a step or for tensors of a stream has returned, work that the program
 * queues on cuda_stream sees the result; the program synchronizes other CUDA streams itself. Keep cuda_stream alive
 * until then, and do not capture it meanwhile. Results that the library allocates are in host memory. A GPU error ends
 * the job on all ranks. */
typedef struct {
  uint32_t struct_size;
  void* data;
  int32_t dtype;       /* sirtaki_dtype */
  int32_t device_type; /* sirtaki_device_type */
  int32_t device_index;
  int32_t ndim;
  const int64_t* dims;
  const int64_t* strides;
  void* cuda_stream; /* a cudaStream_t; NULL: the default stream. A request uses the stream of its input */
} sirtaki_tensor;

typedef uint64_t sirtaki_request; /* 0 is never a request */
typedef uint32_t sirtaki_stream;  /* 0 is never a stream */

/* ---- start and end of a session ---- */

/* Called about ten times a second on the thread of a blocking call. A non-zero result ends that wait with
 * SIRTAKI_ABORTED, for instance after Ctrl-C. */
typedef int (*sirtaki_interrupt_fn)(void* context);

/* Starts the meeting point of a job of `size` ranks in this process, which becomes rank 0. Use it in a program that has
 * a channel of its own to tell the other ranks the address; then pass rank, size, rendezvous and secret to
 * sirtaki_init() on every rank. bind_address: NULL or "127.0.0.1" for one host, "::" or "0.0.0.0" for several. Sets
 * *port and secret_hex, 64 hexadecimal digits and a zero byte. Any process that has the secret can join the job.
 * Repeating the call with the same arguments returns the same port and secret. */
SIRTAKI_API sirtaki_status sirtaki_host(int32_t size, const char* bind_address, uint16_t* port, char secret_hex[65]);

/* X25519 key exchange, for passing the secret over a channel that others can read. Each of two ranks makes a key pair
 * and sends its public half to the other; sirtaki_shared_key() then returns the same key on both, unknown to anybody
 * else. It does not protect against an attacker who can also write to the channel, because keys are not authenticated.
 * All keys are 64 hexadecimal digits and a zero byte. Both functions work without a session. */
SIRTAKI_API sirtaki_status sirtaki_key_pair(char private_hex[65], char public_hex[65]);
SIRTAKI_API sirtaki_status sirtaki_shared_key(const char* private_hex, const char* other_public_hex, char key_hex[65]);

typedef struct {
  uint32_t struct_size;
  /* Options of the program as lines of TOML ("net.interface = \"eth1\"\n"); they override all others; may be NULL. */
  const char* options_toml;
  sirtaki_interrupt_fn interrupted; /* may be NULL; polled by every blocking call of the session */
  void* interrupted_context;
  /* The job, for programs that set rank and size themselves; size 0: read the job from options and environment. */
  int32_t rank;
  int32_t size;
  const char* rendezvous; /* "host:port"; NULL for size 1 */
  const char* secret_hex; /* from sirtaki_host(); NULL for size 1 */
} sirtaki_init_args;

/* Opens the session: reads options and the environment of the launcher (sirtakirun, torchrun, mpirun, srun; without a
 * launcher the size is 1), connects to the other ranks, and returns when all ranks have joined. Collective. Returns
 * SIRTAKI_OK and does nothing if a session is open. args may be NULL. SIRTAKI_UNAVAILABLE: the meeting point cannot be
 * reached, or its secret differs. SIRTAKI_MISMATCH: versions or options differ between ranks. SIRTAKI_TIMEOUT: some
 * ranks did not join; the text names them. */
SIRTAKI_API sirtaki_status sirtaki_init(const sirtaki_init_args* args);
/* Closes the session; pending requests end with SIRTAKI_NOT_INITIALIZED. Returns SIRTAKI_OK if no session is open. Call
 * it before the process exits, because a rank that exits without it counts as lost. Results that sirtaki_result()
 * returned stay valid until they are released. */
SIRTAKI_API sirtaki_status sirtaki_shutdown(void);
/* In an elastic job (option elastic.min), the loss of a rank ends the epoch: on all other ranks every request and call
 * of the session returns SIRTAKI_RANKS_CHANGED, with a text that names the lost rank, the cause and how many go on.
 * This function opens the next session in this process, with a new rank and size, and returns when all survivors have
 * called it. Handles of the earlier session return SIRTAKI_NOT_INITIALIZED from then on. If the coordinator has not
 * ended the epoch yet, the call waits for a limited time, then ends the epoch on all ranks. Ranks that are lost
 * meanwhile are left out, too. Errors are final, and no session is open after them. SIRTAKI_PEER_LOST: too few ranks
 * are left, or the others have given this process up. SIRTAKI_NOT_INITIALIZED: the job has ended, because a rank has
 * called sirtaki_shutdown(). SIRTAKI_UNSUPPORTED: the job is not elastic. */
SIRTAKI_API sirtaki_status sirtaki_regroup(void);
/* In an elastic job that grows (option elastic.max), new processes take the places of lost ranks. sirtaki_init() of a
 * new process returns when the process has joined an epoch. It joins only if the programs of all ranks admit it,
 * because they have to give it their state after sirtaki_regroup(). admits = 1: this process has the state of the job,
 * and gives it to new processes from now on; 0: it does not. A new process passes 1 once it has the state, not before.
 * No effect in other jobs. */
SIRTAKI_API sirtaki_status sirtaki_admit(int admits);
/* Sets *grows to 1 if ranks may join, the same on all ranks; *fresh to 1 if this process has joined and not yet said
 * that it has the state; and *change to the number of a change that waits, or 0. Ranks may learn of a change at
 * different times: let one of them decide, and if its number is not 0, call sirtaki_regroup_at() with it on all. */
SIRTAKI_API sirtaki_status sirtaki_change_wanted(int* grows, int* fresh, uint32_t* change);
/* Sets *processes to how many the launcher has started or asked to leave, and whose change does not wait yet. */
SIRTAKI_API sirtaki_status sirtaki_changes_announced(uint32_t* processes);
/* Does the same as sirtaki_regroup() for a change that all ranks have agreed on, where no rank has to be lost. */
SIRTAKI_API sirtaki_status sirtaki_regroup_at(uint32_t change);
/* Says that this rank of an elastic job (else SIRTAKI_UNSUPPORTED) has to leave. A regroup at which it can returns
 * SIRTAKI_NOT_INITIALIZED and blames this rank. Does not block. No effect during a regroup: call it again after it. */
SIRTAKI_API sirtaki_status sirtaki_leave_soon(void);
/* Returns 1 or 0. A forked child gets 0: it never uses the session of its parent. */
SIRTAKI_API int sirtaki_is_initialized(void);

/* Return the place of this rank in the job, or -1 without a session. "Local" counts the ranks of this host. */
SIRTAKI_API int sirtaki_rank(void);
SIRTAKI_API int sirtaki_size(void);
SIRTAKI_API int sirtaki_local_rank(void);
SIRTAKI_API int sirtaki_local_size(void);
SIRTAKI_API int sirtaki_cross_rank(void); /* index of this host among the hosts that have this local rank */
SIRTAKI_API int sirtaki_cross_size(void); /* number of these hosts */
/* Returns 1 if every host runs equally many ranks, else 0. */
SIRTAKI_API int sirtaki_is_homogeneous(void);

SIRTAKI_API const char* sirtaki_version(void);
/* Returns the version of NCCL as NCCL encodes it: 22809 is 2.28.9. Returns 0 if GPU tensors cannot travel over NCCL:
 * the CUDA plug-in is not installed, or no usable version of NCCL is loaded in the process, named by option
 * device.nccl_library, or installed in the system. sirtaki_last_error() then gives the reason. The call keeps the
 * libraries it finds loaded, so make it after the framework has loaded its own NCCL. */
SIRTAKI_API int sirtaki_nccl_version(void);
/* Returns the text of the last failed call of this thread, or "". The text is valid until its next failed call. */
SIRTAKI_API const char* sirtaki_last_error(void);
/* Return the rank and the tensor that caused the failure; -1 and "" if unknown. */
SIRTAKI_API int sirtaki_last_error_rank(void);
SIRTAKI_API const char* sirtaki_last_error_tensor(void);

/* ---- operations by name ---- */

typedef struct {
  uint32_t struct_size;
  int32_t op; /* sirtaki_op */
  /* The same on all ranks and unique among requests in flight; NULL: named by call order. Must not end like the
   * suffixes that mark process sets (" of rank 1", " of ranks 0, 2"). */
  const char* name;
  sirtaki_tensor input; /* a barrier uses only its struct_size */
  /* Destination of the result. If data is NULL, the runtime allocates the result, and sirtaki_result() returns it.
   * Allreduce, broadcast: the same dims as the input. An allreduce may use the memory of the input, a broadcast must do
   * so (give the same tensor twice). Reducescatter: the block of this rank. data may be NULL if the input is in host
   * memory. Allgather, alltoall: all rows that this rank receives, row by row; another size is an error on all ranks.
   * data may be NULL, also on some ranks only, and any address if there are no rows. The input of an allgather may lie
   * in its own block. Apart from these cases input and output must not overlap. On a GPU, an operation can use NCCL
   * only if all ranks give an output. */
  sirtaki_tensor output;
  int32_t reduce_op; /* sirtaki_reduce_op */
  int32_t root;      /* source rank of a broadcast */
  /* Factors of inputs and results; 1.0, also the value for headers without these fields, leaves them as they are. They
   * are applied to each element, in float64 for f64 and in float32 otherwise. */
  double prescale;
  double postscale;
  const int64_t* splits; /* alltoall: rows of dimension 0 that each rank receives; NULL: equal parts */
  int32_t splits_count;
  int32_t priority; /* smaller values go first; 0 means -1000 (urgent) for barriers and inputs up to 64 KiB */
  /* Process set: the ranks that take part, in ascending order, with this rank among them; NULL: all. Each set has its
   * own names. root is a rank of the job; splits, blocks and received rows follow the order of the set. */
  const int32_t* ranks;
  int32_t ranks_count;
} sirtaki_request_args;

/* Submits an operation and returns at once; *request identifies it until sirtaki_release(). */
SIRTAKI_API sirtaki_status sirtaki_submit(const sirtaki_request_args* args, sirtaki_request* request);
/* Submits `count` operations that become ready together on every rank: all of them, or none after an error. */
SIRTAKI_API sirtaki_status sirtaki_submit_group(const sirtaki_request_args* args, int count, sirtaki_request* requests);
/* Sets *done to 1 if a wait would not block, else to 0. */
SIRTAKI_API sirtaki_status sirtaki_poll(sirtaki_request request, int* done);
/* Waits for the operation and returns its status. After SIRTAKI_TIMEOUT the operation goes on; wait again. */
SIRTAKI_API sirtaki_status sirtaki_wait(sirtaki_request request, int64_t timeout_ms);
/* on = 1: waits of the calling thread for requests and streams also end with SIRTAKI_TIMEOUT as soon as no rank can
 * make progress until this thread returns; the operations go on. Use it for waits that the program may postpone, such
 * as one at the end of backward. on = 0 restores the default. */
SIRTAKI_API sirtaki_status sirtaki_set_gives_way(int on);
/* Returns the result that the runtime allocated, in host memory for every device of the input; if the program gave an
 * output, only the dims. Call it after a successful wait; before, it returns SIRTAKI_INVALID_ARGUMENT. Data and dims
 * are valid until sirtaki_release(). Sets *received_splits (may be NULL) to the rows that an alltoall received from
 * each participating rank. */
SIRTAKI_API sirtaki_status sirtaki_result(sirtaki_request request, sirtaki_tensor* output,
                                          const int64_t** received_splits);
/* Frees a request and its result. Waits first if the operation is in flight. */
SIRTAKI_API void sirtaki_release(sirtaki_request request);
/* Waits up to timeout_ms for requests marked with sirtaki_watch() to finish, and stores the ids of up to `capacity` of
 * them, each once, even if it is released in between. Returns the number of ids, 0 after the timeout, or -1 after an
 * error and once the session has ended. Use it in a thread that forwards completions to an event loop. */
SIRTAKI_API int sirtaki_wait_watched(sirtaki_request* requests, int capacity, int64_t timeout_ms);
/* Marks a request for sirtaki_wait_watched(). */
SIRTAKI_API sirtaki_status sirtaki_watch(sirtaki_request request);
/* A completion callback. It is called once: on a thread of the runtime, inside the call that registered it, or inside
 * sirtaki_shutdown(). It must neither block nor call any function of this header. */
typedef void (*sirtaki_done_fn)(void* context);
/* Registers done(context), called when the request is over or the session ends; sirtaki_wait() then returns at once. A
 * request has at most one callback, registered before sirtaki_release(). It is never called if this function fails.
 * SIRTAKI_INVALID_ARGUMENT: the request is unknown, or has a callback already. */
SIRTAKI_API sirtaki_status sirtaki_on_done(sirtaki_request request, sirtaki_done_fn done, void* context);

/* ---- gradient streams: tensors that are combined in every step, such as the gradients of an optimizer ---- */

typedef struct {
  uint32_t struct_size;
  const char* name; /* the same on all ranks and unique among open streams */
  int32_t count;
  const char* const* names;      /* `count` names of tensors */
  const sirtaki_tensor* tensors; /* dims, strides, dtype and device of each; data is ignored */
  const int32_t* order;          /* expected order of readiness; NULL: last tensor first, as in backward */
  int32_t reduce_op;             /* SIRTAKI_SUM or SIRTAKI_AVERAGE */
  double prescale, postscale;    /* factors of gradients and of results; 1 changes nothing; prescale must not be 0 */
  const char* codec;             /* a codec, a policy or rules (docs/compression.md); NULL: from the options */
  int64_t first_step; /* steps already made by the training, the same on all ranks; `warmup` of codecs counts them */
  /* Process set, like sirtaki_request_args.ranks; NULL: all. Streams of different sets may share a name. */
  const int32_t* ranks;
  int32_t ranks_count;
} sirtaki_stream_args;

/* Returns SIRTAKI_OK if a stream can have `codec` (docs/compression.md). Not collective; works without a session. */
SIRTAKI_API sirtaki_status sirtaki_check_codec(const char* codec);
/* Opens a stream. Collective: blocks until all ranks have agreed on the arguments. After SIRTAKI_TIMEOUT, or
 * SIRTAKI_ABORTED by sirtaki_init_args.interrupted, the opening goes on; repeat the same call to wait for it. */
SIRTAKI_API sirtaki_status sirtaki_stream_open(const sirtaki_stream_args* args, sirtaki_stream* stream);
/* Submits tensor `index` of the current step, once a step. The tensor is reduced in place and holds its result when
 * sirtaki_stream_wait() returns. absent = 1: this rank has no gradient for it; `tensor` then holds zeros and receives
 * the result of the other ranks. */
SIRTAKI_API sirtaki_status sirtaki_stream_ready(sirtaki_stream stream, int32_t index, const sirtaki_tensor* tensor,
                                                int absent);
/* Marks the end of backward. Requires that every tensor of the step has been submitted, if need be as absent. */
SIRTAKI_API sirtaki_status sirtaki_stream_finish(sirtaki_stream stream);
/* Waits for the last finished step and opens the next one. After an error the step is void on all ranks. */
SIRTAKI_API sirtaki_status sirtaki_stream_wait(sirtaki_stream stream, int64_t timeout_ms);
/* Call it after sirtaki_regroup(), with a stream of the earlier session. Sets *committed to 1 if the last step of this
 * rank in the stream counts, because some rank has passed it: all ranks then hold its results, as after a successful
 * sirtaki_stream_wait(). Else sets *committed to 0: the step is void on all ranks. All survivors that were in that step
 * get the same answer. Only for tensors in host memory. */
SIRTAKI_API sirtaki_status sirtaki_stream_committed(sirtaki_stream stream, int* committed);
/* Registers done(context), called when the last finished step is over or the session ends. sirtaki_stream_wait() then
 * returns at once, and must still be called. A step has at most one callback, registered while no thread waits for the
 * step. It is never called if this function fails. */
SIRTAKI_API sirtaki_status sirtaki_stream_on_done(sirtaki_stream stream, sirtaki_done_fn done, void* context);
/* Waits until the given tensors (`count` indices) of the last finished step hold their results. Other tensors may still
 * be in flight, and sirtaki_stream_wait() is still needed to end the step. Returns at once, and cheaply, if the results
 * are there. After an error the step is void, and sirtaki_stream_wait() returns the same error. A step can fail after
 * some of its results were returned only if a rank is lost, or gives up after its sirtaki_stream_finish(). After
 * SIRTAKI_TIMEOUT it may be called again. Only one thread of the process may call it at a time. */
SIRTAKI_API sirtaki_status sirtaki_stream_wait_tensors(sirtaki_stream stream, const int32_t* indices, int32_t count,
                                                       int64_t timeout_ms);
/* Fills `used`, an array with one element for each tensor of the stream. used[i] is valid after a successful wait for
 * the step or for tensor i. 0: no rank had a gradient for the tensor in that step. SIRTAKI_GRADIENT: some rank had one.
 * SIRTAKI_STEP: some rank had one, and the codec corrects momentum; the result is then a step of SGD with momentum, and
 * the optimizer must not apply its own momentum to it. */
enum { SIRTAKI_GRADIENT = 1, SIRTAKI_STEP = 2 };
SIRTAKI_API sirtaki_status sirtaki_stream_used(sirtaki_stream stream, uint8_t* used);
/* Gives up the current step on all ranks, for instance after an exception in backward. All ranks get SIRTAKI_ABORTED
 * with `why` (may be NULL) in the text. In an elastic job, a rank that holds all results of a step can not give it up,
 * since others may have applied it: that step ends, and the next one is given up. */
SIRTAKI_API sirtaki_status sirtaki_stream_abort(sirtaki_stream stream, const char* why);
/* Closes the stream; operations in flight end with SIRTAKI_ABORTED first. */
SIRTAKI_API sirtaki_status sirtaki_stream_close(sirtaki_stream stream);

/* Codecs that send less than the gradient keep the residual, the part not sent, for the next step. This function copies
 * the residual of tensor `index` on this rank: all `numel` elements in memory order, zeros if nothing is held back. The
 * residuals averaged (or summed) over the ranks, like gradients, are the update not yet applied to the model. Call both
 * functions between two steps. Set a residual to restore a checkpoint, or zeros to drop it. A tensor that is no longer
 * compressed adds its residual to its next gradient. */
SIRTAKI_API sirtaki_status sirtaki_stream_residual(sirtaki_stream stream, int32_t index, float* out, int64_t numel);
SIRTAKI_API sirtaki_status sirtaki_stream_set_residual(sirtaki_stream stream, int32_t index, const float* in,
                                                       int64_t numel);
/* Codec state of a tensor other than its residual: momentum, thresholds, factors. For checkpoints of this rank; call
 * both functions between two steps. *bytes is set to the size of the state, and the state is copied to `out` (may be
 * NULL) if `room`, in bytes, suffices. sirtaki_stream_set_memory() loads the parts that the codec of the next step can
 * use; 0 bytes reset the codec. It returns SIRTAKI_INVALID_ARGUMENT if the state is damaged or of another tensor. */
SIRTAKI_API sirtaki_status sirtaki_stream_memory(sirtaki_stream stream, int32_t index, void* out, int64_t room,
                                                 int64_t* bytes);
SIRTAKI_API sirtaki_status sirtaki_stream_set_memory(sirtaki_stream stream, int32_t index, const void* in,
                                                     int64_t bytes);
/* Reports the mean loss of this rank in a step. The policy `importance` with split=loss lets ranks with larger losses
 * send more. Callable at any time; not collective, does not wait. A loss that is negative or not finite is ignored. */
SIRTAKI_API sirtaki_status sirtaki_stream_report_loss(sirtaki_stream stream, double loss);
/* Declares that this rank has no more data (uneven batches), and waits until all ranks do so. Until then this rank
 * contributes zeros, or no rows, to the steps of its streams and to operations by name; averages still divide by the
 * size of the job. A broadcast from a joined rank, and minima, maxima and products, fail on the other ranks. *last_rank
 * (may be NULL) is set to the rank that joined last, which has seen every step. Call it between two steps. After
 * SIRTAKI_TIMEOUT the rank stays joined; call again to wait on. Use no stream of this rank meanwhile: waits for
 * its steps return SIRTAKI_INVALID_ARGUMENT. */
SIRTAKI_API sirtaki_status sirtaki_join(int32_t* last_rank, int64_t timeout_ms);

/* ---- local updates: ranks train on their own between merges of their models (docs/local_updates.md) ----
 * A handle is for the parameters of one training, whose memory must not move until sirtaki_local_close(). Every rank
 * makes the same calls after the same steps, from one thread at a time. All calls except _stats_json, _anchor and _save
 * are collective. Calls may write parameters; no other thread may write them meanwhile. An error ends local updates of
 * this training on this rank; later calls return it. After SIRTAKI_RANKS_CHANGED open another in the next session. */

typedef struct sirtaki_local_training* sirtaki_local;

/* Rule that makes a buffer equal on all ranks when models are merged: MEAN is the weighted mean; VARIANCE is the
 * variance pooled over the ranks, for buffers whose means are in another buffer; MOST is the largest value. */
enum { SIRTAKI_BUFFER_MEAN = 0, SIRTAKI_BUFFER_VARIANCE = 1, SIRTAKI_BUFFER_MOST = 2 };
/* Effect of a merge on steps made while it was in flight: CORRECTED keeps them, OVERWRITE drops them (a baseline). */
enum { SIRTAKI_MERGE_CORRECTED = 0, SIRTAKI_MERGE_OVERWRITE = 1 };
/* Outer optimizer, which turns the mean of the models into the next model: NONE takes the mean; MOMENTUM and NESTEROV
 * apply momentum; PRESET applies Nesterov momentum of 0.5 at a rate of 0.7, or 0.9 for the policy "diloco". */
enum { SIRTAKI_OUTER_NONE = 0, SIRTAKI_OUTER_MOMENTUM = 1, SIRTAKI_OUTER_NESTEROV = 2, SIRTAKI_OUTER_PRESET = 3 };

typedef struct {
  uint32_t struct_size;
  const char* name;     /* the same on all ranks and unique among open trainings of the process set */
  const char* interval; /* a number of steps, or a policy with its parameters: "auto", "qsr:base=4" */
  /* Used with interval = "callable". Returns the number of steps of the next round, the same on all ranks; less than 1
   * is an error. `round` is a JSON object with the measurements of all ranks. */
  int64_t (*steps)(void* context, const char* round);
  void* context;
  int32_t count; /* trained parameters in the order of the forward pass: float32, CPU */
  const char* const* names;
  const sirtaki_tensor* tensors;
  int32_t buffer_count; /* float32, float64 or int64, CPU */
  const char* const* buffer_names;
  const sirtaki_tensor* buffers;
  const int32_t* buffer_rules;     /* SIRTAKI_BUFFER_* of each */
  const int32_t* buffer_means;     /* SIRTAKI_BUFFER_VARIANCE: index of the buffer with the means; else ignored */
  int32_t fragments;               /* pieces merged one after another; 0: pieces of 4 MiB, at most 8 */
  int32_t merge;                   /* SIRTAKI_MERGE_* */
  int32_t outer;                   /* SIRTAKI_OUTER_* */
  double outer_lr, outer_momentum; /* for SIRTAKI_OUTER_MOMENTUM and _NESTEROV */
  /* Codec for differences of models (docs/compression.md). NULL: the codec of the policy; "": uncompressed; "auto" with
   * an interval "auto:compress=on": float32, 8, 2 or 1 bits per element, as many as the link allows. */
  const char* codec;
  /* Process set that trains together, like sirtaki_request_args.ranks; NULL: all. Outcomes, statistics and texts of
   * these local updates number ranks by their places in the set. */
  const int32_t* ranks;
  int32_t ranks_count;
} sirtaki_local_args;

typedef struct {
  uint32_t struct_size;
  double lr;   /* learning rate; negative: unknown */
  double loss; /* mean loss of this rank in the step; ignored if has_loss is 0 */
  int32_t has_loss;
  int64_t share;      /* weight of this rank in means: 1, or its number of samples */
  int64_t steps_left; /* remaining steps of the training; negative: unknown */
  int64_t waited_ns;  /* time spent waiting for averaged gradients */
} sirtaki_local_step_args;

typedef struct {
  uint32_t struct_size;
  int32_t average_gradients;  /* 1: average gradients in the next step; 0: make the next step locally */
  int32_t model_changed;      /* 1 if the call wrote parameters */
  int32_t reset_optimizer;    /* 1 if the optimizer state of this rank belongs to a replaced model */
  int32_t equalize_optimizer; /* 1 if averaging resumes: make optimizer states equal on all ranks */
  int32_t donor;              /* rank to copy optimizer state from, the same on all ranks; -1: reset the state */
  int32_t decisions;          /* number of decisions that this call made */
  int64_t steps, delay;       /* steps between merges of a parameter, and from a snapshot to its merge */
} sirtaki_local_outcome;

/* Returns SIRTAKI_OK if `interval` is valid for sirtaki_local_args. Not collective; works without a session. */
SIRTAKI_API sirtaki_status sirtaki_check_interval(const char* interval);
/* Opens local updates and their streams. Collective. Models are compared later, by sirtaki_local_start(). */
SIRTAKI_API sirtaki_status sirtaki_local_open(const sirtaki_local_args* args, sirtaki_local* local);
/* Call it before the first step. Returns SIRTAKI_MISMATCH unless all ranks have the same options and parameters. Here
 * and below, `outcome` may be NULL; else set its struct_size. */
SIRTAKI_API sirtaki_status sirtaki_local_start(sirtaki_local local, sirtaki_local_outcome* outcome);
/* Call it after every step of the optimizer. */
SIRTAKI_API sirtaki_status sirtaki_local_step(sirtaki_local local, const sirtaki_local_step_args* step,
                                              sirtaki_local_outcome* outcome);
/* Completes merges in flight and makes parameters and buffers equal on all ranks. */
SIRTAKI_API sirtaki_status sirtaki_local_drain(sirtaki_local local, sirtaki_local_outcome* outcome);
/* wanted = 1: average gradients in every step from now on; wanted = 0: return to the interval. */
SIRTAKI_API sirtaki_status sirtaki_local_synchronous(sirtaki_local local, int wanted, sirtaki_local_outcome* outcome);
/* Copies the anchor of parameter `index`, the values that all ranks last agreed on: `numel` floats in memory order. */
SIRTAKI_API sirtaki_status sirtaki_local_anchor(sirtaki_local local, int32_t index, float* out, int64_t numel);
/* Saves the state of local updates for a checkpoint of this rank. *bytes is set to the size of the state, and the state
 * is copied to `out` (may be NULL) if `room`, in bytes, suffices. SIRTAKI_INVALID_ARGUMENT: merges are in flight; call
 * sirtaki_local_drain() first. */
SIRTAKI_API sirtaki_status sirtaki_local_save(sirtaki_local local, void* out, int64_t room, int64_t* bytes);
/* Restores saved state. Call it on all ranks in place of sirtaki_local_start(), with the checkpoint's parameters. */
SIRTAKI_API sirtaki_status sirtaki_local_restore(sirtaki_local local, const void* in, int64_t bytes);
/* Frees the handle; merges in flight are given up. Does nothing for NULL. */
SIRTAKI_API void sirtaki_local_close(sirtaki_local local);

/* ---- forecasts: predicted steps with given settings, by the model with which policies choose; no session ---- */

typedef struct {
  uint32_t struct_size;
  int32_t ranks;            /* at most 1024, each of them on a host of its own */
  int64_t bytes_per_second; /* payload of one rank in one direction */
  int64_t latency_ns;       /* the time of one message */
  int64_t forward_ns;       /* a step of the program without its backward pass and without waits */
  int64_t backward_ns;      /* from the first gradient to the last one */
  const int64_t* ready_ns;  /* time of each gradient since the first one; NULL: in proportion to elements */
  /* Tensors in the order of the forward pass, and the codec; the other fields must be valid, but have no effect. */
  const sirtaki_stream_args* stream;
  /* Interval, codec and fragments of local updates; its tensors have no effect. NULL: gradients are averaged. */
  const sirtaki_local_args* local;
} sirtaki_forecast_args;

/* ---- introspection ----
 * Each *_json function returns a JSON text, or NULL after an error. The library owns the text; it is valid until the
 * next call of a *_json function on the same thread. */

/* [{name, value, source, help, ...}]; before sirtaki_init(): the options that sirtaki_init(NULL) would use. */
SIRTAKI_API const char* sirtaki_options_json(void);
/* Counters and times of the session. "tensors" maps each stream to the rows of sirtaki_stream_tensors_json(), without
 * owed_norm. */
SIRTAKI_API const char* sirtaki_stats_json(void);
SIRTAKI_API const char* sirtaki_members_json(void); /* [{rank, hostname, host_id, pid}] */
/* [{name, numel, dtype, codec, reduction, params, density, momentum, held_bytes, wire_bytes, ratio, reason,
 * owed_norm}]: the codec and wire size of each tensor from the next step on, with the reason. density: fraction of the
 * elements that are sent. momentum: the factor that the codec corrects, 0 if none. wire_bytes: traffic of the tensor in
 * a step, as the size of an allreduce with equal traffic. owed_norm: Euclidean norm of sirtaki_stream_residual(). */
SIRTAKI_API const char* sirtaki_stream_tensors_json(sirtaki_stream stream);
/* Mode, interval, delay, reason, rounds, waits, bytes, divergence, alarms and memory use of local updates. */
SIRTAKI_API const char* sirtaki_local_stats_json(sirtaki_local local);

/* [{step_ns, exposed_ns, sent_bytes, policy}], one for each of `count` args: the step once policies have settled, the
 * part in which the program waits, the payload that a rank sends, and the last decision. Without `local` also
 * {tensors}: the rows of sirtaki_stream_tensors_json(). With it also {mode, steps, delay, codec, reason, transfer_ns,
 * dense_ns}: the interval, the codec of differences, and the time of a merge with that codec and as float32; step_ns is
 * the mean over a round, without averages of the states of optimizers. The call times codecs on this machine, once for
 * each number of ranks. Not collective; works without a session. */
SIRTAKI_API const char* sirtaki_forecast_json(const sirtaki_forecast_args* args, int count);

/* Start and stop a trace of the session, written to `path`. */
SIRTAKI_API sirtaki_status sirtaki_timeline_start(const char* path);
SIRTAKI_API sirtaki_status sirtaki_timeline_stop(void);
/* Adds a span of the program to the trace, on the "user" track of this rank; times of CLOCK_MONOTONIC in nanoseconds.
 * Does nothing without a session or a name. */
SIRTAKI_API void sirtaki_timeline_mark(const char* name, int64_t begin_ns, int64_t end_ns);

#ifdef __cplusplus
}
#endif

#endif /* SIRTAKI_H_ */
