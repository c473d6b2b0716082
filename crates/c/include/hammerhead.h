// Hammerhead: exact and fast gated dual GEMMs on NVFP4 data, C = gate(A·B1ᵀ) ∘ (A·B2ᵀ).
//
// Written by cbindgen from crates/c/src; do not edit. After a change there:
//     UPDATE_HEADER=1 cargo test -p hammerhead-c --test header
//
// Rules that hold for every function here:
// - What returns int32_t returns HAMMERHEAD_OK, or the kind of the failure; hammerhead_last_error() then says in words what
//   was wrong and what to do. A failed call makes no object, and what it left in outputs means nothing.
// - Memory that you pass stays yours, is read (or written, for results) during the call only, and may be freed right after it.
//   Engines, layers and adapters are freed by their destroy functions, once; NULL is fine there.
// - Engines, layers and adapters may be used by several threads at once. Destroy them when no call uses them any more.
// - The functions of a queue take memory of a GPU, and return before it is read: it stays until the stream has done the work.
// - Structures are those of this header: compile with the header of the library that you load, whose hammerhead_version() is
//   this one's. What a released version has stays as it is in later ones; what is new there gets a new name.
// - NULL where something is needed, sizes that do not fit, and names that do not exist are failures, not crashes.


#ifndef HAMMERHEAD_H
#define HAMMERHEAD_H

#include <stddef.h>
#include <stdint.h>

// IEEE half precision.
#define HAMMERHEAD_F16 0

// bfloat16.
#define HAMMERHEAD_BF16 1

// Single precision.
#define HAMMERHEAD_F32 2

// NVFP4: codes, scales and a global scale.
#define HAMMERHEAD_NVFP4 3

// g·sigmoid(g)·u: SwiGLU.
#define HAMMERHEAD_GATE_SILU 0

// The tanh form of GELU, times u: GeGLU.
#define HAMMERHEAD_GATE_GELU_TANH 1

// gpt-oss's gate, both values limited.
#define HAMMERHEAD_GATE_GPT_OSS 2

// A plain product with the first matrix; there is no second.
#define HAMMERHEAD_GATE_NONE 3

// max(g, 0)² of the product with the first matrix; there is no second.
#define HAMMERHEAD_GATE_RELU2 4

// All numbered experts of a layer in order, or where there are none its one pair.
#define HAMMERHEAD_EXPERTS_ALL 0

// The experts whose numbers are given, in that order.
#define HAMMERHEAD_EXPERTS_ONLY 1

// The experts that see every token beside numbered ones.
#define HAMMERHEAD_EXPERTS_SHARED 2

// All went well.
#define HAMMERHEAD_OK 0

// An argument will not do.
#define HAMMERHEAD_INVALID 1

// A backend cannot run on this machine.
#define HAMMERHEAD_UNAVAILABLE 2

// Memory could not be had.
#define HAMMERHEAD_MEMORY 3

// A file could not be read.
#define HAMMERHEAD_IO 4

// The GPU or its driver failed.
#define HAMMERHEAD_DEVICE 5

// A fault in Hammerhead itself; please report it.
#define HAMMERHEAD_INTERNAL 6

// What stands between the products of an MLP: the type of the tokens.
#define HAMMERHEAD_INTERMEDIATE_TOKENS 0

// Single precision.
#define HAMMERHEAD_INTERMEDIATE_F32 1

// NVFP4, with each MLP's `intermediate_scale`.
#define HAMMERHEAD_INTERMEDIATE_NVFP4 2

// The operands of both products are multiplied as they are.
#define HAMMERHEAD_PRECISION_EXACT 0

// They are rounded to e4m3, which changes results as docs/fp8.md defines, and is computed by Hopper GPUs alone.
#define HAMMERHEAD_PRECISION_FP8 1

// The largest logits; weights are the softmax over all experts.
#define HAMMERHEAD_ROUTING_SOFTMAX 0

// The same, divided by the sum over the chosen ones.
#define HAMMERHEAD_ROUTING_SOFTMAX_RENORM 1

// The largest logits; weights are the softmax of those (gpt-oss).
#define HAMMERHEAD_ROUTING_TOPK_SOFTMAX 2

// The largest sigmoids plus correction, inside the best groups; weights are the sigmoids, divided by their sum
// (DeepSeek-V3).
#define HAMMERHEAD_ROUTING_SIGMOID 3

// The same without the division.
#define HAMMERHEAD_ROUTING_SIGMOID_PLAIN 4

// The largest logits; their sigmoids multiply the experts' inputs (Llama-4).
#define HAMMERHEAD_ROUTING_SIGMOID_INPUT 5

// As [`HAMMERHEAD_ROUTING_SIGMOID`], with the root of ln(1 + eˣ) in place of the sigmoid (DeepSeek-V4).
#define HAMMERHEAD_ROUTING_SQRT_SOFTPLUS 6

// Adapters of a layer. Opaque. On a GPU they are put beside the layer's weights by the first call there.
typedef struct HammerheadAdapters HammerheadAdapters;

// Backends and threads, ready to compute. Opaque.
typedef struct HammerheadEngine HammerheadEngine;

// Packed weights, and what is computed with them: the gated products of groups, or a whole layer of one or many
// experts, with what chooses among them. Opaque. A layer does not need its engine to stay, only one like it to be run
// on.
typedef struct HammerheadLayer HammerheadLayer;

// A stream of a GPU, and what is queued there. Opaque; one thread at a time may use it.
typedef struct HammerheadQueue HammerheadQueue;

// What an adapter adds to a matrix's product, b·(a·x) times the adapter's scaling; or nothing: a is NULL.
typedef struct HammerheadLowRank {
  // The rank, at most 64.
  size_t rank;
  // HAMMERHEAD_F16, HAMMERHEAD_BF16 or HAMMERHEAD_F32, of a and b.
  uint32_t element;
  // Numbers [rank, columns of the matrix], peft's lora_A; or NULL.
  const void *a;
  // The bytes at `a`.
  size_t a_bytes;
  // Numbers [rows of the matrix, rank], peft's lora_B.
  const void *b;
  // The bytes at `b`.
  size_t b_bytes;
} HammerheadLowRank;

// What an adapter adds to the matrices of an expert.
typedef struct HammerheadExpertLowRanks {
  // To the gate matrix, or the only one.
  struct HammerheadLowRank b1;
  // To the up matrix; nothing where the gate takes one.
  struct HammerheadLowRank b2;
  // To the down projection.
  struct HammerheadLowRank down;
} HammerheadExpertLowRanks;

// One adapter of a layer.
typedef struct HammerheadAdapter {
  // What all that it adds is multiplied with: peft's lora_alpha / r.
  float scaling;
  // A structure for every expert of the layer.
  const struct HammerheadExpertLowRanks *experts;
  // One for the shared expert, or NULL.
  const struct HammerheadExpertLowRanks *shared;
} HammerheadAdapter;

// The tokens of one group: [rows, k], row-major.
typedef struct HammerheadTokens {
  // HAMMERHEAD_F16, HAMMERHEAD_BF16, HAMMERHEAD_F32 or HAMMERHEAD_NVFP4; the same for all groups of a call.
  uint32_t element;
  // The elements; for HAMMERHEAD_NVFP4 the codes. May be NULL if there are no rows.
  const void *values;
  // The bytes at `values`.
  size_t values_bytes;
  // The scales, for HAMMERHEAD_NVFP4; else NULL.
  const uint8_t *scales;
  // The bytes at `scales`; else 0.
  size_t scales_bytes;
  // Tokens. May be 0.
  size_t rows;
  // Elements of a token.
  size_t k;
  // The scale of all tokens of the group; 1 if they have none.
  float global_scale;
} HammerheadTokens;

// Finite numbers in single precision, or none: NULL and 0.
typedef struct HammerheadVector {
  // The numbers.
  const float *values;
  // The bytes at `values`: four per number.
  size_t bytes;
} HammerheadVector;

// The adapter of every token.
typedef struct HammerheadTokenAdapters {
  // The adapters.
  const struct HammerheadAdapters *adapters;
  // The number of each token's, signed, 32 bits; -1 for none.
  const int32_t *ids;
  // The bytes at `ids`: four per token.
  size_t ids_bytes;
} HammerheadTokenAdapters;

// Room for the result of one group: [rows, n], row-major. It may not overlap with anything else of the call.
typedef struct HammerheadOutput {
  // HAMMERHEAD_F16, HAMMERHEAD_BF16 or HAMMERHEAD_F32; the same for all groups of a call.
  uint32_t element;
  // Where the result goes. May be NULL if there are no rows.
  void *values;
  // The bytes there: rows·n times the size of an element.
  size_t values_bytes;
} HammerheadOutput;

// An NVFP4 matrix of [rows, k]: element = e2m1(code) · e4m3(scale) · global.
typedef struct HammerheadMatrix {
  // Two e2m1 codes a byte, the even k in the low nibble: [rows, k/2].
  const uint8_t *codes;
  // The bytes at `codes`: rows·k/2.
  size_t codes_bytes;
  // One e4m3 byte for 16 consecutive elements: [rows, k/16].
  const uint8_t *scales;
  // The bytes at `scales`: rows·k/16.
  size_t scales_bytes;
  // Rows: columns of the result.
  size_t rows;
  // Elements of a row, a multiple of 16.
  size_t k;
  // The scale of the whole matrix; it multiplies.
  float global_scale;
} HammerheadMatrix;

// The weights of one group: gate and up, of one shape.
typedef struct HammerheadWeights {
  // The gate matrix.
  struct HammerheadMatrix b1;
  // The up matrix. With HAMMERHEAD_GATE_NONE there is none: its pointers are NULL.
  struct HammerheadMatrix b2;
} HammerheadWeights;

// What the tokens of one group are multiplied with, column by column, before they meet its weights: AWQ's
// pre_quant_scale.
typedef struct HammerheadInputScale {
  // k finite numbers, or NULL if the group's tokens are taken as they are.
  const float *factors;
  // The bytes at `factors`: 4·k; or 0.
  size_t factors_bytes;
} HammerheadInputScale;

// Memory on the GPU for a queued call to work in, or none (NULL and 0): then the queue uses its own.
typedef struct HammerheadWorkspace {
  // Where it is, a multiple of 256.
  void *address;
  // How many bytes there are: at least what hammerhead_layer_workspace_bytes says.
  size_t bytes;
} HammerheadWorkspace;

// Threads of the caller's, as a function that runs tasks on them.
typedef struct HammerheadThreads {
  // Handed to `run` as it is.
  void *pool;
  // How many threads there are, the calling one included.
  size_t threads;
  // Calls task(arg, i) once for each i < count, in any order, on any threads, and returns after all calls have. One
  // thread that makes all calls is right, too. Calls of `run` may come from several threads at once, if an engine is
  // so used.
  void (*run)(void *pool, void (*task)(void *arg, size_t index), void *arg, size_t count);
} HammerheadThreads;

// The weights of one MLP: down(gate(x·b1ᵀ + b1_bias, x·b2ᵀ + b2_bias)) + down_bias.
typedef struct HammerheadMlpMatrices {
  // The gate matrix [n, k], or the only one where the gate takes one.
  struct HammerheadMatrix b1;
  // The up matrix [n, k]; its pointers are NULL where the gate takes one matrix.
  struct HammerheadMatrix b2;
  // The down projection [k, n].
  struct HammerheadMatrix down;
  // n numbers, or none.
  struct HammerheadVector b1_bias;
  // n numbers, or none.
  struct HammerheadVector b2_bias;
  // k numbers, or none.
  struct HammerheadVector down_bias;
  // k numbers that tokens are multiplied with first (AWQ's pre_quant_scale), or none.
  struct HammerheadVector input_scale;
  // n numbers that the intermediate is multiplied with before `down`, or none.
  struct HammerheadVector down_input_scale;
  // The global scale of an NVFP4 intermediate; 0 for 1.
  float intermediate_scale;
} HammerheadMlpMatrices;

// How a whole layer is computed.
typedef struct HammerheadWholeOptions {
  // HAMMERHEAD_INTERMEDIATE_TOKENS or one of its kin.
  uint32_t intermediate;
  // Whether a token's result may depend on nothing but that token and the weights, to the bit: 0 or 1.
  uint32_t batch_invariant;
  // HAMMERHEAD_PRECISION_EXACT or HAMMERHEAD_PRECISION_FP8.
  uint32_t precision;
  // What the rows that are computed at a time may take, in bytes; 0 for 512 MiB. One token is always computed.
  size_t workspace_bytes;
  // What the weights may take of a GPU's memory, where the engine computes there; 0 for all that there is. Experts
  // beyond it stay in the host's memory, and the processor computes them while the GPU computes the others.
  size_t gpu_bytes;
  // Rows (tokens times experts of each) from which on a call has the GPU compute those experts too, with weights
  // that it brings over for the while; 0 for never. What it brings takes as much of the host's memory again as all
  // experts do. docs/layers.md says where that pays. With batch_invariant only 0 and 1, never and in every call,
  // will do.
  size_t stream_rows;
} HammerheadWholeOptions;

// How a router's logits become experts and weights.
typedef struct HammerheadRouting {
  // HAMMERHEAD_ROUTING_SOFTMAX or one of its kin.
  uint32_t scoring;
  // Experts per token.
  size_t top_k;
  // With sigmoids, a number per expert that is added for choosing only, or none.
  struct HammerheadVector correction;
  // With sigmoids, groups of experts; 0 for none.
  size_t groups;
  // How many of them may be chosen from, those whose best two sum highest.
  size_t best_groups;
  // What weights are multiplied with; 0 for 1.
  float scaling;
} HammerheadRouting;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

// Makes adapters of a whole layer, of which each token of a call may have one. Their numbers are copied.
//
// # Safety
//
// `adapters` leads to `count` structures, each of which has a structure for every expert of the layer; all pointers in
// structures lead to as many bytes as is said beside them; `made` may be written.
int32_t hammerhead_adapters_create(const struct HammerheadLayer *layer,
                                   const struct HammerheadAdapter *adapters,
                                   size_t count,
                                   struct HammerheadAdapters **made);

// Frees adapters.
//
// # Safety
//
// `adapters` is NULL or was made by hammerhead_adapters_create and not yet freed, and no call uses it.
void hammerhead_adapters_destroy(struct HammerheadAdapters *adapters);

// hammerhead_moe_run with an adapter beside the weights for tokens that have one. A layer of one expert takes ids that
// are all 0, and weights of 1.
//
// # Safety
//
// As for hammerhead_moe_run, for `adapted` too.
int32_t hammerhead_moe_run_adapted(const struct HammerheadEngine *engine,
                                   const struct HammerheadLayer *layer,
                                   const struct HammerheadTokens *tokens,
                                   const void *ids,
                                   uint32_t id_bits,
                                   size_t ids_bytes,
                                   struct HammerheadVector weights,
                                   uint32_t weights_on_input,
                                   struct HammerheadTokenAdapters adapted,
                                   const struct HammerheadOutput *output);

// hammerhead_queue_moe with an adapter beside the weights for tokens that have one: their numbers are in the GPU's
// memory, and a number that is no adapter's means none. The queue's own workspace is taken. The first call with these
// adapters puts them into the GPU's memory, and must not be captured.
//
// # Safety
//
// As for hammerhead_queue_moe, for `adapted` too, which is freed no earlier than the stream has done the work.
int32_t hammerhead_queue_moe_adapted(struct HammerheadQueue *queue,
                                     const struct HammerheadLayer *layer,
                                     const struct HammerheadTokens *tokens,
                                     const void *ids,
                                     uint32_t id_bits,
                                     size_t ids_bytes,
                                     struct HammerheadVector weights,
                                     uint32_t weights_on_input,
                                     struct HammerheadTokenAdapters adapted,
                                     const struct HammerheadOutput *output);

// Makes an engine.
//
// backend: a backend's name ("avx2", "cuda"), or NULL for what the environment's HAMMERHEAD_BACKEND says, else the
// best there is. threads: how many to compute on, or 0 for as many as this process may run on. config: wishes for how
// to compute, such as "strategy=interleaved,tile=48x16", or NULL.
//
// # Safety
//
// Texts are NULL or end with a zero byte; `engine` may be written.
int32_t hammerhead_engine_create(const char *backend,
                                 size_t threads,
                                 const char *config,
                                 struct HammerheadEngine **engine);

// Frees an engine.
//
// # Safety
//
// `engine` is NULL or was made by hammerhead_engine_create and not yet freed, and no call uses it.
void hammerhead_engine_destroy(struct HammerheadEngine *engine);

// Sets what the runs of a layer of products round dense tokens and weights to before they multiply them: "exact"
// (nothing, as it is loaded) or "fp8", which changes results as docs/fp8.md defines. Only Hopper GPUs compute that
// (backend "cuda"): hammerhead_run fails elsewhere. Whole layers (MLPs, mixtures of experts) are exact only.
//
// # Safety
//
// `layer` was made by a load function and not yet freed, and no other call uses it; the text ends with a zero byte.
int32_t hammerhead_layer_set_precision(struct HammerheadLayer *layer,
                                       const char *precision);

// Frees a layer.
//
// # Safety
//
// `layer` is NULL or was made by a load function and not yet freed, and no call uses it.
void hammerhead_layer_destroy(struct HammerheadLayer *layer);

// Packs the weights of `count` groups (one for a plain layer, one per expert else). They are not needed afterwards.
//
// gate: HAMMERHEAD_GATE_SILU or one of its kin. clamp: the gate's limit; 0 is none for SiLU and the published one for
// gpt-oss, and all other gates have none.
//
// # Safety
//
// `groups` leads to `count` structures whose pointers lead to as many bytes as they say; `layer` may be written.
int32_t hammerhead_layer_load(const struct HammerheadEngine *engine,
                              const struct HammerheadWeights *groups,
                              size_t count,
                              uint32_t gate,
                              float clamp,
                              struct HammerheadLayer **layer);

// The same for weights whose tokens are multiplied first: `input_scales` are `count` vectors of factors, one per
// group. Every run of the layer multiplies its tokens, which must not be NVFP4.
//
// # Safety
//
// As for hammerhead_layer_load, for `input_scales` too.
int32_t hammerhead_layer_load_scaled(const struct HammerheadEngine *engine,
                                     const struct HammerheadWeights *groups,
                                     const struct HammerheadInputScale *input_scales,
                                     size_t count,
                                     uint32_t gate,
                                     float clamp,
                                     struct HammerheadLayer **layer);

// Reads gated pairs of a layer of a model on disk and packs them, one group each, with the gate that the model
// declares.
//
// path: a folder, an index of shards, or a single safetensors or GGUF file. number: the layer's in the model. which:
// HAMMERHEAD_EXPERTS_ALL, HAMMERHEAD_EXPERTS_SHARED, or HAMMERHEAD_EXPERTS_ONLY for those of the `count` numbers at
// `experts`.
//
// # Safety
//
// `path` ends with a zero byte; `experts` is NULL or leads to `count` numbers; `layer` may be written.
int32_t hammerhead_layer_load_checkpoint(const struct HammerheadEngine *engine,
                                         const char *path,
                                         size_t number,
                                         uint32_t which,
                                         const size_t *experts,
                                         size_t count,
                                         struct HammerheadLayer **layer);

// The number of groups of a layer of products; 0 for NULL and for whole layers, of which hammerhead_moe_shape tells.
//
// # Safety
//
// `layer` is NULL or a layer.
size_t hammerhead_layer_groups(const struct HammerheadLayer *layer);

// The columns of a group's result, and the elements of its tokens.
//
// # Safety
//
// `layer` is NULL or a layer; `n` and `k` are NULL or may be written.
int32_t hammerhead_layer_shape(const struct HammerheadLayer *layer,
                               size_t group,
                               size_t *n,
                               size_t *k);

// Computes every group of a layer: gate(A·B1ᵀ) ∘ (A·B2ᵀ) of its tokens, to its output. `count` must be the layer's
// number of groups.
//
// # Safety
//
// `tokens` and `outputs` lead to `count` structures each, whose pointers lead to as many bytes as they say; those of
// outputs may be written, and nobody else touches them during the call.
int32_t hammerhead_run(const struct HammerheadEngine *engine,
                       const struct HammerheadLayer *layer,
                       const struct HammerheadTokens *tokens,
                       const struct HammerheadOutput *outputs,
                       size_t count);

// Quantises [rows, k] numbers (HAMMERHEAD_F16, HAMMERHEAD_BF16 or HAMMERHEAD_F32) to NVFP4: rows·k/2 bytes of codes,
// rows·k/16 bytes of scales, and the global scale.
//
// # Safety
//
// Pointers lead to as many bytes as is said beside them; those for results may be written.
int32_t hammerhead_quantize(uint32_t element,
                            const void *values,
                            size_t values_bytes,
                            size_t rows,
                            size_t k,
                            uint8_t *codes,
                            size_t codes_bytes,
                            uint8_t *scales,
                            size_t scales_bytes,
                            float *global_scale);

// Makes a queue on a stream of a GPU.
//
// device: the GPU's number. stream: a CUstream or cudaStream_t of its primary context, or NULL for the default stream.
//
// # Safety
//
// The stream exists, and lives as long as the queue; `queue` may be written.
int32_t hammerhead_queue_create(size_t device,
                                void *stream,
                                struct HammerheadQueue **queue);

// Frees a queue, once what was queued there is done.
//
// # Safety
//
// `queue` is NULL or was made by hammerhead_queue_create and not yet freed, and no call uses it.
void hammerhead_queue_destroy(struct HammerheadQueue *queue);

// How many bytes a queued call of a whole layer works in, at most, for so many tokens of a type that have `top_k`
// experts each; 0 for as many as the layer's routing chooses, or one without.
//
// # Safety
//
// `layer` is NULL or a layer; `bytes` may be written.
int32_t hammerhead_layer_workspace_bytes(const struct HammerheadLayer *layer,
                                         size_t rows,
                                         uint32_t element_of_tokens,
                                         size_t top_k,
                                         size_t *bytes);

// Which experts of a layer a GPU holds, where gpu_bytes leaves others to the processor. Writes at most `capacity` of
// their numbers, and how many there are; none where all experts are in one place.
//
// # Safety
//
// `layer` is NULL or a layer; `experts` leads to room for `capacity` numbers, and `count` may be written.
int32_t hammerhead_layer_resident(const struct HammerheadLayer *layer,
                                  uint32_t *experts,
                                  size_t capacity,
                                  size_t *count);

// How often each expert of a layer in two places was asked for since it was loaded, modulo 2³²: up to `capacity` of
// their counts, and how many there are; none where all experts are in one place. That is what to choose residents by.
//
// # Safety
//
// `layer` is NULL or a layer; `counts` leads to room for `capacity` numbers, and `count` may be written.
int32_t hammerhead_layer_asked(const struct HammerheadLayer *layer,
                               uint32_t *counts,
                               size_t capacity,
                               size_t *count);

// Rows (tokens times experts of each) from which on calls bring weights over, as HammerheadWholeOptions asks for with
// stream_rows, or 0 where none do. Where they were to and cannot, this fails, and hammerhead_last_error says why: then
// the processor computes those experts.
//
// # Safety
//
// `layer` is NULL or a layer; `rows` may be written.
int32_t hammerhead_layer_streams_from(const struct HammerheadLayer *layer,
                                      size_t *rows);

// Fails once with what went wrong in the processor's part of earlier calls of a layer in two places, whose results are
// NaN then. The next call that is queued fails with it, too; a graph that is launched again queues none, so that a
// program that launches graphs asks here.
//
// # Safety
//
// `layer` is NULL or a layer.
int32_t hammerhead_layer_check_host(const struct HammerheadLayer *layer);

// Queues the move of experts to and from the GPU: as many as hammerhead_layer_resident counts. What was queued before
// finds the old ones there, what is queued behind it these; graphs of the layer are to be launched in this stream, or
// in its order.
//
// # Safety
//
// `queue` and `layer` are NULL or such; `experts` leads to `count` numbers.
int32_t hammerhead_queue_place_experts(struct HammerheadQueue *queue,
                                       const struct HammerheadLayer *layer,
                                       const uint32_t *experts,
                                       size_t count);

// Queues a layer of one expert over tokens [rows, k] in the GPU's memory, to [rows, k] there. Returns before it is
// computed. The layer must have been packed by an engine of the backend "cuda". In a stream that is being captured, a
// call with as many tokens must have been made before; the graph keeps the layer.
//
// # Safety
//
// The pointers in `tokens`, `output` and `workspace` are addresses of that many bytes in the GPU's memory, which
// overlap nowhere and stay until the stream has done the work. Graphs of calls that bring weights over, captured in
// one queue and without memory that is lent, are launched one after another.
int32_t hammerhead_queue_mlp(struct HammerheadQueue *queue,
                             const struct HammerheadLayer *layer,
                             const struct HammerheadTokens *tokens,
                             const struct HammerheadOutput *output,
                             struct HammerheadWorkspace workspace);

// Queues a layer of experts over tokens [rows, k] in the GPU's memory, by the experts that the layer's routing chooses
// by logits [rows, experts] that are there, in single precision. Otherwise as hammerhead_queue_mlp; a graph serves
// whatever logits are there when it is launched.
//
// # Safety
//
// As for hammerhead_queue_mlp, for `logits` too.
int32_t hammerhead_queue_moe_logits(struct HammerheadQueue *queue,
                                    const struct HammerheadLayer *layer,
                                    const struct HammerheadTokens *tokens,
                                    struct HammerheadVector logits,
                                    const struct HammerheadOutput *output,
                                    struct HammerheadWorkspace workspace);

// The same by experts whose numbers are given, with the weights that are given: [rows, top] each, in the GPU's memory.
// A number outside of 0 to experts−1 adds nothing. id_bits and weights_on_input are as for hammerhead_moe_run.
//
// # Safety
//
// As for hammerhead_queue_mlp, for `ids` and `weights` too.
int32_t hammerhead_queue_moe(struct HammerheadQueue *queue,
                             const struct HammerheadLayer *layer,
                             const struct HammerheadTokens *tokens,
                             const void *ids,
                             uint32_t id_bits,
                             size_t ids_bytes,
                             struct HammerheadVector weights,
                             uint32_t weights_on_input,
                             const struct HammerheadOutput *output,
                             struct HammerheadWorkspace workspace);

// Why the last failed call of this thread failed, as UTF-8; empty if none did. Valid until the next failure on this
// thread.
const char *hammerhead_last_error(void);

// The version of the library, such as "0.1.0". Static.
const char *hammerhead_version(void);

// Makes an engine that computes on threads of the caller's. It starts none of its own.
//
// backend, config: as for hammerhead_engine_create. threads: copied; what its `pool` leads to stays until the engine
// is destroyed.
//
// # Safety
//
// Texts are NULL or end with a zero byte; `threads` is NULL or a structure whose function does what it says there;
// `engine` may be written.
int32_t hammerhead_engine_create_on(const char *backend,
                                    const struct HammerheadThreads *threads,
                                    const char *config,
                                    struct HammerheadEngine **engine);

// Packs an MLP. Its matrices are not needed afterwards. Gate and clamp are as for hammerhead_layer_load; options may
// be NULL.
//
// # Safety
//
// `weights` leads to a structure whose pointers lead to as many bytes as is said beside them; `layer` may be written.
int32_t hammerhead_mlp_load(const struct HammerheadEngine *engine,
                            const struct HammerheadMlpMatrices *weights,
                            uint32_t gate,
                            float clamp,
                            const struct HammerheadWholeOptions *options,
                            struct HammerheadLayer **layer);

// Computes tokens [rows, k] by a layer of one expert, to [rows, k].
//
// # Safety
//
// `tokens` and `output` lead to a structure each, whose pointers lead to as many bytes as they say; those of the
// output may be written, and nobody else touches them during the call.
int32_t hammerhead_mlp_run(const struct HammerheadEngine *engine,
                           const struct HammerheadLayer *layer,
                           const struct HammerheadTokens *tokens,
                           const struct HammerheadOutput *output);

// Packs a layer of `count` experts. Their matrices are not needed afterwards.
//
// shared: an expert for every token, or NULL; its result is multiplied with sigmoid(x·shared_gate) if that is not
// empty. routing: how logits choose experts, or NULL where ids and weights are given to every run. Gate and clamp are
// as for hammerhead_layer_load; options may be NULL.
//
// # Safety
//
// `experts` leads to `count` structures, and all pointers in structures to as many bytes as is said beside them;
// `layer` may be written.
int32_t hammerhead_moe_load(const struct HammerheadEngine *engine,
                            const struct HammerheadMlpMatrices *experts,
                            size_t count,
                            const struct HammerheadMlpMatrices *shared,
                            struct HammerheadVector shared_gate,
                            const struct HammerheadRouting *routing,
                            uint32_t gate,
                            float clamp,
                            const struct HammerheadWholeOptions *options,
                            struct HammerheadLayer **layer);

// Reads all experts of a layer of a model on disk and packs them, with biases, input scales, the shared expert, the
// gate that the model declares and its rule of routing, if that is known. Options may be NULL.
//
// # Safety
//
// `path` ends with a zero byte; `layer` may be written.
int32_t hammerhead_moe_load_checkpoint(const struct HammerheadEngine *engine,
                                       const char *path,
                                       size_t number,
                                       const struct HammerheadWholeOptions *options,
                                       struct HammerheadLayer **layer);

// Writes a packed whole layer to a file, with its rule of routing if it has one; hammerhead_layer_open maps it back
// without packing it again. Only weights of the CPU's backends can be.
//
// # Safety
//
// `path` ends with a zero byte.
int32_t hammerhead_layer_save(const struct HammerheadEngine *engine,
                              const struct HammerheadLayer *layer,
                              const char *path);

// Maps a whole layer that hammerhead_layer_save wrote, with its rule of routing. The file is read once, to see that it
// is whole, and must not be changed while the layer lives. Options may be NULL.
//
// # Safety
//
// `path` ends with a zero byte; `layer` may be written.
int32_t hammerhead_layer_open(const struct HammerheadEngine *engine,
                              const char *path,
                              const struct HammerheadWholeOptions *options,
                              struct HammerheadLayer **layer);

// Of a whole layer the number of experts, the elements of a token, the columns of a result, and the experts per token
// that the routing chooses (0 without one).
//
// # Safety
//
// `layer` is NULL or a layer; the others are NULL or may be written.
int32_t hammerhead_moe_shape(const struct HammerheadLayer *layer,
                             size_t *experts,
                             size_t *k,
                             size_t *n,
                             size_t *top_k);

// Computes tokens [rows, k] by the experts that the layer's routing chooses by their logits, [rows, experts] in single
// precision. Refused where a table chooses them by the token's number: there, hammerhead_moe_weigh makes the weights
// for hammerhead_moe_run.
//
// # Safety
//
// As for hammerhead_mlp_run, for `logits` too.
int32_t hammerhead_moe_run_logits(const struct HammerheadEngine *engine,
                                  const struct HammerheadLayer *layer,
                                  const struct HammerheadTokens *tokens,
                                  struct HammerheadVector logits,
                                  const struct HammerheadOutput *output);

// Writes the weights, [rows, top] in single precision, that the layer's routing gives experts which something else has
// chosen: of logits [rows, experts] and of their numbers, [rows, top], as many per token as the routing chooses.
// id_bits is as for hammerhead_moe_run, which takes ids and weights; where the routing multiplies tokens, with
// weights_on_input.
//
// # Safety
//
// `layer` is NULL or a layer; `logits` and `ids` lead to as many bytes as is said beside them, and so many may be
// written to `weights`.
int32_t hammerhead_moe_weigh(const struct HammerheadLayer *layer,
                             size_t rows,
                             struct HammerheadVector logits,
                             const void *ids,
                             uint32_t id_bits,
                             size_t ids_bytes,
                             float *weights,
                             size_t weights_bytes);

// Computes tokens [rows, k] by the experts whose numbers are given, with the weights that are given: [rows, top] each.
// A number outside of 0 to experts−1 adds nothing, and its weight is not looked at.
//
// id_bits: 32 or 64, signed. weights_on_input: 0, or 1 where weights multiply tokens instead of results (Llama-4).
//
// # Safety
//
// As for hammerhead_mlp_run, for `ids` and `weights` too.
int32_t hammerhead_moe_run(const struct HammerheadEngine *engine,
                           const struct HammerheadLayer *layer,
                           const struct HammerheadTokens *tokens,
                           const void *ids,
                           uint32_t id_bits,
                           size_t ids_bytes,
                           struct HammerheadVector weights,
                           uint32_t weights_on_input,
                           const struct HammerheadOutput *output);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* HAMMERHEAD_H */
