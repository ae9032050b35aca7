/* Snapshot: what a successful run of a program depended on, as words of memory.

   After a run, most of what it read lies at known places: the version of a dict, the class of an
   object, the length of a list, the contents of a cell. While these words hold what they held, the
   instructions that read them would do the same again, so the next run compares the words, in the
   order in which the run came to them, and runs only the instructions that no word answers (those
   about arguments and the metadata of tensors). Any difference means a run of the whole program.

   Words are read only where memory is known to be alive. A value is SAME if it is the object that
   the snapshot saw: constants, and what unchanged objects hold. It is ALIKE if only its address was
   compared, since the object may be a new one; then its class is compared before anything in it. */
#include "_frame.h"

enum { UNKNOWN, ALIKE, SAME };

/* Words up to `words_end`, then an instruction, or none at the end. */
typedef struct {
    Py_ssize_t words_end;
    int32_t instr;              /* or -1 */
    PyObject *expect;           /* what the instruction is to find; NULL: anything */
} TwStep;

enum {
    MANY_MISSES = 3,            /* then an instruction is run instead of its words */
    MANY_HITS = 8,              /* then earlier misses are forgotten */
    HOPELESS = 100,             /* misses in a row, after which no snapshot is taken */
};

struct TwSnapshot {
    TwWord *words;
    int32_t *owners;            /* of each word: its instruction */
    TwStep *steps;
    int32_t *late;              /* instructions that run Python code */
    uint8_t *states, *classes;  /* of registers: the enum above; whether the class was compared */
    uint8_t *needed;            /* of registers: whether it matters which object it is */
    uint8_t *misses;            /* of instructions */
    Py_ssize_t n_words, n_steps, n_late;
    int hits, misses_in_a_row;
    bool valid, forbidden;
};

/* --- making ---------------------------------------------------------------------------------- */

/* Whether Python code would run in the middle of a run, when words are borrowed. */
static bool
runs_python_early(const TwProgram *p)
{
    for (Py_ssize_t i = p->n_states; i < p->n_instrs; i++) {
        if ((TW_OPS[p->instrs[i].op].needs & TW_PYTHON) && p->instrs[i].op != TW_OP_PREDICATE) {
            return true;
        }
    }
    return false;
}

int
tw_snapshot_init(TwProgram *p)
{
    TwSnapshot *s;
    size_t n_regs = (size_t)p->n_regs + 1, n_instrs = (size_t)p->n_instrs + 1;

    if (runs_python_early(p)) {
        return 0;
    }
    s = p->snapshot = PyMem_Calloc(1, sizeof(*s));
    if (s == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    s->states = PyMem_Calloc(n_regs, 1);
    s->classes = PyMem_Calloc(n_regs, 1);
    s->needed = PyMem_Calloc(n_regs, 1);
    s->misses = PyMem_Calloc(n_instrs, 1);
    if (s->states == NULL || s->classes == NULL || s->needed == NULL || s->misses == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < p->n_instrs; i++) {
        const TwInstr *in = &p->instrs[i];
        if (in->op == TW_OP_INSTANCE_DICT || in->op == TW_OP_DICT_UNCHANGED) {
            s->needed[in->src] = true;
        }
    }
    return 0;
}

void
tw_snapshot_free(TwProgram *p)
{
    TwSnapshot *s = p->snapshot;

    p->snapshot = NULL;
    if (s == NULL) {
        return;
    }
    PyMem_Free(s->words);
    PyMem_Free(s->owners);
    PyMem_Free(s->steps);
    PyMem_Free(s->late);
    PyMem_Free(s->states);
    PyMem_Free(s->classes);
    PyMem_Free(s->needed);
    PyMem_Free(s->misses);
    PyMem_Free(s);
}

static bool
resize(void *array, size_t n, size_t size)
{
    void *old, *fresh;

    memcpy(&old, array, sizeof(old));
    fresh = PyMem_Realloc(old, n * size);
    if (fresh != NULL) {
        memcpy(array, &fresh, sizeof(fresh));
    }
    return fresh != NULL;
}

/* Room for that many words, steps and late instructions; false without memory. */
static bool
make_room(TwSnapshot *s, Py_ssize_t n_words, Py_ssize_t n_steps, Py_ssize_t n_late)
{
    return resize(&s->words, (size_t)n_words + 1, sizeof(*s->words))
        && resize(&s->owners, (size_t)n_words + 1, sizeof(*s->owners))
        && resize(&s->steps, (size_t)n_steps + 1, sizeof(*s->steps))
        && resize(&s->late, (size_t)n_late + 1, sizeof(*s->late));
}

/* --- running ------------------------------------------------------------------------------- */

bool
tw_snapshot_is_valid(const TwProgram *p)
{
    return p->snapshot != NULL && p->snapshot->valid;
}

static int
miss(TwProgram *p, int32_t instr)
{
    TwSnapshot *s = p->snapshot;

    s->valid = false;
    if (s->hits >= MANY_HITS) {
        memset(s->misses, 0, (size_t)p->n_instrs);
    }
    for (Py_ssize_t i = 0; s->hits > 0 && i < p->n_blocks; i++) {
        p->blocks[i]->fires = 0;    /* the hits were hits of every block */
    }
    s->misses_in_a_row = s->hits == 0 ? s->misses_in_a_row + 1 : 0;
    s->forbidden |= s->misses_in_a_row >= HOPELESS;
    if (s->misses[instr] < MANY_MISSES) {
        s->misses[instr]++;
    }
    return TW_RESTART;
}

static inline bool
holds(const TwWord *w)
{
    uint64_t now;

    memcpy(&now, w->at, sizeof(now));
    return now == w->want;
}

static int
run_live(TwRun *run, const TwInstr *in)
{
    if (in->op == TW_OP_DICT_UNCHANGED) {
        return PyDict_Check(run->regs[in->src]) ? TW_OK : TW_FAIL;
    }
    return TW_OPS[in->op].run(run, in);
}

/* Python code may let go of what the registers hold: from here on the run holds what is read
   after it. */
static int
run_late(TwProgram *p, TwRun *run)
{
    TwSnapshot *s = p->snapshot;
    int depth, status = TW_OK;

    for (Py_ssize_t reg = 0; reg < p->n_regs; reg++) {
        if (p->kept[reg]) {
            run->owned[run->n_owned++] = Py_NewRef(run->regs[reg]);
        }
    }
    depth = tw_hook_suspend();
    for (Py_ssize_t i = 0; status == TW_OK && i < s->n_late; i++) {
        run->pc = s->late[i];
        status = TW_OPS[p->instrs[run->pc].op].run(run, &p->instrs[run->pc]);
    }
    tw_hook_resume(depth);
    return status;
}

int
tw_snapshot_run(TwProgram *p, TwRun *run)
{
    TwSnapshot *s = p->snapshot;
    const TwWord *w = s->words;

    for (const TwStep *step = s->steps;; step++) {
        const TwInstr *in;
        int status;
        for (const TwWord *end = s->words + step->words_end; w < end; w++) {
            if (!holds(w)) {
                return miss(p, s->owners[w - s->words]);
            }
        }
        if (step->instr < 0) {
            break;
        }
        in = &p->instrs[step->instr];
        status = run_live(run, in);
        if (status != TW_OK) {
            run->pc = step->instr;
            s->forbidden |= status == TW_RESTART;
            return status;
        }
        if (step->expect != NULL && run->regs[in->dst] != step->expect) {
            return miss(p, step->instr);
        }
    }
    s->hits += s->hits < MANY_HITS;
    return s->n_late == 0 ? TW_OK : run_late(p, run);
}

/* --- taking ---------------------------------------------------------------------------------- */

typedef struct {
    TwProgram *p;
    TwSnapshot *s;
    PyObject *const *regs;
    int32_t at;                 /* the instruction in hand */
} Taking;

static void
add_word(Taking *t, const void *at, uint64_t want)
{
    t->s->words[t->s->n_words] = (TwWord){at, want};
    t->s->owners[t->s->n_words++] = t->at;
}

static inline uint64_t
bits(const void *pointer)
{
    return (uint64_t)(uintptr_t)pointer;
}

/* The instruction itself is run. What it finds is compared if that matters and is mostly the
   same. */
static void
add_live(Taking *t, const TwInstr *in)
{
    TwSnapshot *s = t->s;
    TwStep *step = &s->steps[s->n_steps++];

    *step = (TwStep){s->n_words, t->at, NULL};
    if (!(TW_OPS[in->op].needs & TW_DST)) {
        return;
    }
    if (s->needed[in->dst] && s->misses[t->at] < MANY_MISSES) {
        step->expect = t->regs[in->dst];
        s->states[in->dst] = ALIKE;
    }
}

/* `type` must be a class that lasts: another one could come to lie at its address. */
static void
compare_class(Taking *t, int32_t reg, const void *type)
{
    if (!t->s->classes[reg]) {
        add_word(t, &t->regs[reg]->ob_type, bits(type));
        t->s->classes[reg] = true;
    }
}

/* True if register `reg` is known to hold an object laid out as the one that the snapshot saw. */
static bool
is_laid_out(Taking *t, int32_t reg)
{
    PyTypeObject *type = Py_TYPE(t->regs[reg]);

    if (t->s->states[reg] == SAME || t->s->classes[reg]) {
        return true;
    }
    if (type->tp_flags & Py_TPFLAGS_HEAPTYPE) {
        return false;
    }
    compare_class(t, reg, type);
    return true;
}

/* The program holds the class. */
static bool
take_type(Taking *t, const TwInstr *in)
{
    if (t->s->states[in->src] == ALIKE || tw_class_can_change(in->obj)) {
        compare_class(t, in->src, in->obj);
    }
    return true;
}

static bool
take_length(Taking *t, const TwInstr *in)
{
    PyObject *x = t->regs[in->src];
    Py_ssize_t length;
    const void *word = tw_length_word(x, &length);

    if (word == NULL || !is_laid_out(t, in->src)) {
        return false;
    }
    if (t->s->states[in->src] != SAME || !(PyTuple_Check(x) || PyUnicode_Check(x))) {
        add_word(t, word, (uint64_t)in->aux);
    }
    return true;
}

static bool
take_item_seq(Taking *t, const TwInstr *in)
{
    if (t->s->states[in->src] != SAME || !PyTuple_Check(t->regs[in->src])) {
        return false;
    }
    t->s->states[in->dst] = SAME;
    return true;
}

static bool
take_instance_dict(Taking *t, const TwInstr *in)
{
    PyObject *obj = t->regs[in->src], *dict = t->regs[in->dst];
    const void *word = tw_instance_dict_word(obj);

    if (PyType_Check(obj) && t->s->states[in->src] == SAME) {
        t->s->states[in->dst] = SAME;
        return true;
    }
    if (word == NULL || !is_laid_out(t, in->src)) {
        return false;
    }
    add_word(t, word, bits(dict));
    t->s->states[in->dst] = t->s->states[in->src];
    return true;
}

static bool
take_cell(Taking *t, const TwInstr *in)
{
    PyObject *x = t->regs[in->src];

    if (t->s->states[in->src] != SAME) {
        return false;
    }
    if (in->op == TW_OP_CLOSURE) {
        x = PyTuple_GET_ITEM(PyFunction_GET_CLOSURE(x), in->aux);
    }
    add_word(t, &((PyCellObject *)x)->ob_ref, bits(t->regs[in->dst]));
    t->s->states[in->dst] = SAME;
    return true;
}

static bool
take_attr(Taking *t, const TwInstr *in)
{
    TwAttr attr;

    if (t->s->states[in->src] != SAME) {
        return false;
    }
    attr = tw_attr_read(t->regs[in->src], in->obj);
    if (attr.value != t->regs[in->dst] || attr.n_words < 0) {
        return false;
    }
    for (int i = 0; i < attr.n_words; i++) {
        add_word(t, attr.words[i].at, attr.words[i].want);
    }
    t->s->states[in->dst] = SAME;
    return true;
}

static bool
take_type_version(Taking *t, const TwInstr *in)
{
    uint64_t want;

    if (tw_type_tag((PyTypeObject *)in->obj) != in->u.tag) {
        return false;
    }
    memcpy(&want, tw_type_tag_word((PyTypeObject *)in->obj), sizeof(want));
    add_word(t, tw_type_tag_word((PyTypeObject *)in->obj), want);
    return true;
}

/* The block as a whole, by the version of its dict. */
static bool
take_block(Taking *t, const TwInstr *in)
{
    TwBlock *b = in->u.block;
    PyObject *dict = t->regs[in->src];
    const void *word = tw_dict_version_word(b->watch, dict);

    if (b->version == 0 || word == NULL || (b->orders && PyODict_Check(dict))
        || !is_laid_out(t, in->src)) {
        return false;
    }
    add_word(t, word, b->version);
    for (Py_ssize_t i = b->first; i < b->first + b->count; i++) {
        const TwInstr *member = &t->p->instrs[i];
        if (TW_OPS[member->op].needs & TW_DST) {
            t->s->states[member->dst] = SAME;
        }
        if (member->op == TW_OP_TYPE) {
            take_type(t, member);
        }
    }
    t->at += (int32_t)b->count;
    return true;
}

static bool
all_known(const Taking *t, const TwInstr *in)
{
    const int32_t *regs = in->u.regs + 2;

    for (int32_t i = 0; i < in->u.regs[0]; i++) {
        if (t->s->states[regs[i]] == UNKNOWN) {
            return false;
        }
    }
    return true;
}

/* True if words, or nothing at all, answer the instruction. */
static bool
take_instr(Taking *t, const TwInstr *in)
{
    const uint8_t *states = t->s->states;

    switch (in->op) {
    case TW_OP_CONST:
        t->s->states[in->dst] = SAME;
        return true;
    case TW_OP_IS:
    case TW_OP_IS_NOT:
        return states[in->src] != UNKNOWN;
    case TW_OP_EQ:
    case TW_OP_INT_RANGE:       /* what passed them cannot change */
        return states[in->src] == SAME;
    case TW_OP_TYPE:
        return states[in->src] != UNKNOWN && take_type(t, in);
    case TW_OP_LEN:
        return states[in->src] != UNKNOWN && take_length(t, in);
    case TW_OP_ITEM_SEQ:
        return take_item_seq(t, in);
    case TW_OP_INSTANCE_DICT:
        return states[in->src] != UNKNOWN && take_instance_dict(t, in);
    case TW_OP_CLOSURE:
    case TW_OP_CELL:
        return take_cell(t, in);
    case TW_OP_GETATTR:
        return take_attr(t, in);
    case TW_OP_SAME:
    case TW_OP_DISTINCT:
        return states[in->src] != UNKNOWN && states[in->aux] != UNKNOWN;
    case TW_OP_ALL_DISTINCT:
        return all_known(t, in);
    case TW_OP_TYPE_VERSION:
        return (in->src < 0 || states[in->src] != UNKNOWN) && take_type_version(t, in);
    case TW_OP_DICT_UNCHANGED:
        return states[in->src] != UNKNOWN && take_block(t, in);
    default:
        return false;
    }
}

void
tw_snapshot_take(TwProgram *p, TwRun *run)
{
    TwSnapshot *s = p->snapshot;
    Taking t = {p, s, run->regs, 0};

    if (s == NULL || s->forbidden || !make_room(s, 4 * p->n_instrs, p->n_instrs, p->n_instrs)) {
        return;
    }
    s->n_words = s->n_steps = s->n_late = 0;
    memset(s->states, UNKNOWN, (size_t)p->n_regs);
    memset(s->classes, false, (size_t)p->n_regs);
    for (t.at = (int32_t)p->n_states; t.at < p->n_instrs; t.at++) {
        const TwInstr *in = &p->instrs[t.at];
        if (in->op == TW_OP_PREDICATE) {
            s->late[s->n_late++] = t.at;
        }
        else if (s->misses[t.at] >= MANY_MISSES || !take_instr(&t, in)) {
            add_live(&t, in);
        }
    }
    s->steps[s->n_steps++] = (TwStep){s->n_words, -1, NULL};
    s->hits = 0;
    s->valid = make_room(s, s->n_words, s->n_steps, s->n_late);
}

void
tw_snapshot_drop(TwProgram *p)
{
    if (p->snapshot != NULL) {
        p->snapshot->valid = false;
    }
}
