/* sirtaki.h: the C interface of Sirtaki and its only exported symbols. Plain C99.
 *
 * One job per process at a time (sirtaki_init ... sirtaki_shutdown, any number of times). Every function may be called
 * from any thread; none throws, none aborts the process. Functions return a sirtaki_status; on anything but SIRTAKI_OK
 * sirtaki_last_error() gives the text for the calling thread: what, which rank, which tensor, likely cause, next step.
 * Structs begin with struct_size: set it to sizeof(the struct), in every element of an array, too. Later versions
 * append fields only, never in padding, and a library takes structs of callers that were built with another header than
 * its own: a field that the caller's header does not have means what zero means or says so here; one that the library
 * does not know must be zero, else the call is SIRTAKI_UNSUPPORTED. Begin with a struct of zeros, and both go well.
 * Memory given to a request is borrowed until the request is done (waited for or polled as done).
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
  SIRTAKI_INVALID_ARGUMENT = 1, /* the caller's mistake, found on this rank alone */
  SIRTAKI_MISMATCH = 2,         /* ranks disagree: shape, dtype, operation, options */
  SIRTAKI_TIMEOUT = 3,          /* a wait ended before its operation; the operation goes on */
  SIRTAKI_PEER_LOST = 4,        /* a rank died, left or is silent */
  SIRTAKI_ABORTED = 5,
  SIRTAKI_CORRUPT = 6,
  SIRTAKI_UNSUPPORTED = 7,
  SIRTAKI_EXHAUSTED = 8,
  SIRTAKI_NOT_INITIALIZED = 9, /* the session is closed or was never opened */
  SIRTAKI_BUG = 10,
  SIRTAKI_UNAVAILABLE = 11,
  SIRTAKI_STUCK = 12,     /* every rank waits for something another will never submit */
  SIRTAKI_NON_FINITE = 13 /* a gradient holds NaN or infinity (option compression.nonfinite): the step is void */
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
  SIRTAKI_ADASUM = 5 /* allreduce of floating-point tensors alone */
} sirtaki_reduce_op;

/* Dense memory without holes. strides in elements; NULL: row-major.
 * Memory of a GPU (SIRTAKI_CUDA): all of a rank's is on one, the first that it gives. What writes it has been queued on
 * cuda_stream before the call, and is not waited for by the caller; what is queued later is not waited for at all. The
 * call needs no current device and leaves it as it is. A result is there for what the program queues on cuda_stream
 * when the request, or the wait for a stream's step or tensors, is over; for another stream the program orders that
 * itself. Streams live until then, and are not captured meanwhile. Results that the library allocates are in memory of
 * the host. An error of the GPU ends the job on all ranks. */
typedef struct {
  uint32_t struct_size;
  void* data;
  int32_t dtype;       /* sirtaki_dtype */
  int32_t device_type; /* sirtaki_device_type */
  int32_t device_index;
  int32_t ndim;
  const int64_t* dims;
  const int64_t* strides;
  void* cuda_stream; /* a cudaStream_t, NULL: the default stream; of a request its input's counts */
} sirtaki_tensor;

typedef uint64_t sirtaki_request; /* 0: none */
typedef uint32_t sirtaki_stream;  /* 0: none */

/* ---- life ---- */

/* Called about ten times a second, on the thread of the call, while a call blocks; non-zero ends the wait with
 * SIRTAKI_ABORTED (Ctrl-C). */
typedef int (*sirtaki_interrupt_fn)(void* context);

/* Starts the meeting point of a job of `size` ranks in this process (rank 0), for programs that tell the other ranks by
 * means of their own where it is: give rank, size, rendezvous and secret to sirtaki_init() on all of them.
 * bind_address: NULL or "127.0.0.1" for one host, "::" or "0.0.0.0" for several. *port and secret_hex (64 hexadecimal
 * digits and a zero; whoever knows it can join) are set on success. The same call again answers the same. */
SIRTAKI_API sirtaki_status sirtaki_host(int32_t size, const char* bind_address, uint16_t* port, char secret_hex[65]);

/* For telling the secret where others can read: each of two ranks makes a key pair (hexadecimal digits and a zero),
 * shows the other its public half, and both get the same key of the two, that nobody else can know. Who can also write
 * there can take the place of either. Need no session. */
SIRTAKI_API sirtaki_status sirtaki_key_pair(char private_hex[65], char public_hex[65]);
SIRTAKI_API sirtaki_status sirtaki_shared_key(const char* private_hex, const char* other_public_hex, char key_hex[65]);

typedef struct {
  uint32_t struct_size;
  /* Options given by the program, as lines of TOML ("net.interface = \"eth1\"\n"): highest precedence. May be NULL. */
  const char* options_toml;
  sirtaki_interrupt_fn interrupted; /* may be NULL; used by every call that blocks until sirtaki_shutdown() */
  void* interrupted_context;
  /* The job, where the program knows it better than the environment; size 0: from options and environment. */
  int32_t rank;
  int32_t size;
  const char* rendezvous; /* "host:port"; NULL for size 1 */
  const char* secret_hex; /* as sirtaki_host() gave it; NULL for size 1 */
} sirtaki_init_args;

/* Reads options and the environment of the launcher (sirtakirun, torchrun, mpirun, srun; none: size 1), meets the other
 * ranks and returns when all are there. Calling it while initialised is SIRTAKI_OK and does nothing. args may be NULL.
 */
SIRTAKI_API sirtaki_status sirtaki_init(const sirtaki_init_args* args);
/* Ends the session in order; pending requests end with SIRTAKI_NOT_INITIALIZED. OK when not initialised. Call it before
 * the process ends: the others take a rank that vanishes for a lost one. Results already handed out stay valid. */
SIRTAKI_API sirtaki_status sirtaki_shutdown(void);
/* 1 or 0. In a forked child always 0: a child never touches its parent's session. */
SIRTAKI_API int sirtaki_is_initialized(void);

/* -1 when not initialised. */
SIRTAKI_API int sirtaki_rank(void);
SIRTAKI_API int sirtaki_size(void);
SIRTAKI_API int sirtaki_local_rank(void);
SIRTAKI_API int sirtaki_local_size(void);
SIRTAKI_API int sirtaki_cross_rank(void); /* index of this host among those with a rank of this local rank */
SIRTAKI_API int sirtaki_cross_size(void); /* number of these hosts */
SIRTAKI_API int sirtaki_is_homogeneous(void);

SIRTAKI_API const char* sirtaki_version(void);
/* Of NCCL, as it counts: 22809 is 2.28.9. 0 where tensors on a GPU cannot go over it: the CUDA plug-in is not
 * installed, or there is no NCCL of a version that will do, neither in the process nor where device.nccl_library says
 * nor the system's. What is found of the two stays loaded, so ask when the framework has loaded its own. */
SIRTAKI_API int sirtaki_nccl_version(void);
/* Text of the calling thread's last failed call; "" before the first. Valid until its next failed call. */
SIRTAKI_API const char* sirtaki_last_error(void);
/* Rank and tensor to blame for it; -1 and "" when unknown. */
SIRTAKI_API int sirtaki_last_error_rank(void);
SIRTAKI_API const char* sirtaki_last_error_tensor(void);

/* ---- operations by name ---- */

typedef struct {
  uint32_t struct_size;
  int32_t op; /* sirtaki_op */
  /* The same on all ranks; unique among requests in flight; NULL: named by call order. May not end as names of process
   * sets do (" of rank 1", " of ranks 0, 2"). */
  const char* name;
  sirtaki_tensor input; /* not for barrier, but for its struct_size */
  /* Where the result goes. Allreduce, broadcast: same dims as input, may be the same memory (broadcast: always in
   * place, give the same tensor twice). reducescatter: own block. allgather, alltoall: leave data NULL; the runtime
   * allocates and sirtaki_result() gives it. reducescatter too may leave it NULL. */
  sirtaki_tensor output;
  int32_t reduce_op; /* sirtaki_reduce_op */
  int32_t root;      /* broadcast */
  double prescale; /* 1.0, as in headers without it: none. Multiplied in float64 precision per element for f64, float32
                      otherwise */
  double postscale;
  const int64_t* splits; /* alltoall: rows of dimension 0 for each rank; NULL: equal parts */
  int32_t splits_count;
  int32_t priority; /* smaller goes first; 0: -1000 for barriers and inputs of up to 64 KiB, which are urgent */
  /* A process set: the ranks that take part, ascending, this one among them; NULL: all. Names are the set's own; root
   * stays a rank of the job; splits, blocks and received rows are by place in the set. */
  const int32_t* ranks;
  int32_t ranks_count;
} sirtaki_request_args;

SIRTAKI_API sirtaki_status sirtaki_submit(const sirtaki_request_args* args, sirtaki_request* request);
/* Several requests that become ready together. All or none are submitted. */
SIRTAKI_API sirtaki_status sirtaki_submit_group(const sirtaki_request_args* args, int count, sirtaki_request* requests);
/* *done = 1 when a wait would not block. */
SIRTAKI_API sirtaki_status sirtaki_poll(sirtaki_request request, int* done);
/* Waits for the operation and returns its status. timeout_ms < 0: without limit. After a timeout the request lives on.
 */
SIRTAKI_API sirtaki_status sirtaki_wait(sirtaki_request request, int64_t timeout_ms);
/* on = 1: waits of the calling thread, here and below, end with SIRTAKI_TIMEOUT when no rank can go on unless this one
 * does; what they waited for lives on. For waits that a program could do without for now. on = 0: as in the beginning.
 */
SIRTAKI_API sirtaki_status sirtaki_set_gives_way(int on);
/* After a successful wait: the memory the runtime allocated, which is the host's, whatever the input's. dims are valid
 * until release; *received_splits (may be NULL) gets the rows per rank of an alltoall (as many as ranks took part). */
SIRTAKI_API sirtaki_status sirtaki_result(sirtaki_request request, sirtaki_tensor* output,
                                          const int64_t** received_splits);
/* Forgets a request and frees its result. Releasing one in flight waits for it first. */
SIRTAKI_API void sirtaki_release(sirtaki_request request);
/* Ids of requests that finished since the last call and were marked with sirtaki_watch(); waits up to timeout_ms for
 * the first. A request that is released before it was told is told all the same. Returns their number, or -1 when the
 * session has ended. For pump threads. */
SIRTAKI_API int sirtaki_wait_watched(sirtaki_request* requests, int capacity, int64_t timeout_ms);
SIRTAKI_API sirtaki_status sirtaki_watch(sirtaki_request request);
/* Called once, from a thread of the runtime's, from inside the call that asked for it or from sirtaki_shutdown(); may
 * neither block nor call any function of this header. */
typedef void (*sirtaki_done_fn)(void* context);
/* Calls done(context) when the request is over, also when the session ends before: sirtaki_wait() then returns at once.
 * Once a request, before sirtaki_release(). Never called when this returns an error. */
SIRTAKI_API sirtaki_status sirtaki_on_done(sirtaki_request request, sirtaki_done_fn done, void* context);

/* ---- streams: the same tensors every step (an optimizer) ---- */

typedef struct {
  uint32_t struct_size;
  const char* name; /* the same on all ranks; unique among open streams */
  int32_t count;
  const char* const* names;      /* count tensor names */
  const sirtaki_tensor* tensors; /* dims, strides, dtype, device of each; data is not looked at */
  const int32_t* order;          /* expected order of readiness; NULL: last tensor first (backprop) */
  int32_t reduce_op;             /* SIRTAKI_SUM or SIRTAKI_AVERAGE */
  double prescale, postscale;    /* what gradients, and results, are multiplied by; 1: nothing; prescale is never 0 */
  const char* codec;             /* a codec, a policy or rules (docs/compression.md); NULL: as options say */
  int64_t first_step; /* steps that the training has made before, the same on all ranks: for `warmup` of codecs */
  /* A process set, as of a request; NULL: all. Streams of two sets may have one name. */
  const int32_t* ranks;
  int32_t ranks_count;
} sirtaki_stream_args;

/* SIRTAKI_OK: the text can be the codec of a stream (docs/compression.md). Not collective, needs no session. */
SIRTAKI_API sirtaki_status sirtaki_check_codec(const char* codec);
/* Collective: checked and agreed by all ranks. Blocks until then. After SIRTAKI_ABORTED of an interrupted wait, and
 * after SIRTAKI_TIMEOUT, the opening goes on: another call with the same arguments waits for it. */
SIRTAKI_API sirtaki_status sirtaki_stream_open(const sirtaki_stream_args* args, sirtaki_stream* stream);
/* Tensor `index` of the current step is ready; reduced in place, finished when sirtaki_stream_wait returns. Once per
 * step and tensor. absent = 1: this rank has no gradient for it; `tensor` then holds zeros and receives the others'
 * result. */
SIRTAKI_API sirtaki_status sirtaki_stream_ready(sirtaki_stream stream, int32_t index, const sirtaki_tensor* tensor,
                                                int absent);
/* End of backward: every tensor has been submitted (as absent if need be). */
SIRTAKI_API sirtaki_status sirtaki_stream_finish(sirtaki_stream stream);
/* Waits for the step that was finished last and opens the next. On error the step is void on all ranks. */
SIRTAKI_API sirtaki_status sirtaki_stream_wait(sirtaki_stream stream, int64_t timeout_ms);
/* Calls done(context) when the step that was finished last is over, also when the session ends before:
 * sirtaki_stream_wait(), which still has to be called, then returns at once. Once a step, and while no thread waits for
 * it. Never called when this returns an error. */
SIRTAKI_API sirtaki_status sirtaki_stream_on_done(sirtaki_stream stream, sirtaki_done_fn done, void* context);
/* Waits until these tensors (indices, count of them) of the step that was finished last hold their result; the others
 * may still be on their way, and sirtaki_stream_wait() ends the step as ever. Returns at once, and cheaply, when they
 * do. After an error the step is void, and sirtaki_stream_wait() tells the same. A step can fail after some of its
 * tensors were handed out only when a rank is lost or gives up after its sirtaki_stream_finish(). After SIRTAKI_TIMEOUT
 * it may be called again. One thread of the process at a time. */
SIRTAKI_API sirtaki_status sirtaki_stream_wait_tensors(sirtaki_stream stream, const int32_t* indices, int32_t count,
                                                       int64_t timeout_ms);
/* After a successful wait, of the step or of tensor i: used[i] = 0 when no rank had a gradient for tensor i in that
 * step, SIRTAKI_GRADIENT when some had, SIRTAKI_STEP when some had and the codec corrects momentum: the result is then
 * a step of SGD with momentum, to which an optimizer must not add its own. */
enum { SIRTAKI_GRADIENT = 1, SIRTAKI_STEP = 2 };
SIRTAKI_API sirtaki_status sirtaki_stream_used(sirtaki_stream stream, uint8_t* used);
/* Gives up the current step on all ranks (an exception in the middle of backward); they get SIRTAKI_ABORTED with `why`.
 */
SIRTAKI_API sirtaki_status sirtaki_stream_abort(sirtaki_stream stream, const char* why);
SIRTAKI_API sirtaki_status sirtaki_stream_close(sirtaki_stream stream);

/* Codecs that send less than the gradient keep the rest for the next step. What this rank owes of tensor `index`: all
 * its elements, in the order of memory, numel of them; zeros where nothing is owed. Averaged (or summed) over the
 * ranks, as gradients are, it is what the model has still to be given. Between two steps, like setting it: restoring a
 * checkpoint, or zeros to forget. A tensor that is not compressed (any more) adds it to its next gradient. */
SIRTAKI_API sirtaki_status sirtaki_stream_residual(sirtaki_stream stream, int32_t index, float* out, int64_t numel);
SIRTAKI_API sirtaki_status sirtaki_stream_set_residual(sirtaki_stream stream, int32_t index, const float* in,
                                                       int64_t numel);
/* What the codec of a tensor remembers of its steps beside that: momentum, thresholds, factors. For checkpoints of this
 * rank, between two steps. *bytes gets its size, and `out`, of `room` bytes (may be NULL), as much if that is enough.
 * What is set is taken as far as it means something for the codec of the next step; 0 bytes: the codec begins anew.
 * SIRTAKI_INVALID_ARGUMENT: it is damaged or of another tensor. */
SIRTAKI_API sirtaki_status sirtaki_stream_memory(sirtaki_stream stream, int32_t index, void* out, int64_t room,
                                                 int64_t* bytes);
SIRTAKI_API sirtaki_status sirtaki_stream_set_memory(sirtaki_stream stream, int32_t index, const void* in,
                                                     int64_t bytes);
/* This rank's mean loss of a step, for the policy importance with split=loss, by which ranks with larger losses send
 * more. Any time, not collective, does not wait; a loss below 0 or not finite says nothing. */
SIRTAKI_API sirtaki_status sirtaki_stream_report_loss(sirtaki_stream stream, double loss);
/* This rank has no more data (uneven batches). Until all ranks have called this, its streams take part in the steps of
 * the others and in their operations by name with zeros, or without rows; averages still divide by the size. A
 * broadcast from it, minima, maxima and products fail on the others. Gives the rank that came last (may be NULL): it
 * has seen every step. Call it between two steps. After SIRTAKI_TIMEOUT the rank stays joined: call it again. */
SIRTAKI_API sirtaki_status sirtaki_join(int32_t* last_rank, int64_t timeout_ms);

/* ---- local updates: ranks train by themselves between merges of their models (docs/local_updates.md) ----
 *
 * One training's parameters, in memory that stays where it is until sirtaki_local_close(). Every rank makes the same
 * calls after the same steps, from one thread at a time, and all but _stats_json, _anchor and _save are collective.
 * Calls write parameters; none else may meanwhile. An error ends the training's local updates on this rank: each later
 * call gives the same. */

typedef struct sirtaki_local_training* sirtaki_local;

/* How a buffer becomes equal on all ranks when models do: the weighted mean; the variance of all, of buffers whose
 * means are another one's; the largest. */
enum { SIRTAKI_BUFFER_MEAN = 0, SIRTAKI_BUFFER_VARIANCE = 1, SIRTAKI_BUFFER_MOST = 2 };
/* How the mean of models comes back after the steps made meanwhile: they stay, or, for comparison, are lost. */
enum { SIRTAKI_MERGE_CORRECTED = 0, SIRTAKI_MERGE_OVERWRITE = 1 };
/* What makes the next model of all of the mean: nothing more; momentum; Nesterov's; as the interval's policy has it. */
enum { SIRTAKI_OUTER_NONE = 0, SIRTAKI_OUTER_MOMENTUM = 1, SIRTAKI_OUTER_NESTEROV = 2, SIRTAKI_OUTER_PRESET = 3 };

typedef struct {
  uint32_t struct_size;
  const char* name;     /* the same on all ranks; unique among open trainings */
  const char* interval; /* a number of steps, or a policy with its keys: "auto", "qsr:base=4" */
  /* With interval = "callable": the steps of the next round, the same on all ranks; `round` is a JSON object of what
   * they all measured. Less than 1: an error. */
  int64_t (*steps)(void* context, const char* round);
  void* context;
  int32_t count; /* parameters that are trained, in the order of the forward pass: float32, CPU */
  const char* const* names;
  const sirtaki_tensor* tensors;
  int32_t buffer_count; /* float32, float64 or int64, CPU */
  const char* const* buffer_names;
  const sirtaki_tensor* buffers;
  const int32_t* buffer_rules;
  const int32_t* buffer_means; /* SIRTAKI_BUFFER_VARIANCE: the place of the buffer with the means; else not looked at */
  int32_t fragments;           /* pieces that are merged one after another; 0: of 4 MiB, at most 8 */
  int32_t merge;
  int32_t outer;
  double outer_lr, outer_momentum; /* of SIRTAKI_OUTER_MOMENTUM and _NESTEROV */
  const char* codec; /* how differences travel (docs/compression.md); NULL: the policy's, "": models as they are */
} sirtaki_local_args;

typedef struct {
  uint32_t struct_size;
  double lr;   /* below 0: not known */
  double loss; /* this rank's mean loss of the step, where has_loss is not 0 */
  int32_t has_loss;
  int64_t share;      /* this rank's weight in means: 1, or its samples */
  int64_t steps_left; /* of the training; below 0: not known */
  int64_t waited_ns;  /* for gradients, where they were averaged */
} sirtaki_local_step_args;

typedef struct {
  uint32_t struct_size;
  int32_t average_gradients;  /* 1: the program averages the gradients of its next step; 0: it makes that step alone */
  int32_t model_changed;      /* parameters were written */
  int32_t reset_optimizer;    /* this rank's optimizer state belongs to a model that is gone */
  int32_t equalize_optimizer; /* gradients are averaged again: all ranks make their optimizer states equal */
  int32_t donor;              /* the rank whose optimizer state such ranks take, the same on all; -1: they begin anew */
  int32_t decisions;          /* made by this call */
  int64_t steps, delay;       /* between two merges of a parameter, and from a snapshot to its merge */
} sirtaki_local_outcome;

/* SIRTAKI_OK: the text can be sirtaki_local_args.interval. Not collective, needs no session. */
SIRTAKI_API sirtaki_status sirtaki_check_interval(const char* interval);
/* Collective: opens streams. Models are compared at the start. */
SIRTAKI_API sirtaki_status sirtaki_local_open(const sirtaki_local_args* args, sirtaki_local* local);
/* Before the first step: all ranks have the same options and parameters, else SIRTAKI_MISMATCH. Outcomes may be NULL.
 */
SIRTAKI_API sirtaki_status sirtaki_local_start(sirtaki_local local, sirtaki_local_outcome* outcome);
/* After every step of the optimizer. */
SIRTAKI_API sirtaki_status sirtaki_local_step(sirtaki_local local, const sirtaki_local_step_args* step,
                                              sirtaki_local_outcome* outcome);
/* Makes parameters and buffers equal on all ranks. */
SIRTAKI_API sirtaki_status sirtaki_local_drain(sirtaki_local local, sirtaki_local_outcome* outcome);
/* Whether the program wants averaged gradients in every step: at once, or as usual again. */
SIRTAKI_API sirtaki_status sirtaki_local_synchronous(sirtaki_local local, int wanted, sirtaki_local_outcome* outcome);
/* The values of parameter `index` that all ranks last agreed on: numel floats, in the order of memory. */
SIRTAKI_API sirtaki_status sirtaki_local_anchor(sirtaki_local local, int32_t index, float* out, int64_t numel);
/* For a checkpoint of this rank; *bytes gets its size, and `out`, of `room` bytes (may be NULL), as much if that is
 * enough. SIRTAKI_INVALID_ARGUMENT: merges are in flight; drain first. */
SIRTAKI_API sirtaki_status sirtaki_local_save(sirtaki_local local, void* out, int64_t room, int64_t* bytes);
/* In place of sirtaki_local_start(), on every rank, with the parameters of that moment. */
SIRTAKI_API sirtaki_status sirtaki_local_restore(sirtaki_local local, const void* in, int64_t bytes);
/* Frees it; merges in flight are given up. NULL: nothing. */
SIRTAKI_API void sirtaki_local_close(sirtaki_local local);

/* ---- introspection; each returns JSON owned by the calling thread until its next call of these; NULL on errors ----
 */

/* [{name, value, source, help, ...}]; before sirtaki_init() those that it would take without arguments. */
SIRTAKI_API const char* sirtaki_options_json(void);
/* Counters and times of the session; "tensors": {STREAM: rows as below, without owed_norm}. */
SIRTAKI_API const char* sirtaki_stats_json(void);
SIRTAKI_API const char* sirtaki_members_json(void); /* [{rank, hostname, host_id, pid}] */
/* [{name, numel, dtype, codec, reduction, params, density, momentum, held_bytes, wire_bytes, ratio, reason,
 * owed_norm}]: how each tensor travels from the next step on, and why. density: part of its elements of which anything
 * travels. momentum: the factor that the codec corrects, 0 for none. wire_bytes: what it takes on the network in a
 * step, as the size of an allreduce that would need as much. owed_norm: Euclidean norm of sirtaki_stream_residual(). */
SIRTAKI_API const char* sirtaki_stream_tensors_json(sirtaki_stream stream);
/* Mode, interval, delay, reason, rounds, waits, bytes, divergence, alarms and memory of local updates. */
SIRTAKI_API const char* sirtaki_local_stats_json(sirtaki_local local);

SIRTAKI_API sirtaki_status sirtaki_timeline_start(const char* path);
SIRTAKI_API sirtaki_status sirtaki_timeline_stop(void);
/* A span of the caller's own in the trace, on this rank's "user" track. */
SIRTAKI_API void sirtaki_timeline_mark(const char* name, int64_t begin_ns, int64_t end_ns);

#ifdef __cplusplus
}
#endif

#endif /* SIRTAKI_H_ */
