/* Program: a guard program, checked once when it is made and then run many times. */
#include "_frame.h"

#include <structmember.h>

/* --- running ------------------------------------------------------------------------------ */

static bool
open_run(TwRun *run)
{
    TwProgram *p = run->program;

    run->n_owned = 0;
    run->dirty = false;
    run->is_private = p->busy;
    if (!p->busy) {
        p->busy = true;
        run->regs = p->regs;
        run->owned = p->owned;
        return true;
    }
    run->regs = PyMem_Calloc((size_t)(p->n_regs + p->n_writes) + 1, sizeof(PyObject *));
    if (run->regs == NULL) {
        return false;
    }
    run->owned = run->regs + p->n_regs;
    return true;
}

void
tw_program_release(TwRun *run)
{
    /* Destructors may run the program again: it stays busy until all of them are done. */
    for (Py_ssize_t i = 0; i < run->n_owned; i++) {
        Py_DECREF(run->owned[i]);
    }
    if (run->is_private) {
        PyMem_Free(run->regs);
    }
    else {
        run->program->busy = false;
    }
}

/* The blocks that ran in full are known from now on, or not if the run failed later. A dict that
   changes again and again is not worth following. */
static void
settle_blocks(TwProgram *p, bool passed)
{
    for (Py_ssize_t i = 0; i < p->n_blocks; i++) {
        TwBlock *b = p->blocks[i];
        if (b->pending == 0) {
            continue;
        }
        if (passed) {
            b->version = b->pending;
            b->fires += b->armed;
            b->armed = true;
        }
        b->pending = 0;
        if (b->fires >= 3) {
            b->demoted = true;
            b->version = 0;
            tw_dict_unfollow(&b->watch);
        }
    }
}

/* The status of the first instruction that did not succeed, at `run->pc`. */
static int
run_instrs(TwProgram *p, TwRun *run)
{
    for (run->pc = p->n_states; run->pc < p->n_instrs; run->pc++) {
        const TwInstr *in = &p->instrs[run->pc];
        int status = TW_OPS[in->op].run(run, in);
        if (status != TW_OK) {
            return status;
        }
    }
    return TW_OK;
}

/* Python code that guards run is not to be compiled. */
static int
run_instrs_suspended(TwProgram *p, TwRun *run)
{
    int depth = tw_hook_suspend();
    int status = run_instrs(p, run);

    tw_hook_resume(depth);
    return status;
}

/* The state of the interpreter and of torch: asked first, while no register holds anything. */
static int
run_states(TwProgram *p, TwRun *run)
{
    int depth, status = TW_OK;

    run->pc = 0;
    if (p->n_states == 0) {
        return TW_OK;
    }
    depth = tw_hook_suspend();
    for (; status == TW_OK && run->pc < p->n_states; run->pc++) {
        const TwInstr *in = &p->instrs[run->pc];
        status = TW_OPS[in->op].run(run, in);
    }
    tw_hook_resume(depth);
    run->pc -= status != TW_OK;
    return status;
}

/* All but the states, without the help of a snapshot. */
static int
run_in_full(TwProgram *p, TwRun *run)
{
    int status;

    run->owning = p->owning;
    if (!run->is_private) {
        tw_snapshot_drop(p);
    }
    status = run->owning ? run_instrs_suspended(p, run) : run_instrs(p, run);
    if (run->dirty) {
        settle_blocks(p, status == TW_OK);
    }
    if (status == TW_OK && !run->is_private) {
        tw_snapshot_take(p, run);
    }
    return status;
}

Py_ssize_t
tw_program_run(TwProgram *p, PyObject *const *args, Py_ssize_t n_args, TwRun *run)
{
    int status;

    if (p->dead || n_args < p->n_args) {
        return 0;
    }
    run->program = p;
    run->args = args;
restart:
    if (!open_run(run)) {
        return 0;
    }
    run->owning = false;
    status = run_states(p, run);
    if (status == TW_OK) {
        status = run->is_private || !tw_snapshot_is_valid(p) ? TW_RESTART : tw_snapshot_run(p, run);
        if (status == TW_RESTART) {
            status = run_in_full(p, run);
        }
    }
    if (status == TW_OK) {
        return -1;
    }
    tw_program_release(run);
    if (status == TW_RESTART) {
        p->owning = true;
        goto restart;
    }
    return run->pc;
}

/* --- making ------------------------------------------------------------------------------- */

static PyObject *
program_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"instrs", "n_regs", "n_args", NULL};
    PyObject *items;
    Py_ssize_t n_regs, n_args, n;
    TwProgram *p = NULL;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Onn:Program", names, &items, &n_regs,
                                     &n_args)) {
        return NULL;
    }
    if (n_regs < 0 || n_args < 0 || n_regs > INT32_MAX) {
        PyErr_SetString(PyExc_ValueError, "n_regs and n_args must not be negative");
        return NULL;
    }
    items = PySequence_Tuple(items);    /* a list might change while it is read */
    if (items == NULL) {
        return NULL;
    }
    n = PyTuple_GET_SIZE(items);
    p = (TwProgram *)type->tp_alloc(type, 0);
    if (p != NULL) {
        p->n_regs = n_regs;
        p->n_args = n_args;
        p->instrs = PyMem_Calloc((size_t)n + 1, sizeof(TwInstr));
        p->regs = PyMem_Calloc((size_t)n_regs + 1, sizeof(PyObject *));
        p->written = PyMem_Calloc((size_t)n_regs + 1, sizeof(bool));
        p->kept = PyMem_Calloc((size_t)n_regs + 1, sizeof(bool));
        p->blocks = PyMem_Calloc((size_t)n + 1, sizeof(TwBlock *));
        if (p->instrs == NULL || p->regs == NULL || p->written == NULL || p->kept == NULL
            || p->blocks == NULL) {
            PyErr_NoMemory();
            Py_CLEAR(p);
        }
        else if (tw_program_fill(p, items) < 0) {
            Py_CLEAR(p);
        }
    }
    Py_DECREF(items);
    return (PyObject *)p;
}

/* --- the object --------------------------------------------------------------------------- */

static int
program_traverse(TwProgram *p, visitproc visit, void *arg)
{
    Py_VISIT(p->dict);
    for (Py_ssize_t i = 0; p->instrs != NULL && i < p->n_instrs; i++) {
        Py_VISIT(p->instrs[i].obj);
    }
    return 0;
}

/* Leaves the instructions' data alone: a run may be in progress. */
static int
program_clear(TwProgram *p)
{
    p->dead = true;
    Py_CLEAR(p->dict);
    if (!p->busy) {
        for (Py_ssize_t i = 0; p->instrs != NULL && i < p->n_instrs; i++) {
            Py_CLEAR(p->instrs[i].obj);
        }
    }
    return 0;
}

static void
free_instr(TwInstr *in)
{
    if (in->op == TW_OP_TENSOR) {
        tw_tensor_spec_free(in->u.tensor);
    }
    if (in->op == TW_OP_SIZES) {
        tw_sizes_free(in->u.sizes);
    }
    if (in->op == TW_OP_ALL_DISTINCT || in->op == TW_OP_SAME_VALUES) {
        PyMem_Free(in->u.regs);
    }
    Py_CLEAR(in->obj);
}

static void
program_dealloc(TwProgram *p)
{
    PyObject_GC_UnTrack(p);
    if (p->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)p);
    }
    Py_CLEAR(p->dict);
    for (Py_ssize_t i = 0; i < p->n_blocks; i++) {
        tw_dict_unfollow(&p->blocks[i]->watch);
        PyMem_Free(p->blocks[i]->rechecks);
        PyMem_Free(p->blocks[i]);
    }
    for (Py_ssize_t i = 0; p->instrs != NULL && i < p->n_instrs; i++) {
        free_instr(&p->instrs[i]);
    }
    tw_snapshot_free(p);
    PyMem_Free(p->instrs);
    PyMem_Free(p->regs);
    PyMem_Free(p->owned);
    PyMem_Free(p->written);
    PyMem_Free(p->kept);
    PyMem_Free(p->blocks);
    Py_TYPE(p)->tp_free((PyObject *)p);
}

/* Runs over a tuple: the failing index, -1 if none (then `run` is open), -2 with an exception. */
static Py_ssize_t
run_on_tuple(TwProgram *p, PyObject *args, TwRun *run)
{
    if (!PyTuple_Check(args)) {
        PyErr_SetString(PyExc_TypeError, "the flat arguments must be a tuple");
        return -2;
    }
    if (PyTuple_GET_SIZE(args) != p->n_args) {
        PyErr_Format(PyExc_ValueError, "the program takes %zd flat arguments, got %zd", p->n_args,
                     PyTuple_GET_SIZE(args));
        return -2;
    }
    return tw_program_run(p, &PyTuple_GET_ITEM(args, 0), p->n_args, run);
}

static PyObject *
program_explain(TwProgram *p, PyObject *args)
{
    TwRun run;
    Py_ssize_t at;

    tw_snapshot_drop(p);        /* which knows only some instruction that fails */
    at = run_on_tuple(p, args, &run);
    if (at == -1) {
        tw_program_release(&run);
    }
    return at == -2 ? NULL : PyLong_FromSsize_t(at);
}

static PyObject *
program_check(TwProgram *p, PyObject *args)
{
    TwRun run;
    Py_ssize_t at = run_on_tuple(p, args, &run);

    if (at == -1) {
        tw_program_release(&run);
    }
    return at == -2 ? NULL : PyBool_FromLong(at == -1);
}

static PyObject *
program_registers(TwProgram *p, PyObject *args)
{
    TwRun run;
    PyObject *out;
    Py_ssize_t at;

    if (p->owning) {
        tw_snapshot_drop(p);    /* after which only some registers are held */
    }
    at = run_on_tuple(p, args, &run);
    if (at == -2) {
        return NULL;
    }
    if (at != -1) {
        return PyErr_Format(PyExc_ValueError, "guard %zd failed", at);
    }
    out = PyTuple_New(p->n_regs);
    for (Py_ssize_t i = 0; out != NULL && i < p->n_regs; i++) {
        PyObject *value = p->written[i] ? run.regs[i] : Py_None;
        PyTuple_SET_ITEM(out, i, Py_NewRef(value));
    }
    tw_program_release(&run);
    return out;
}

/* The number that the class has now takes the place of the old one, if `holds()` is true of it. */
static PyObject *
program_renew(TwProgram *p, PyObject *args)
{
    Py_ssize_t at;
    PyObject *holds, *answer;
    TwInstr *in, now;
    int truth;

    if (!PyArg_ParseTuple(args, "nO:renew", &at, &holds)) {
        return NULL;
    }
    if (at < 0 || at >= p->n_instrs || p->instrs[at].op != TW_OP_TYPE_VERSION || p->dead) {
        return PyErr_Format(PyExc_ValueError, "instruction %zd is not about a class", at);
    }
    in = &p->instrs[at];
    now = *in;
    if (tw_set_type_tag(at, &now) < 0 || (answer = PyObject_CallNoArgs(holds)) == NULL) {
        return NULL;
    }
    truth = PyObject_IsTrue(answer);
    Py_DECREF(answer);
    if (truth < 0) {
        return NULL;
    }
    if (truth && !p->dead) {
        tw_snapshot_drop(p);
        in->u.tag = now.u.tag;
    }
    return PyBool_FromLong(truth);
}

static PyObject *
program_demoted(TwProgram *p, void *closure)
{
    long n = 0;

    for (Py_ssize_t i = 0; i < p->n_blocks; i++) {
        n += p->blocks[i]->demoted;
    }
    return PyLong_FromLong(n);
}

/* How many blocks would be skipped if their dicts are as they were. */
static PyObject *
program_known(TwProgram *p, void *closure)
{
    long n = 0;

    for (Py_ssize_t i = 0; i < p->n_blocks; i++) {
        n += p->blocks[i]->version != 0;
    }
    return PyLong_FromLong(n);
}

/* Whether the next run begins with a snapshot. */
static PyObject *
program_settled(TwProgram *p, void *closure)
{
    return PyBool_FromLong(tw_snapshot_is_valid(p));
}

static PyMethodDef program_methods[] = {
    {"explain", (PyCFunction)program_explain, METH_O,
     "explain(args): index of the first instruction that fails on these flat arguments, or -1."},
    {"check", (PyCFunction)program_check, METH_O,
     "check(args): whether every instruction succeeds on these flat arguments."},
    {"registers", (PyCFunction)program_registers, METH_O,
     "registers(args): the registers after a run that must succeed; None for unwritten ones."},
    {"renew", (PyCFunction)program_renew, METH_VARARGS,
     "renew(index, holds): if holds(), what was assigned in the class that this instruction is about"
     " does not matter."},
    {NULL},
};

static PyMemberDef program_members[] = {
    {"n_instrs", T_PYSSIZET, offsetof(TwProgram, n_instrs), READONLY},
    {"n_regs", T_PYSSIZET, offsetof(TwProgram, n_regs), READONLY},
    {"n_args", T_PYSSIZET, offsetof(TwProgram, n_args), READONLY},
    {"owning", T_BOOL, offsetof(TwProgram, owning), READONLY,
     "Whether a run may execute Python code and so holds what its registers hold."},
    {NULL},
};

static PyGetSetDef program_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
    {"demoted", (getter)program_demoted, NULL, "Blocks that are no longer skipped."},
    {"known", (getter)program_known, NULL, "Blocks whose dict is being followed."},
    {"settled", (getter)program_settled, NULL, "Whether the next run compares a snapshot first."},
    {NULL},
};

PyTypeObject TwProgram_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "torchweld.frame._frame.Program",
    .tp_doc = "Program(instrs, n_regs, n_args)\n--\n\nA guard program over flat arguments.",
    .tp_basicsize = sizeof(TwProgram),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = program_new,
    .tp_dealloc = (destructor)program_dealloc,
    .tp_traverse = (traverseproc)program_traverse,
    .tp_clear = (inquiry)program_clear,
    .tp_methods = program_methods,
    .tp_members = program_members,
    .tp_getset = program_getset,
    .tp_dictoffset = offsetof(TwProgram, dict),
    .tp_weaklistoffset = offsetof(TwProgram, weakrefs),
};
