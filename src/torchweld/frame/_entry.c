/* Entry: what to call, and with which registers, once a guard program has succeeded. */
#include "_frame.h"

#include <structmember.h>

/* CPython 3.13 allows 10,000 nested C calls: keep our stack frames small. */
#define SMALL 16

/* The values that an entry passes on: one free word, the inputs, one word for the outputs of
   `call`, the inputs of `finish`. */
typedef struct {
    PyObject *small[SMALL];
    PyObject **values;          /* owned references, but for the two words */
    Py_ssize_t n;
} Payload;

static bool
payload_take(Payload *pay, const TwEntry *e, PyObject *const *regs)
{
    PyObject **at;

    pay->n = e->n_inputs + e->n_finish + 2;
    pay->values = pay->small;
    if (pay->n > SMALL) {
        pay->values = PyMem_Malloc(sizeof(PyObject *) * (size_t)pay->n);
        if (pay->values == NULL) {
            PyErr_NoMemory();
            return false;
        }
    }
    at = pay->values;
    *at++ = NULL;
    for (Py_ssize_t i = 0; i < e->n_inputs; i++) {
        *at++ = Py_NewRef(regs[e->inputs[i]]);
    }
    *at++ = NULL;
    for (Py_ssize_t i = 0; i < e->n_finish; i++) {
        *at++ = Py_NewRef(regs[e->finish_inputs[i]]);
    }
    return true;
}

static void
payload_drop(Payload *pay)
{
    for (Py_ssize_t i = 0; i < pay->n; i++) {
        Py_XDECREF(pay->values[i]);
    }
    if (pay->values != pay->small) {
        PyMem_Free(pay->values);
    }
}

/* outs[i], as a new reference. */
static PyObject *
pick(PyObject *outs, Py_ssize_t i)
{
    if (PyTuple_Check(outs) && i < PyTuple_GET_SIZE(outs)) {
        return Py_NewRef(PyTuple_GET_ITEM(outs, i));
    }
    if (PyList_Check(outs) && i < PyList_GET_SIZE(outs)) {
        return Py_NewRef(PyList_GET_ITEM(outs, i));
    }
    return PyErr_Format(PyExc_SystemError,
                        "a compiled call must return a tuple or list with item %zd, not %.100s", i,
                        Py_TYPE(outs)->tp_name);
}

static PyObject *
entry_call(TwEntry *e, Payload *pay)
{
    PyObject **finish_args = pay->values + 1 + e->n_inputs;
    PyObject *outs, *result;

    if (e->call == NULL) {
        outs = Py_NewRef(Py_None);
    }
    else {
        PyObject *call = Py_NewRef(e->call);    /* it may be replaced while it runs */

        outs = PyObject_Vectorcall(call, pay->values + 1,
                                   (size_t)e->n_inputs | PY_VECTORCALL_ARGUMENTS_OFFSET, NULL);
        Py_DECREF(call);
        if (outs == NULL) {
            return NULL;
        }
    }
    if (e->finish != NULL) {
        *finish_args = outs;    /* the payload owns it from here */
        return PyObject_Vectorcall(e->finish, finish_args, (size_t)e->n_finish + 1, NULL);
    }
    if (e->result < 0) {
        return outs;
    }
    result = pick(outs, e->result);
    Py_DECREF(outs);
    return result;
}

/* A result of this class has not ended: when what the entry was called with is let go, `drive` is
   called with it and gives the result. */
static struct {
    PyTypeObject *type;
    PyObject *drive;
} pending;

PyObject *
tw_set_pending(PyObject *module, PyObject *args)
{
    PyObject *type, *drive;

    if (!PyArg_ParseTuple(args, "O!O:set_pending", &PyType_Type, &type, &drive)) {
        return NULL;
    }
    Py_XSETREF(pending.type, (PyTypeObject *)Py_NewRef(type));
    Py_XSETREF(pending.drive, Py_NewRef(drive));
    Py_RETURN_NONE;
}

static PyObject *
end_pending(PyObject *result)
{
    PyObject *ended;

    if (result == NULL || pending.type == NULL || !Py_IS_TYPE(result, pending.type)) {
        return result;
    }
    ended = PyObject_CallOneArg(pending.drive, result);
    Py_DECREF(result);
    return ended;
}

bool
tw_entry_try(TwEntry *e, PyObject *const *flat, Py_ssize_t n_flat, PyObject **result)
{
    Payload pay;
    TwRun run;
    int depth = 0;
    bool taken;

    if (tw_program_run(e->program, flat, n_flat, &run) != -1) {
        return false;
    }
    Py_INCREF(e);       /* it may be removed while it runs */
    e->hits++;
    taken = payload_take(&pay, e, run.regs);
    tw_program_release(&run);
    *result = NULL;
    if (taken) {
        if (!Py_EnterRecursiveCall(" in compiled code")) {
            depth = tw_hook_suspend();
            *result = entry_call(e, &pay);
            payload_drop(&pay);
            *result = end_pending(*result);
            tw_hook_resume(depth);
            Py_LeaveRecursiveCall();
        }
        else {
            payload_drop(&pay);
        }
    }
    Py_DECREF(e);
    return true;
}

bool
tw_entries_try(PyObject *entries, PyObject *const *flat, Py_ssize_t n_flat, PyObject **result)
{
    bool matched = false;

    Py_INCREF(entries); /* guards and the entry itself may change the list */
    for (Py_ssize_t i = 0; !matched && i < PyTuple_GET_SIZE(entries); i++) {
        PyObject *item = PyTuple_GET_ITEM(entries, i);
        if (Py_IS_TYPE(item, &TwEntry_Type)) {
            matched = tw_entry_try((TwEntry *)item, flat, n_flat, result);
            continue;
        }
        item = tw_weakref_get(item);
        if (item != NULL) {
            matched = tw_entry_try((TwEntry *)item, flat, n_flat, result);
            Py_DECREF(item);
        }
    }
    Py_DECREF(entries);
    return matched;
}

/* --- making ------------------------------------------------------------------------------- */

static int32_t *
registers_of(const TwProgram *p, PyObject *sequence, Py_ssize_t *n)
{
    PyObject *items = PySequence_Tuple(sequence);
    int32_t *out;

    if (items == NULL) {
        return NULL;
    }
    *n = PyTuple_GET_SIZE(items);
    out = PyMem_Calloc((size_t)*n + 1, sizeof(int32_t));
    if (out == NULL) {
        PyErr_NoMemory();
    }
    for (Py_ssize_t i = 0; out != NULL && i < *n; i++) {
        long reg = PyLong_AsLong(PyTuple_GET_ITEM(items, i));
        if (!PyErr_Occurred() && (reg < 0 || reg >= p->n_regs || !p->written[reg])) {
            PyErr_Format(PyExc_ValueError, "the program does not write register %ld", reg);
        }
        if (PyErr_Occurred()) {
            PyMem_Free(out);
            out = NULL;
            break;
        }
        out[i] = (int32_t)reg;
        p->kept[reg] = true;
    }
    Py_DECREF(items);
    return out;
}

static int
callable_or_none(PyObject *obj, const char *what, PyObject **slot)
{
    if (obj == Py_None) {
        return 0;
    }
    if (!PyCallable_Check(obj)) {
        PyErr_Format(PyExc_TypeError, "%s must be callable or None", what);
        return -1;
    }
    *slot = Py_NewRef(obj);
    return 0;
}

static PyObject *
entry_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"program", "inputs", "call", "finish", "finish_inputs", "result", NULL};
    PyObject *program, *inputs, *call, *finish = Py_None, *finish_inputs = NULL;
    Py_ssize_t result = -1;
    TwEntry *e;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO|OOn:Entry", names, &TwProgram_Type,
                                     &program, &inputs, &call, &finish, &finish_inputs, &result)) {
        return NULL;
    }
    e = (TwEntry *)type->tp_alloc(type, 0);
    if (e == NULL) {
        return NULL;
    }
    e->program = (TwProgram *)Py_NewRef(program);
    e->result = result;
    e->inputs = registers_of(e->program, inputs, &e->n_inputs);
    if (e->inputs == NULL || callable_or_none(call, "call", &e->call) < 0
        || callable_or_none(finish, "finish", &e->finish) < 0) {
        Py_DECREF(e);
        return NULL;
    }
    if (finish_inputs != NULL && finish_inputs != Py_None && e->finish != NULL) {
        e->finish_inputs = registers_of(e->program, finish_inputs, &e->n_finish);
        if (e->finish_inputs == NULL) {
            Py_DECREF(e);
            return NULL;
        }
    }
    return (PyObject *)e;
}

static int
entry_traverse(TwEntry *e, visitproc visit, void *arg)
{
    Py_VISIT(e->dict);
    Py_VISIT(e->program);
    Py_VISIT(e->call);
    Py_VISIT(e->finish);
    return 0;
}

/* The program breaks its own cycles; an entry without one could not be run. */
static int
entry_clear(TwEntry *e)
{
    Py_CLEAR(e->dict);
    Py_CLEAR(e->call);
    Py_CLEAR(e->finish);
    return 0;
}

static void
entry_dealloc(TwEntry *e)
{
    PyObject_GC_UnTrack(e);
    if (e->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)e);
    }
    entry_clear(e);
    Py_CLEAR(e->program);
    PyMem_Free(e->inputs);
    PyMem_Free(e->finish_inputs);
    Py_TYPE(e)->tp_free((PyObject *)e);
}

static PyMemberDef entry_members[] = {
    {"program", T_OBJECT, offsetof(TwEntry, program), READONLY},
    {"finish", T_OBJECT, offsetof(TwEntry, finish), READONLY},
    {"result", T_PYSSIZET, offsetof(TwEntry, result), READONLY},
    {"hits", T_ULONGLONG, offsetof(TwEntry, hits), READONLY, "How often it was run."},
    {NULL},
};

static PyObject *
entry_get_call(TwEntry *e, void *closure)
{
    return Py_NewRef(e->call == NULL ? Py_None : e->call);
}

/* An entry that calls something always does. */
static int
entry_set_call(TwEntry *e, PyObject *value, void *closure)
{
    if (e->call == NULL || value == NULL || !PyCallable_Check(value)) {
        PyErr_SetString(PyExc_TypeError, "call can only be replaced, by another callable");
        return -1;
    }
    Py_SETREF(e->call, Py_NewRef(value));
    return 0;
}

static PyGetSetDef entry_getset[] = {
    {"call", (getter)entry_get_call, (setter)entry_set_call, "What computes the outputs."},
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
    {NULL},
};

PyTypeObject TwEntry_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "torchweld.frame._frame.Entry",
    .tp_doc = "Entry(program, inputs, call, finish=None, finish_inputs=(), result=-1)\n--\n\n"
              "What runs when the program succeeds.",
    .tp_basicsize = sizeof(TwEntry),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_new = entry_new,
    .tp_dealloc = (destructor)entry_dealloc,
    .tp_traverse = (traverseproc)entry_traverse,
    .tp_clear = (inquiry)entry_clear,
    .tp_members = entry_members,
    .tp_getset = entry_getset,
    .tp_dictoffset = offsetof(TwEntry, dict),
    .tp_weaklistoffset = offsetof(TwEntry, weakrefs),
};
