/* What one recorded CUDA graph is: shared by _graph.c, which runs it, and _trace.c, which makes it. */
#ifndef WELD_GRAPH_H
#define WELD_GRAPH_H

#include "_driver.h"

/* How a graph finds a tensor whose memory is not its own. cudagraph_plan.py decides.
 *
 * STATIC  its address is part of the graph; calls with another address need another graph
 * PATCH   only our kernels touch it: its address is written into their nodes
 * VALUE   a number on the CPU that kernels take as a parameter
 * COPY    an operator reads it: copied into memory of the graph first (and back, if mutated)
 * OUT     an operator touches this output: copied out of memory of the graph
 * HELD    as OUT, but the memory itself is given out; the graph is not used while somebody has it
 */
enum role { NONE, STATIC, PATCH, VALUE, COPY, OUT, HELD };

/* A launch: its node, and the parameters that it has now. */
typedef struct {
    void *node;
    KernelNode params;
    uint64_t *values;
    void **slots;         /* the addresses of the values, as the driver wants them */
    int n;
    char dirty;
} Node;

/* A copy between a tensor of the call and memory of the graph. */
typedef struct {
    void *node;
    CopyNode params;
    int tensor;
    char to_tensor;
    char dirty;
} Copy;

/* One parameter that follows a tensor's address, or a number's value. */
typedef struct {
    int tensor, node, slot;
    int size;             /* VALUE: bytes; else 0 */
    int64_t delta;        /* PATCH: from the tensor's address to the parameter */
} Patch;

/* One tensor that may be elsewhere in every call: patches[first .. first + n), up to two copies. */
typedef struct {
    int tensor, first, n, size;
    int copies[2];
    uint64_t last;
} Moving;

typedef struct {
    int tensor;
    void *address;
} Fixed;

/* rest: the storage's owners while nobody has the saved tensors that live in it; 0: not known. */
typedef struct {
    int tensor;
    char saved;           /* only what is saved lives in it */
    Handle holder;
    void *address;
    uint64_t rest;
} Lent;

/* Memory of a forward's graph that the graph of its backward works in (_region.c). blocks: what the
 * graph saves; owner: what keeps the allocator from giving it to others, NULL when it no longer does. */
typedef struct {
    Handle owner;
    void *address;
    int64_t bytes;
} Block;

typedef struct {
    PyObject_HEAD
    PyObject *pool;
    PyObject *from_dlpack;
    Block *blocks;
    int n_blocks, room_blocks;
    struct Instance *guest;      /* the backward's graph, or NULL */
    char closed;                 /* neither graph is used any more */
} Region;

typedef struct Instance {
    Executable *owner;
    struct Instance *next;       /* of the owner, the last used first */
    struct Instance *next_of_all;
    int inference, traced;
    uint64_t settings;           /* torch's, when the operators chose their kernels */
    char *roles;                 /* by tensor number */
    void *graph, *exec;
    Node *nodes;
    Copy *copies;
    Patch *patches;
    Moving *moving;
    Fixed *fixed;
    Lent *lent;
    int n_nodes, n_copies, n_patches, n_moving, n_fixed, n_lent;
    int room_nodes, room_copies, room_patches;
    int *dirty;                  /* room for every node's number */
    void *last_stream;
    int64_t lent_bytes, copied_bytes;
    uint64_t stamp, runs;
    PyObject *saved;             /* the tensors of what is saved, given out every time, or NULL */
    uint64_t *saved_rest;        /* by saved tensor: its owners while nobody has it */
    char all_saved;              /* whether all that is saved lives in lent memory of its own */
    PyObject *keep;              /* what must live as long: a memory pool */
    PyObject *change_pool;       /* while tracing: (bool) -> None, around a Call that makes HELD;
                                    NULL: all memory comes from one pool */
    Region *region;              /* whose memory it works in, or NULL */
    char guest;                  /* as the backward's graph: a call uses up what was saved */
    int *frees;                  /* while tracing: (step, block) in order: blocks that are free */
    int n_frees, next_free;
} Instance;

typedef struct Graphs {
    PyObject *record;            /* (executable, inference, moved inputs) -> None */
    PyObject *admit;             /* (device) -> whether graphs may run on its current stream */
    PyObject *why;               /* why it is off, or NULL */
    int *root;                   /* by tensor number: the tensor whose memory it is in */
    int *tail;                   /* steps that make views for the outputs */
    int *made;                   /* tensors that a graph must provide for the outputs */
    char *shown;                 /* by tensor number: whether an output that is not saved lives there */
    int n_tail, n_made, n_root;
    int n_shown_tail;            /* the steps of `tail` that outputs which are not saved need */
    void **seen;                 /* addresses of the inputs at the last launch list */
    unsigned long thread;        /* that ran it: it has warm libraries */
    int runs;                    /* launch lists so far */
    int failures;
    Instance *first;
    /* while recording */
    Frame *frame;
    PyObject *const *inputs;
    Instance *pending;
} Graphs;

void instance_free(Instance *in);
void instance_link(Instance *in);
int provide(Executable *x, Frame *f, Instance *in);  /* the outputs of a call; -1 with exception */

/* lend.c */
int lent_is_back(const Instance *in);      /* whether nobody has what an earlier call lent out */
int results_are_back(const Instance *in);  /* the same, without what only a backward reads */
int lend(Executable *x, Frame *f, Instance *in);
int hold_lent(Executable *x, Frame *t);    /* keep the storages of what a recording lends */
void lent_free(Instance *in);

/* region.c */
extern PyTypeObject region_type;
int region_take(Region *r, Handle t, const Spec *s, Handle *holder);  /* -1 with exception */
int region_free_to_use(const Instance *in);  /* whether nobody has what lives in its region */
void region_leave(Instance *in);

#endif
