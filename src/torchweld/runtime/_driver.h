/* What the parts of the native driver share: torch's entry points and the compiled launch list.
 *
 * Nothing here includes a torch header: every entry point is found by name at run time, so that one
 * built extension serves several torch versions. A name that is missing switches off what needs it.
 */
#ifndef WELD_DRIVER_H
#define WELD_DRIVER_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

#include "_cuda.h"

/* An AtenTensorHandle: the address of an at::Tensor, which is one word that points to the
 * TensorImpl. A Python tensor holds such a word, so its address serves as a borrowed handle. */
typedef void *Handle;

/* ---------------------------------------------------------------- torch.c */

typedef struct Torch {
    /* required */
    int32_t (*get_data_ptr)(Handle, void **);
    int32_t (*get_dim)(Handle, int64_t *);
    int32_t (*get_sizes)(Handle, int64_t **);
    int32_t (*get_strides)(Handle, int64_t **);
    int32_t (*get_storage_offset)(Handle, int64_t *);
    int32_t (*get_storage_size)(Handle, int64_t *);
    int32_t (*get_dtype)(Handle, int32_t *);
    int32_t (*get_device_type)(Handle, int32_t *);
    int32_t (*empty_strided)(int64_t, const int64_t *, const int64_t *, int32_t, int32_t, int32_t,
                             Handle *);
    int32_t (*alloc_from_pool)(Handle, int64_t, int32_t, int64_t, const int64_t *, const int64_t *,
                               Handle *);
    int32_t (*reinterpret)(Handle, int64_t, const int64_t *, const int64_t *, int64_t, Handle *);
    int32_t (*new_handle)(Handle, Handle *);
    int32_t (*delete_handle)(Handle);
    int32_t (*clone_strided)(Handle, Handle *);
    int32_t (*copy)(Handle, Handle, int32_t);  /* may be missing */
    int32_t (*is_defined)(Handle, bool *);
    bool (*grad_enabled)(void);
    void (*set_grad_enabled)(bool);
    bool (*key_excluded)(uint16_t);
    void (*set_key_excluded)(uint16_t, bool);
    bool (*inference_mode)(void);
    /* optional */
    PyObject *(*wrap)(Handle);            /* new Python tensor sharing the TensorImpl */
    int32_t (*call)(const char *, const char *, uint64_t *);
    int32_t (*new_list)(size_t, void **);
    int32_t (*push_back)(void *, uint64_t);
    int32_t (*new_box)(uint64_t **);
    void *(*operator_new)(size_t);
    int32_t (*new_string)(const char *, size_t, void **);
    int32_t (*num_threads_shim)(uint32_t *);
    int (*num_threads)(void);
    int (*omp_max_threads)(void);
    int (*omp_in_parallel)(void);
    int (*omp_thread_num)(void);
    int (*omp_num_threads)(void);
    void (*gomp_parallel)(void (*)(void *), void *, unsigned, unsigned);
    void *(*context)(void);               /* torch's settings, and what asks for each of them */
    uint8_t (*settings[11])(const void *);
    int (*precision)(const void *, int, int);
    int8_t (*blas_backend)(void *);
    uint64_t (*carveout)(const void *);   /* an optional<int> */
    void *(*tuning)(void);                /* the state of TunableOp, and whether it is on */
    uint8_t (*tuned)(const void *);
    /* mm, bmm, addmm, baddbmm, writing to a given tensor, on the CPU and on CUDA; then CUDA's
     * addmm with relu or gelu behind it, twice the same function, which makes its result */
    int32_t (*into[10])(void);

    PyObject *wrap_stolen;                /* slower way to make a Python tensor of a handle */
    PyTypeObject *tensor_type;
    PyObject *internal_error;             /* torchweld's InternalError */
    Py_ssize_t handle_offset;             /* of the word inside a Python tensor */
    int32_t cpu;                          /* device type code */
    int32_t u8;                           /* dtype code */
    uint16_t keys[16];                    /* dispatch keys that Calls run without */
    int n_keys;
    uint16_t view_key;                    /* the one that makes views known as such */
    int key_word;                         /* index in the TensorImpl of its dispatch keys, or 0 */
    uint64_t plain_keys[16];              /* those of tensors that are memory and nothing else */
    int n_plain;
    int storage_word;                     /* index in the TensorImpl of its StorageImpl, or 0 */
    uint64_t unique_count;                /* reference word of a StorageImpl with one owner */
    int huge_pages;                       /* madvise is worth calling */
} Torch;

extern Torch torch;

/* The settings that change which kernels operators choose, as one number. */
uint64_t torch_settings(void);

PyObject *torch_init(PyObject *self, PyObject *args);
PyObject *torch_describe(PyObject *self, PyObject *tensor);
PyObject *torch_overlap(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *torch_make(PyObject *self, PyObject *args);
PyObject *torch_calibrate(PyObject *self, PyObject *args);
PyObject *torch_find_keys(PyObject *self, PyObject *samples);
PyObject *torch_note_plain(PyObject *self, PyObject *tensor);
PyObject *torch_all_plain(PyObject *self, PyObject *const *args, Py_ssize_t n);
PyObject *torch_all_fit(PyObject *self, PyObject *const *args, Py_ssize_t n);

static inline Handle handle_of(PyObject *tensor)
{
    return (char *)tensor + torch.handle_offset;
}

/* A Python tensor for an owned handle. The handle is consumed, also on failure. */
PyObject *torch_wrap(Handle owned);

/* The word that counts the owners of the tensor's storage, or NULL if that is not known. */
static inline uint64_t *storage_count(Handle t)
{
    if (!torch.storage_word)
        return NULL;
    char *storage = (*(char ***)t)[torch.storage_word];
    return storage ? (uint64_t *)(storage + 8) : NULL;
}

static inline int storage_unique(Handle t)
{
    uint64_t *count = storage_count(t);
    return count && __atomic_load_n(count, __ATOMIC_ACQUIRE) == torch.unique_count;
}

/* ---------------------------------------------------------------- parallel.c */

typedef int32_t (*Kernel)(void *const *, int64_t, int64_t);

/* Run [0, extent) in chunks of at least `grain` on torch's threads; 0, or 1 if a chunk said so. */
int32_t run_kernel(Kernel kernel, void *const *pointers, int64_t extent, int64_t grain);

/* ---------------------------------------------------------------- the launch list */

enum place { INPUT, ARENA, FRESH, EXTERN, VIEW, STATE, NUMBER };

typedef struct {
    int place;
    int64_t index;        /* input position, arena byte offset, or the number itself */
    int32_t dtype;        /* torch's code; -1 unknown */
    int ndim;
    int64_t *sizes, *strides;
    int64_t offset;       /* elements */
    int64_t bytes;        /* of the span that sizes and strides address */
    int64_t itemsize;
    int32_t device_type;  /* torch's code */
    int device;
    int group;            /* tensors of one group have equal dtype, sizes and strides */
    char output;          /* escapes the call */
    char pointer;         /* a kernel wants its address */
    char handle;          /* an arena tensor that needs a tensor object */
    char scratch;         /* made by R_INTO and not returned: its memory is used again */
    char aligned;         /* a GPU kernel relies on an address that is a multiple of 16 */
} Spec;

/* One operator argument. */
enum arg_kind { A_WORD, A_TENSOR, A_BOX, A_LIST, A_STRING, A_OBJECT };
typedef struct Arg {
    int kind;
    uint64_t word;        /* A_WORD */
    int tensor;           /* A_TENSOR */
    int n;                /* A_LIST, A_BOX (one item) */
    struct Arg *items;
    PyObject *object;     /* A_OBJECT: the constant; A_STRING: a str that owns `text` */
    const char *text;
    Py_ssize_t length;
} Arg;

enum step_kind { S_ALLOC, S_VIEW, S_LAUNCH, S_CALL, S_DROP, S_GRID, S_DRAW };
enum route { R_PYTHON, R_SHIM, R_INTO };
#define BUSY_ELEMENTS 16384  /* operators from this size on let other threads run */
#define INTO_ACTIVATION 8  /* Torch.into from here on: with relu, with gelu */

typedef struct Product Product;

typedef struct {
    int kind;
    int tensor, source;   /* ALLOC, VIEW, DROP; DRAW: the seed, the block */
    int tracked;          /* VIEW: torch must know that it is one (it aliases an input) */
    /* LAUNCH */
    Kernel kernel;
    int *args;
    int n_args;
    int64_t extent, grain;
    int busy;             /* long enough that other threads should get the interpreter */
    PyObject *name;       /* LAUNCH: function; CALL: operator */
    /* GRID: name, args and n_args as LAUNCH */
    void *grid;           /* the kernel */
    unsigned blocks, threads, shared;
    int n_params;         /* more than n_args: the rest are null */
    int device;
    int *by_value;        /* by argument: the size of a number that the kernel takes itself, or 0 */
    /* DRAW: count words from the generator with these methods; the number of the draw */
    PyObject *get_seed, *get_offset, *set_offset;
    int64_t count;
    int draw;
    /* CALL */
    int route, into;
    int apart;            /* its results are nobody's views, whatever the operator does inside */
    const char *op, *overload;
    Arg *words;           /* R_SHIM: encoded arguments; R_INTO: tensors only */
    int n_words;
    int n_returns;        /* values that the operator leaves on the stack */
    double beta, alpha;
    PyObject *callable;   /* always there: the fallback of the other routes */
    Arg *objects;
    int n_objects;
    PyObject *kwnames;    /* tuple or NULL */
    int *results;
    int n_results;
    Product *product;     /* what cuBLASLt may compute of it, or NULL */
} Step;

/* What one call in flight owns; kept between calls for its memory. */
typedef struct Frame {
    int inference;        /* made in inference mode: such tensors must not be used outside */
    Handle arena;
    char *base;
    Handle *handles;      /* by tensor number */
    char *owned;          /* the handle is ours to delete at the end of the call */
    PyObject **objects;   /* Python tensors made for a number, or NULL */
    void **pointers;
    void **gather;        /* pointer array of one launch */
    int64_t *drawn;       /* by draw: the seed, the block */
    uint64_t *stack;      /* of one dispatcher call */
    Handle *spare;        /* SPARES by group: dropped tensors that nobody else holds */
    void *stream;         /* CUDA: torch's current one; the frame's memory belongs to it */
    char capturing;       /* CUDA: into a graph of the user's: keep nothing of it */
    int cloned;           /* inputs that kernels cannot read where they are, and so were copied */
    struct Instance *trace;  /* CUDA: what is being recorded, or NULL */
    struct Instance *served; /* CUDA: the graph that ran, until the end of the call, or NULL */
    PyObject *saved;         /* what it saves, to be given out, or NULL */
    char settles;            /* it gives that out for the first time */
    PyObject *given;         /* the list of inputs, which the call may empty, or NULL */
} Frame;

#define SPARES 4

/* Storages of large outputs, kept to be used again once the caller has dropped them. */
typedef struct {
    Handle holder[2];
    void *data[2];        /* where the storage was when we made it */
    char inference[2];
    int next;
} Pool;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *weak;
    PyObject *program;
    PyObject *settle;     /* (op, tensor, number) -> the tensor in its promised layout */
    PyObject *view;       /* (source tensor, number, source number) -> a view that torch tracks */
    PyObject *bump;       /* (list of tensors) -> None: advances their version counters */
    PyObject *explain;    /* (*inputs): raises what eager raises; NULL if nobody can */
    PyObject *eager;      /* (*inputs) -> outputs, in eager; NULL if nobody can */
    PyObject *source;     /* (*inputs) -> the constants that belong to them; NULL if there are none */
    PyObject *known;      /* what it gave last, or NULL */
    PyObject **witness;   /* the frozen inputs of that call, borrowed */
    int *frozen;          /* their positions */
    int n_frozen, n_constants;
    int n_inputs;         /* constants included: they follow what the call is given */
    int n_tensors, n_steps, n_outputs, n_groups, n_mutated, verify, guarded;
    int n_saved, saves;   /* if it saves: the last so many outputs are one tuple behind the others */
    int max_args, max_stack, n_draws;
    int running;          /* calls in flight; read and written with the interpreter held */
    int64_t arena_bytes;
    Spec *specs;
    Step *steps;
    int *outputs;         /* -1: None */
    int *mutated;
    Pool *pools;          /* by tensor number; used for large outputs only */
    int device;           /* the CUDA device, -1 if there is none; of several, the arena's or any */
    int32_t arena_type;   /* torch's code of the arena's device type */
    int arena_device;
    PyObject *planner;    /* makes plans of products; NULL: they are ATen's */
    uint64_t n_products;  /* computed by cuBLASLt */
    struct Graphs *graphs;  /* or NULL: always as a launch list */
    struct Ranges *ranges;  /* what it takes to run other sizes, or NULL */
    int *last_of, *same_step;  /* by step: an input that no later one reads; by input: the next */
    Frame *idle;
    pthread_mutex_t mutex;
    uint64_t n_calls, n_reused;
} Executable;

/* memory.c */
Frame *frame_take(Executable *x, int inference);
void frame_give(Executable *x, Frame *f);
void frame_free(Executable *x, Frame *f);
int frame_alloc(Executable *x, Frame *f, int n);
Handle frame_scratch(Executable *x, Frame *f, int n);
void frame_drop(Executable *x, Frame *f, int n);
PyObject *frame_object(Frame *f, PyObject *const *inputs, int n_inputs, int n);
void pools_clear(Executable *x);
PyObject *memory_held(PyObject *self, PyObject *unused);
Frame *frame_new(Executable *x, int inference);
int frame_arena(Executable *x, Frame *f);  /* make it, if there is to be one */
void frame_shed(Executable *x, Frame *f);  /* give it back, and results kept to be used again */
Handle spec_tensor(const Spec *s);         /* a fresh tensor, or NULL */
void allocation_failed(Spec *s);

/* Note where a kernel finds tensor n; 0 if no kernel wants it, -1 with an exception on failure. */
int frame_pointer(Executable *x, Frame *f, int n);

/* Whether a tensor has the dtype, sizes and strides of its spec. */
int fits(const Spec *s, Handle h);

/* calls.c */
int call_step(Executable *x, Frame *f, Step *s, PyObject *const *inputs, PyThreadState **saved);
static inline void take_gil(PyThreadState **saved)
{
    if (*saved) {
        PyEval_RestoreThread(*saved);
        *saved = NULL;
    }
}
static inline void leave_gil(PyThreadState **saved)
{
    if (!*saved)
        *saved = PyEval_SaveThread();
}
int args_parse(PyObject *rows, Arg **out, int *n);
void args_free(Arg *args, int n);

/* constants.c */
int constants_init(Executable *x, int n, PyObject *frozen, PyObject *source);
void constants_forget(Executable *x);
void constants_free(Executable *x);
PyObject *constants_for(Executable *x, PyObject *const *given);  /* a tuple, new reference */

/* cuda.c */
int grid_launch(Executable *x, Frame *f, Step *s);
int grid_parse(Executable *x, PyObject *row, Step *s);
int draw_parse(Executable *x, PyObject *row, Step *s);
int draw_numbers(Executable *x, Frame *f);  /* once per call: what its random numbers come from */
void cuda_out_of_memory(int64_t bytes);
PyObject *cuda_init(PyObject *self, PyObject *args);
PyObject *cuda_load(PyObject *self, PyObject *args);

/* products.c: 1: cuBLASLt computed it; 0: it is ATen's; -1 with an exception */
int product_step(Executable *x, Frame *f, Step *s, PyObject *const *inputs, PyThreadState **saved);
void product_free(Product *p);
PyObject *products_on(PyObject *self, PyObject *args);
PyObject *products_get(PyObject *self, void *unused);
PyObject *product_library(PyObject *self, PyObject *args);
PyObject *product_spaces(PyObject *self, PyObject *drop);
PyObject *product_settings_now(PyObject *self, PyObject *unused);

/* gemm.c */
PyObject *gemm_library(PyObject *self, PyObject *args);

/* driver.c */
int bind_inputs(Executable *x, Frame *f, PyObject *const *inputs);
int run_steps(Executable *x, Frame *f, PyObject *const *inputs, PyThreadState **saved);
int make_view(Executable *x, Frame *f, Step *s, PyObject *const *inputs, PyThreadState **saved);
PyObject *counted_call(Executable *x, PyObject *const *inputs, PyObject *given);

/* given.c. given: the list of `inputs`, which the call may empty, or NULL */
PyObject *executable_run(Executable *x, PyObject *const *inputs, PyObject *given);
PyObject *executable_consume(PyObject *self, PyObject *list);
void let_go(Executable *x, Frame *f, int step, PyThreadState **saved);  /* of what it read last */
void given_free(Executable *x);

/* graph.c: run the call as a CUDA graph. 1: done; 0: run the launch list; -1 with an exception */
int graph_call(Executable *x, Frame *f, PyObject *const *inputs);
int trace_launch(Executable *x, Frame *f, Step *s, void **params);
int trace_call(Executable *x, Frame *f, Step *s, PyObject *const *inputs, PyThreadState **saved);
void trace_step(struct Instance *in, int step);  /* behind a step of a recording */
int graphs_serve(const Executable *x);           /* whether calls are graphs once they are recorded */
PyObject *graphs_part(PyObject *self, PyObject *unused);
PyObject *graphs_region(PyObject *self, PyObject *address);
PyObject *graphs_consumes(PyObject *self, PyObject *unused);
int region_ready(PyObject *module);
void graphs_free(Executable *x);
void graphs_drop(Executable *x);
int graphs_visit(Executable *x, visitproc visit, void *arg);
PyObject *graphs_on(PyObject *self, PyObject *args);
PyObject *graphs_off(PyObject *self, PyObject *reason);
PyObject *graphs_keep(PyObject *self, PyObject *number);
PyObject *graphs_get(PyObject *self, void *unused);
PyObject *graph_prepare(PyObject *self, PyObject *args);
PyObject *graph_trace(PyObject *self, PyObject *unused);
PyObject *graph_adopt(PyObject *self, PyObject *graph);
PyObject *graph_totals(PyObject *self, PyObject *unused);
PyObject *graph_evict(PyObject *self, PyObject *args);
PyObject *capture_begin(PyObject *self, PyObject *device);
PyObject *capture_end(PyObject *self, PyObject *device);
PyObject *capture_drop(PyObject *self, PyObject *graph);

/* lend.c: saved tensors that a graph gives out every time */
void lent_keep(Executable *x, Frame *f, PyObject *saved);  /* give these out from now on */
void lent_settle(Executable *x, struct Instance *in);      /* the call that made them is over */
PyObject *lent_addresses(PyObject *self, PyObject *unused);
PyObject *given_inputs(PyObject *self, PyObject *unused);
PyObject *save_last(PyObject *self, PyObject *number);

/* sized.c */
int sized_ready(PyObject *module);

/* build.c */
int *numbers(PyObject *row, int *n, int low, int high);
int build_rows(Executable *x, PyObject *specs, PyObject *steps, PyObject *outputs,
               PyObject *mutated);
void free_rows(Executable *x);
int replace_step(Executable *x, PyObject *item);  /* (number, row) */

/* resize.c */
PyObject *sizes_on(PyObject *self, PyObject *args);
PyObject *executable_resize(PyObject *self, PyObject *args);
void ranges_free(struct Ranges *r);
void drop_idle(Executable *x);  /* give back the memory kept between calls */

#endif
