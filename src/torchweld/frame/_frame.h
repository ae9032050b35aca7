/* What the C files of torchweld.frame say to each other.
 *
 * Program     a flat guard program: instructions over registers, run against flat arguments
 * Snapshot    what must not have changed since a program succeeded for it to succeed again
 * Entry       a program, plus what to call when it succeeds
 * Dispatcher  a callable: binds its arguments, runs the first entry that matches
 */
#ifndef TORCHWELD_FRAME_H
#define TORCHWELD_FRAME_H

#include "_compat.h"

/* --- dict versions (_watch.c) ------------------------------------------------------------ */

typedef struct TwWatch TwWatch;

int tw_watch_init(void);
/* A number that no other state of any dict has; 0 if `*watch` does not follow `dict`. */
uint64_t tw_dict_version(TwWatch *watch, PyObject *dict);
/* Makes `*watch` follow `dict`; the version it has now, or 0 if changes cannot be noticed. */
uint64_t tw_dict_follow(TwWatch **watch, PyObject *dict);
void tw_dict_unfollow(TwWatch **watch);
/* The word of memory that holds the version of a dict that `*watch` follows. */
const void *tw_dict_version_word(TwWatch *watch, PyObject *dict);

/* --- attributes that are read without running Python code (_attrs.c) ----------------------- */

/* A word of memory and what it is to hold. */
typedef struct {
    const void *at;
    uint64_t want;
} TwWord;

enum { TW_ATTR_WORDS = 3 };

typedef struct {
    PyObject *value;            /* borrowed; NULL: the protocol must be asked, in Python */
    TwWord words[TW_ATTR_WORDS];
    int n_words;                /* while these hold, the value is the same; -1: not known */
} TwAttr;

int tw_attrs_init(void);
/* `name` is interned. */
TwAttr tw_attr_read(PyObject *obj, PyObject *name);

/* --- tensors (_tensor.c) ----------------------------------------------------------------- */

typedef struct TwTensorSpec TwTensorSpec;

TwTensorSpec *tw_tensor_spec_new(PyObject *tuple);
void tw_tensor_spec_free(TwTensorSpec *spec);
/* The class that the spec demands, borrowed. */
PyTypeObject *tw_tensor_spec_type(const TwTensorSpec *spec);
/* True if `tw_tensor_matches` may run Python code for this spec. */
bool tw_tensor_runs_python(const TwTensorSpec *spec);
bool tw_tensor_matches(const TwTensorSpec *spec, PyObject *tensor);

PyObject *tw_torch_init(PyObject *module, PyObject *args);
PyObject *tw_torch_fast(PyObject *module, PyObject *arg);
PyObject *tw_torch_inference(PyObject *module, PyObject *unused);
PyObject *tw_tensor_codes(PyObject *module, PyObject *tensor);

/* --- relations between sizes (_sizes.c) -------------------------------------------------- */

typedef struct TwSizes TwSizes;
/* NULL with an exception. `tuple` is (reads, code); it may read registers that are written. */
TwSizes *tw_sizes_new(PyObject *tuple, const bool *written, Py_ssize_t n_regs);
void tw_sizes_free(TwSizes *s);

/* --- guard programs (_guards.c, _verify.c, _ops.c) ---------------------------------------- */

typedef struct {
    Py_ssize_t first, count;    /* the instructions that are skipped while the dict is unchanged */
    uint64_t version;           /* of the dict when they last succeeded; 0: not known */
    uint64_t pending;           /* as `version`, until the whole run has succeeded */
    TwWatch *watch;
    int32_t *rechecks;          /* instructions that an unchanged dict does not answer */
    int n_rechecks;
    int fires;                  /* changes in a row after which the block still succeeded */
    bool armed, demoted, orders, of_instance;
} TwBlock;

typedef struct {
    uint8_t op;
    int32_t dst, src;
    Py_ssize_t aux;
    PyObject *obj;              /* strong, or NULL */
    union {
        TwTensorSpec *tensor;
        TwSizes *sizes;
        TwBlock *block;
        int32_t *regs;
        int64_t range[2];
        unsigned int tag;
    } u;
} TwInstr;

typedef struct TwSnapshot TwSnapshot;

typedef struct {
    PyObject_HEAD
    PyObject *dict, *weakrefs;
    TwInstr *instrs;
    Py_ssize_t n_instrs, n_regs, n_args;
    Py_ssize_t n_states;        /* the STATE instructions that it begins with */
    Py_ssize_t n_writes;
    TwSnapshot *snapshot;       /* NULL if this program can have none */
    TwBlock **blocks;
    Py_ssize_t n_blocks;
    PyObject **regs;            /* borrowed; those written in a block outlive the call */
    PyObject **owned;           /* the references that the run in progress holds */
    bool *written;              /* registers that some instruction writes */
    bool *kept;                 /* registers that entries and late guards read after a run */
    bool owning;                /* some instruction may run Python code: hold what registers hold */
    bool busy;                  /* `regs` is in use: a nested run takes a file of its own */
    bool dead;                  /* cleared by the garbage collector */
} TwProgram;

typedef struct {
    TwProgram *program;
    PyObject *const *args;
    PyObject **regs, **owned;
    Py_ssize_t n_owned, pc;
    bool owning, is_private, dirty;
} TwRun;

enum { TW_OK = 0, TW_FAIL = 1, TW_RESTART = 2 };
typedef int (*TwOpFn)(TwRun *run, const TwInstr *in);
int tw_op_sizes(TwRun *run, const TwInstr *in);
int tw_op_same_values(TwRun *run, const TwInstr *in);

enum {
    TW_SRC = 1,         /* reads register src */
    TW_DST = 2,         /* writes register dst */
    TW_OBJ = 4,         /* needs obj */
    TW_AUX_REG = 8,     /* aux is a register */
    TW_PYTHON = 16,     /* may run Python code */
    TW_OF_DICT = 32,    /* allowed in a block if src is the block's dict */
    TW_OF_ITEM = 64,    /* allowed in a block if src was written in the block */
};

typedef struct {
    const char *name;
    TwOpFn run;
    unsigned int needs;
} TwOp;

/* The numbers are the module's constants and `program.Op`. */
enum {
    TW_OP_ARG, TW_OP_CONST, TW_OP_ITEM_DICT, TW_OP_ITEM_SEQ, TW_OP_GETATTR, TW_OP_INSTANCE_DICT,
    TW_OP_CELL, TW_OP_CLOSURE, TW_OP_TYPE_OF, TW_OP_CALL0,
    TW_OP_IS, TW_OP_IS_NOT, TW_OP_TYPE, TW_OP_EQ, TW_OP_LEN, TW_OP_HAS_KEY, TW_OP_LACKS_KEY,
    TW_OP_KEYS, TW_OP_SAME, TW_OP_DISTINCT, TW_OP_TENSOR, TW_OP_PREDICATE, TW_OP_INT_RANGE,
    TW_OP_TYPE_VERSION, TW_OP_DICT_UNCHANGED, TW_OP_ALL_DISTINCT, TW_OP_STATE,
    TW_OP_APPLY, TW_OP_SIZES, TW_OP_ITEM_KEYED, TW_OP_LACKS_KEYED, TW_OP_REDUCE,
    TW_OP_SAME_VALUES,
    TW_N_OPS
};

extern const TwOp TW_OPS[TW_N_OPS];
extern PyTypeObject TwProgram_Type, TwEntry_Type, TwDispatcher_Type;

/* Same exact type and equal, for None/bool/int/float/str/bytes/complex and tuples of those. */
bool tw_const_equal(PyObject *a, PyObject *b);
bool tw_const_is_supported(PyObject *obj);

/* Fills the program with a tuple of instruction tuples; -1 with an exception if one is refused. */
int tw_set_type_tag(Py_ssize_t at, TwInstr *in);
int tw_program_fill(TwProgram *p, PyObject *items);
/* True for the classes whose instances can be given another class. */
bool tw_class_can_change(PyObject *type);
/* Where `x` keeps its length, and the length as len() counts it; NULL if it has none. */
const void *tw_length_word(PyObject *x, Py_ssize_t *length);
/* Where `obj` keeps its `__dict__`; NULL if that cannot be told. */
const void *tw_instance_dict_word(PyObject *obj);
/* -1: every check passed and `run` holds the registers until the release; else what failed. */
Py_ssize_t tw_program_run(TwProgram *p, PyObject *const *args, Py_ssize_t n_args, TwRun *run);
void tw_program_release(TwRun *run);

/* --- snapshots (_snapshot.c) ----------------------------------------------------------------- */

/* -1 with an exception if there is no memory. */
int tw_snapshot_init(TwProgram *p);
void tw_snapshot_free(TwProgram *p);
bool tw_snapshot_is_valid(const TwProgram *p);
/* TW_OK: as if the program had succeeded; TW_FAIL: it fails, at `run->pc`; TW_RESTART: not known,
   run it. `run` is not private. */
int tw_snapshot_run(TwProgram *p, TwRun *run);
/* After a run that succeeded, while its registers are held. */
void tw_snapshot_take(TwProgram *p, TwRun *run);
/* The program is about to run: its registers change. */
void tw_snapshot_drop(TwProgram *p);

/* --- entries and the dispatcher (_dispatch.c) ---------------------------------------------- */

typedef struct {
    PyObject_HEAD
    PyObject *dict, *weakrefs;
    TwProgram *program;
    PyObject *call, *finish;    /* NULL for None */
    int32_t *inputs, *finish_inputs;
    Py_ssize_t n_inputs, n_finish, result;
    unsigned long long hits;
} TwEntry;

/* False: the guards failed. True: `*result` is the value, or NULL with an exception set. */
bool tw_entry_try(TwEntry *e, PyObject *const *flat, Py_ssize_t n_flat, PyObject **result);
PyObject *tw_set_pending(PyObject *module, PyObject *args);
/* As tw_entry_try, over a tuple of entries and of weak references to entries. */
bool tw_entries_try(PyObject *entries, PyObject *const *flat, Py_ssize_t n_flat, PyObject **result);
/* How many flat arguments code has: positional, keyword-only, *args, **kwargs. */
Py_ssize_t tw_code_n_flat(PyCodeObject *code);

/* --- what is known of code (_records.c) ------------------------------------------------------ */

typedef struct TwRecord {
    struct TwRecord *next, **back;
    PyObject *entries;          /* a tuple of entries and of weak references to entries */
    bool settled;               /* that nothing matches is no longer reported */
    /* Of the function that the entries were made for, as addresses; NULL: they are for any. Guards
       start from the arguments, so functions that share only their code must not share entries,
       unless all of them read the function, which is behind the arguments. */
    const void *globals, *closure;
} TwRecord;

#define TW_SKIP ((TwRecord *)1)
/* Of code whose frames run as they are, and everything that they call as well. */
extern TwRecord tw_quiet;
#define TW_QUIET (&tw_quiet)

int tw_records_init(void);
/* NULL: unknown; TW_SKIP; TW_QUIET; or a record that lasts until the next call that runs Python
   code. */
TwRecord *tw_record_get(PyCodeObject *code);
int tw_record_skip(PyCodeObject *code);
/* Takes over `entries`. */
int tw_record_set(PyCodeObject *code, PyObject *entries);
/* A tuple of entries, or NULL with an exception. `answer` is consumed. */
PyObject *tw_entries_of(PyObject *answer);
bool tw_any_alive(PyObject *entries);

PyObject *tw_set_skip(PyObject *module, PyObject *code);
PyObject *tw_set_quiet(PyObject *module, PyObject *code);
PyObject *tw_attach(PyObject *module, PyObject *args);
PyObject *tw_detach(PyObject *module, PyObject *code);
PyObject *tw_detach_all(PyObject *module, PyObject *unused);
PyObject *tw_code_state(PyObject *module, PyObject *code);

/* --- the frame hook (_hook.c) --------------------------------------------------------------- */

extern int tw_hook_regions;     /* threads inside a hooked region; 0 in the steady state */
/* Compiled code and the compiler itself are never hooked: returns what to restore. */
int tw_hook_suspend(void);
void tw_hook_resume(int depth);
int tw_hook_init(PyObject *module);
extern PyMethodDef tw_hook_methods[];

#endif
