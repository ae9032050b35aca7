/* Dispatcher: takes the place of a Python function. It lays the arguments out as CPython would lay
   out the function's locals, runs the first entry whose guards succeed, or else asks `miss`. One
   that is given a slot passes the call on to what its first argument has in that slot. One that
   gives its function has it as last flat argument: entries are for all functions of its code. */
#include "_frame.h"

#include <structmember.h>

/* CPython 3.13 allows 10,000 nested C calls: keep our stack frames small. */
#define SMALL 16

typedef struct {
    PyObject_HEAD
    PyObject *dict, *weakrefs;
    vectorcallfunc vectorcall;
    PyObject *fn, *miss;
    PyObject *entries;          /* a tuple, replaced at every change */
    PyObject *slot;             /* NULL, or a member descriptor: where first arguments hold theirs */
    PyCodeObject *code;         /* of fn, when its layout was read */
    PyObject *names;            /* of the parameters, without *args and **kwargs */
    Py_ssize_t n_positional, n_named, n_flat;
    bool simple;                /* only positional parameters */
    char enabled, gives;
    unsigned long long hits;
} TwDispatcher;

Py_ssize_t
tw_code_n_flat(PyCodeObject *code)
{
    return code->co_argcount + code->co_kwonlyargcount + ((code->co_flags & CO_VARARGS) != 0)
        + ((code->co_flags & CO_VARKEYWORDS) != 0);
}

/* Reads how the function takes its arguments. What was compiled for other code is dropped. */
static int
read_layout(TwDispatcher *d)
{
    PyCodeObject *code = (PyCodeObject *)Py_NewRef(PyFunction_GET_CODE(d->fn));
    PyObject *all = PyCode_GetVarnames(code), *names, *entries;
    Py_ssize_t n_named = code->co_argcount + code->co_kwonlyargcount;

    names = all == NULL ? NULL : PyTuple_GetSlice(all, 0, n_named);
    entries = PyTuple_New(0);
    Py_XDECREF(all);
    if (names == NULL || entries == NULL) {
        Py_XDECREF(names);
        Py_XDECREF(entries);
        Py_DECREF(code);
        return -1;
    }
    d->n_positional = code->co_argcount;
    d->n_named = n_named;
    d->n_flat = tw_code_n_flat(code) + d->gives;
    d->simple = d->n_flat == d->n_positional;
    Py_XSETREF(d->names, names);
    Py_XSETREF(d->code, code);
    Py_XSETREF(d->entries, entries);
    return 0;
}

/* --- binding ------------------------------------------------------------------------------- */

/* Flat arguments; the references are owned. */
typedef struct {
    PyObject *small[SMALL];
    PyObject **values;
    Py_ssize_t n;
} Flat;

static bool
flat_open(Flat *flat, Py_ssize_t n)
{
    flat->n = n;
    flat->values = flat->small;
    if (n > SMALL) {
        flat->values = PyMem_Malloc(sizeof(PyObject *) * (size_t)n);
        if (flat->values == NULL) {
            PyErr_NoMemory();
            return false;
        }
    }
    memset(flat->values, 0, sizeof(PyObject *) * (size_t)n);
    return true;
}

static void
flat_close(Flat *flat)
{
    for (Py_ssize_t i = 0; i < flat->n; i++) {
        Py_XDECREF(flat->values[i]);
    }
    if (flat->values != flat->small) {
        PyMem_Free(flat->values);
    }
}

/* BOUND; UNBINDABLE: CPython is to say why; ERROR: an exception is set. */
enum { BOUND, UNBINDABLE, ERROR };

static Py_ssize_t
find_name(const TwDispatcher *d, PyObject *name, Py_ssize_t first)
{
    for (Py_ssize_t i = first; i < d->n_named; i++) {
        if (PyTuple_GET_ITEM(d->names, i) == name) {
            return i;
        }
    }
    for (Py_ssize_t i = first; i < d->n_named; i++) {
        if (PyUnicode_Compare(PyTuple_GET_ITEM(d->names, i), name) == 0) {
            return i;
        }
    }
    return -1;
}

static int
bind_keywords(TwDispatcher *d, PyObject *const *values, PyObject *kwnames, Flat *flat)
{
    bool takes_all = d->code->co_flags & CO_VARKEYWORDS;
    PyObject *extra = takes_all ? flat->values[d->n_flat - 1 - d->gives] : NULL;

    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(kwnames); i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        Py_ssize_t at;
        if (!PyUnicode_CheckExact(name)) {
            return UNBINDABLE;
        }
        at = find_name(d, name, d->code->co_posonlyargcount);
        if (at >= 0) {
            if (flat->values[at] != NULL) {
                return UNBINDABLE;
            }
            flat->values[at] = Py_NewRef(values[i]);
        }
        else if (extra == NULL) {
            return UNBINDABLE;
        }
        else if (PyDict_SetItem(extra, name, values[i]) < 0) {
            return ERROR;
        }
    }
    return BOUND;
}

static int
bind_defaults(TwDispatcher *d, Flat *flat)
{
    PyObject *defaults = PyFunction_GET_DEFAULTS(d->fn);
    PyObject *kw_defaults = PyFunction_GET_KW_DEFAULTS(d->fn);
    Py_ssize_t first = d->n_positional - (defaults == NULL ? 0 : PyTuple_GET_SIZE(defaults));

    for (Py_ssize_t i = 0; i < d->n_named; i++) {
        PyObject *value = NULL;
        if (flat->values[i] != NULL) {
            continue;
        }
        if (i < d->n_positional) {
            value = i >= first ? PyTuple_GET_ITEM(defaults, i - first) : NULL;
        }
        else if (kw_defaults != NULL) {
            value = PyDict_GetItemWithError(kw_defaults, PyTuple_GET_ITEM(d->names, i));
            if (value == NULL && PyErr_Occurred()) {
                return ERROR;
            }
        }
        if (value == NULL) {
            return UNBINDABLE;
        }
        flat->values[i] = Py_NewRef(value);
    }
    return BOUND;
}

static PyObject *
tuple_of(PyObject *const *values, Py_ssize_t n)
{
    PyObject *tuple = PyTuple_New(n);

    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++) {
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(values[i]));
    }
    return tuple;
}

static int
bind(TwDispatcher *d, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames, Flat *flat)
{
    Py_ssize_t n_given = n_args < d->n_positional ? n_args : d->n_positional;
    Py_ssize_t at = d->n_named;
    int status = BOUND;

    for (Py_ssize_t i = 0; i < n_given; i++) {
        flat->values[i] = Py_NewRef(args[i]);
    }
    if (d->code->co_flags & CO_VARARGS) {
        flat->values[at] = tuple_of(args + n_given, n_args - n_given);
        if (flat->values[at++] == NULL) {
            return ERROR;
        }
    }
    else if (n_args > n_given) {
        return UNBINDABLE;
    }
    if (d->code->co_flags & CO_VARKEYWORDS) {
        flat->values[at] = PyDict_New();
        if (flat->values[at] == NULL) {
            return ERROR;
        }
    }
    if (d->gives) {
        flat->values[d->n_flat - 1] = Py_NewRef(d->fn);
    }
    if (kwnames != NULL) {
        status = bind_keywords(d, args + n_args, kwnames, flat);
    }
    return status == BOUND ? bind_defaults(d, flat) : status;
}

/* --- calling ------------------------------------------------------------------------------- */

/* Asks `miss` for an entry. False: nothing fits, run the function itself. */
static bool
ask_miss(TwDispatcher *d, PyObject *const *flat, Py_ssize_t n_flat, PyObject **result)
{
    PyObject *args = tuple_of(flat, n_flat), *entry;
    PyObject *miss;
    bool matched = true;
    int depth;

    *result = NULL;
    if (args == NULL) {
        return true;
    }
    miss = Py_NewRef(d->miss);
    depth = tw_hook_suspend();
    entry = PyObject_CallFunctionObjArgs(miss, (PyObject *)d, args, NULL);
    tw_hook_resume(depth);
    Py_DECREF(miss);
    if (entry == Py_None) {
        matched = false;
    }
    else if (entry != NULL && Py_IS_TYPE(entry, &TwEntry_Type)) {
        matched = tw_entry_try((TwEntry *)entry, &PyTuple_GET_ITEM(args, 0), n_flat, result);
    }
    else if (entry != NULL) {
        PyErr_Format(PyExc_TypeError, "miss must return an Entry or None, not %.100s",
                     Py_TYPE(entry)->tp_name);
    }
    Py_XDECREF(entry);
    Py_DECREF(args);
    return matched;
}

static bool
try_flat(TwDispatcher *d, PyObject *const *flat, Py_ssize_t n_flat, PyObject **result)
{
    if (tw_entries_try(d->entries, flat, n_flat, result)) {
        d->hits++;
        return true;
    }
    return ask_miss(d, flat, n_flat, result);
}

/* Out of line, for the stack space of `Flat`. */
static __attribute__((noinline)) bool
try_bound(TwDispatcher *d, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames,
          PyObject **result)
{
    Flat flat;
    int status;
    bool matched;

    if (!flat_open(&flat, d->n_flat)) {
        return true;
    }
    status = bind(d, args, n_args, kwnames, &flat);
    matched = status == ERROR
        || (status == BOUND && try_flat(d, flat.values, flat.n, result));
    flat_close(&flat);
    return matched;
}

/* What the first argument has in the slot, borrowed; NULL if it has none. */
static PyObject *
own_of(const TwDispatcher *d, PyObject *const *args, Py_ssize_t n_args)
{
    const PyMemberDescrObject *slot = (const PyMemberDescrObject *)d->slot;

    if (n_args == 0 || !PyObject_TypeCheck(args[0], PyDescr_TYPE(slot))) {
        return NULL;
    }
    return *(PyObject **)((char *)args[0] + slot->d_member->offset);
}

static PyObject *
dispatcher_call(TwDispatcher *d, PyObject *const *args, size_t nargsf, PyObject *kwnames)
{
    Py_ssize_t n_args = PyVectorcall_NARGS(nargsf);
    PyObject *result = NULL;
    bool matched = false;

    if (d->slot != NULL) {
        PyObject *own = own_of(d, args, n_args);
        if (own != NULL) {
            Py_INCREF(own);
            result = PyObject_Vectorcall(own, args, nargsf, kwnames);
            Py_DECREF(own);
            return result;
        }
    }
    if (d->fn == NULL || d->miss == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "this compiled function was torn down");
        return NULL;
    }
    if (!d->enabled) {
        return PyObject_Vectorcall(d->fn, args, nargsf, kwnames);
    }
    Py_INCREF(d);
    if (PyFunction_GET_CODE(d->fn) != (PyObject *)d->code && read_layout(d) < 0) {
        Py_DECREF(d);
        return NULL;
    }
    if (d->simple && n_args == d->n_positional && (kwnames == NULL || !PyTuple_GET_SIZE(kwnames))) {
        matched = try_flat(d, args, n_args, &result);
    }
    else {
        matched = try_bound(d, args, n_args, kwnames, &result);
    }
    if (!matched && d->fn != NULL) {
        result = PyObject_Vectorcall(d->fn, args, nargsf, kwnames);
    }
    Py_DECREF(d);
    return result;
}

/* --- the object ---------------------------------------------------------------------------- */

static PyObject *
dispatcher_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"fn", "miss", "slot", "gives", NULL};
    PyObject *fn, *miss, *slot = NULL;
    int gives = 0;
    TwDispatcher *d;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O|O!p:Dispatcher", names,
                                     &PyFunction_Type, &fn, &miss, &PyMemberDescr_Type, &slot,
                                     &gives)) {
        return NULL;
    }
    if (slot != NULL && ((PyMemberDescrObject *)slot)->d_member->type != T_OBJECT_EX) {
        PyErr_SetString(PyExc_TypeError, "slot must be one of __slots__");
        return NULL;
    }
    if (!PyCallable_Check(miss)) {
        PyErr_SetString(PyExc_TypeError, "miss must be callable");
        return NULL;
    }
    d = (TwDispatcher *)type->tp_alloc(type, 0);
    if (d == NULL) {
        return NULL;
    }
    d->vectorcall = (vectorcallfunc)dispatcher_call;
    d->fn = Py_NewRef(fn);
    d->miss = Py_NewRef(miss);
    d->slot = Py_XNewRef(slot);
    d->enabled = 1;
    d->gives = (char)gives;
    if (read_layout(d) < 0) {
        Py_CLEAR(d);
    }
    return (PyObject *)d;
}

static int
dispatcher_traverse(TwDispatcher *d, visitproc visit, void *arg)
{
    Py_VISIT(d->dict);
    Py_VISIT(d->fn);
    Py_VISIT(d->miss);
    Py_VISIT(d->slot);
    Py_VISIT(d->entries);
    return 0;
}

static int
dispatcher_clear(TwDispatcher *d)
{
    Py_CLEAR(d->dict);
    Py_CLEAR(d->fn);
    Py_CLEAR(d->miss);
    Py_CLEAR(d->slot);
    return 0;
}

static void
dispatcher_dealloc(TwDispatcher *d)
{
    PyObject_GC_UnTrack(d);
    if (d->weakrefs != NULL) {
        PyObject_ClearWeakRefs((PyObject *)d);
    }
    dispatcher_clear(d);
    Py_CLEAR(d->entries);
    Py_CLEAR(d->names);
    Py_CLEAR(d->code);
    Py_TYPE(d)->tp_free((PyObject *)d);
}

static PyObject *
dispatcher_get(PyObject *self, PyObject *obj, PyObject *type)
{
    return obj == NULL || obj == Py_None ? Py_NewRef(self) : PyMethod_New(self, obj);
}

static PyObject *
dispatcher_repr(TwDispatcher *d)
{
    return PyUnicode_FromFormat("<compiled %R>", d->fn != NULL ? d->fn : Py_None);
}

static PyObject *
dispatcher_add(TwDispatcher *d, PyObject *entry)
{
    Py_ssize_t n = PyTuple_GET_SIZE(d->entries);
    PyObject *entries;

    if (!Py_IS_TYPE(entry, &TwEntry_Type)) {
        PyErr_SetString(PyExc_TypeError, "an Entry was expected");
        return NULL;
    }
    entries = PyTuple_New(n + 1);
    if (entries == NULL) {
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyTuple_SET_ITEM(entries, i, Py_NewRef(PyTuple_GET_ITEM(d->entries, i)));
    }
    PyTuple_SET_ITEM(entries, n, Py_NewRef(entry));
    Py_SETREF(d->entries, entries);
    Py_RETURN_NONE;
}

static PyObject *
dispatcher_remove(TwDispatcher *d, PyObject *entry)
{
    Py_ssize_t n = PyTuple_GET_SIZE(d->entries);

    for (Py_ssize_t i = 0; i < n; i++) {
        if (PyTuple_GET_ITEM(d->entries, i) == entry) {
            PyObject *head = PyTuple_GetSlice(d->entries, 0, i);
            PyObject *tail = PyTuple_GetSlice(d->entries, i + 1, n);
            PyObject *both = head && tail ? PySequence_Concat(head, tail) : NULL;
            Py_XDECREF(head);
            Py_XDECREF(tail);
            if (both == NULL) {
                return NULL;
            }
            Py_SETREF(d->entries, both);
            Py_RETURN_NONE;
        }
    }
    PyErr_SetString(PyExc_ValueError, "no such entry");
    return NULL;
}

static PyObject *
dispatcher_clear_entries(TwDispatcher *d, PyObject *unused)
{
    PyObject *none = PyTuple_New(0);

    if (none == NULL) {
        return NULL;
    }
    Py_SETREF(d->entries, none);
    Py_RETURN_NONE;
}

/* A copy of a function is the function. */
static PyObject *
dispatcher_same(TwDispatcher *d, PyObject *Py_UNUSED(memo))
{
    return Py_NewRef(d);
}

static PyMethodDef dispatcher_methods[] = {
    {"__copy__", (PyCFunction)dispatcher_same, METH_NOARGS, NULL},
    {"__deepcopy__", (PyCFunction)dispatcher_same, METH_O, NULL},
    {"add", (PyCFunction)dispatcher_add, METH_O, "add(entry): try it after those already there."},
    {"remove", (PyCFunction)dispatcher_remove, METH_O, "remove(entry)"},
    {"clear", (PyCFunction)dispatcher_clear_entries, METH_NOARGS, "clear(): drop all entries."},
    {NULL},
};

static PyMemberDef dispatcher_members[] = {
    {"fn", T_OBJECT, offsetof(TwDispatcher, fn), READONLY, "The Python function."},
    {"miss", T_OBJECT, offsetof(TwDispatcher, miss), READONLY},
    {"entries", T_OBJECT, offsetof(TwDispatcher, entries), READONLY, "In the order of trial."},
    {"code", T_OBJECT, offsetof(TwDispatcher, code), READONLY, "What the entries were made for."},
    {"n_flat", T_PYSSIZET, offsetof(TwDispatcher, n_flat), READONLY},
    {"enabled", T_BOOL, offsetof(TwDispatcher, enabled), 0, "False: every call runs fn."},
    {"hits", T_ULONGLONG, offsetof(TwDispatcher, hits), READONLY, "Calls that an entry answered."},
    {NULL},
};

/* What a function has and inspect asks for: whether it is a coroutine function, its defaults. */
static PyObject *
part_get(TwDispatcher *d, void *name)
{
    return PyObject_GetAttrString(d->fn != NULL ? d->fn : Py_None, name);
}

static int
part_set(TwDispatcher *d, PyObject *value, void *name)
{
    return PyObject_SetAttrString(d->fn != NULL ? d->fn : Py_None, name, value);
}

static PyGetSetDef dispatcher_getset[] = {
    {"__dict__", PyObject_GenericGetDict, PyObject_GenericSetDict},
    {"__code__", (getter)part_get, (setter)part_set, NULL, "__code__"},
    {"__defaults__", (getter)part_get, (setter)part_set, NULL, "__defaults__"},
    {"__kwdefaults__", (getter)part_get, (setter)part_set, NULL, "__kwdefaults__"},
    {"__closure__", (getter)part_get, NULL, NULL, "__closure__"},
    {"__globals__", (getter)part_get, NULL, NULL, "__globals__"},
    {NULL},
};

PyTypeObject TwDispatcher_Type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "torchweld.frame._frame.Dispatcher",
    .tp_doc = "Calls compiled code in place of a Python function.",
    .tp_basicsize = sizeof(TwDispatcher),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL
        | Py_TPFLAGS_METHOD_DESCRIPTOR,
    .tp_new = dispatcher_new,
    .tp_dealloc = (destructor)dispatcher_dealloc,
    .tp_traverse = (traverseproc)dispatcher_traverse,
    .tp_clear = (inquiry)dispatcher_clear,
    .tp_call = PyVectorcall_Call,
    .tp_descr_get = dispatcher_get,
    .tp_repr = (reprfunc)dispatcher_repr,
    .tp_methods = dispatcher_methods,
    .tp_members = dispatcher_members,
    .tp_getset = dispatcher_getset,
    .tp_dictoffset = offsetof(TwDispatcher, dict),
    .tp_weaklistoffset = offsetof(TwDispatcher, weakrefs),
    .tp_vectorcall_offset = offsetof(TwDispatcher, vectorcall),
};
