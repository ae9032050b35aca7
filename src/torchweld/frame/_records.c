/* What the hook knows of a code object, kept in its co_extra: nothing, that it is skipped (alone,
   or quietly: with all that it calls), or entries. The garbage collector does not see it: entries that hold their own code alive are freed
   by detach(), or are to be given as weak references. */
#include "_frame.h"

static Py_ssize_t extra_index = -1;
static TwRecord *records;
TwRecord tw_quiet;

/* A skip that a callback asked for lasts until detach_all(): it is stored as an odd number that
   tells in which epoch it was made. TW_SKIP itself, also odd, lasts for ever. */
static uintptr_t epoch = 1;

static bool
is_skip(void *extra)
{
    return ((uintptr_t)extra & 1) != 0;
}

static void
free_extra(void *extra)
{
    TwRecord *r = extra;

    if (extra == NULL || is_skip(extra) || extra == TW_QUIET) {
        return;
    }
    *r->back = r->next;
    if (r->next != NULL) {
        r->next->back = r->back;
    }
    Py_DECREF(r->entries);
    PyMem_Free(r);
}

TwRecord *
tw_record_get(PyCodeObject *code)
{
    void *extra = NULL;

    if (tw_extra_get((PyObject *)code, extra_index, &extra) < 0) {
        PyErr_Clear();
        return NULL;
    }
    if (is_skip(extra) && extra != TW_SKIP) {
        return (uintptr_t)extra >> 1 == epoch ? TW_SKIP : NULL;
    }
    return extra;
}

/* CPython frees the record that is replaced while the code still points to it. Its entries are kept
   until that is over, since freeing them may run Python code. */
static int
set_extra(PyCodeObject *code, void *extra)
{
    TwRecord *old = tw_record_get(code);
    PyObject *entries = NULL;
    int status;

    if (old != NULL && old != TW_SKIP && old != TW_QUIET) {
        entries = Py_NewRef(old->entries);
    }
    status = tw_extra_set((PyObject *)code, extra_index, extra);
    if (status < 0) {
        free_extra(extra);
    }
    Py_XDECREF(entries);
    return status;
}

int
tw_record_skip(PyCodeObject *code)
{
    return set_extra(code, (void *)(epoch << 1 | 1));
}

/* Takes over `entries`. */
int
tw_record_set(PyCodeObject *code, PyObject *entries)
{
    TwRecord *r = PyMem_Calloc(1, sizeof(*r));

    if (r == NULL) {
        Py_DECREF(entries);
        PyErr_NoMemory();
        return -1;
    }
    r->entries = entries;
    r->next = records;
    r->back = &records;
    if (r->next != NULL) {
        r->next->back = &r->next;
    }
    records = r;
    return set_extra(code, r);
}

bool
tw_any_alive(PyObject *entries)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        PyObject *item = PyTuple_GET_ITEM(entries, i);
        PyObject *obj = Py_IS_TYPE(item, &TwEntry_Type) ? Py_NewRef(item) : tw_weakref_get(item);
        Py_XDECREF(obj);
        if (obj != NULL) {
            return true;
        }
    }
    return false;
}

static bool
is_entry(PyObject *item)
{
    PyObject *obj;
    bool ok;

    if (!PyWeakref_CheckRef(item)) {
        return Py_IS_TYPE(item, &TwEntry_Type);
    }
    obj = tw_weakref_get(item);
    ok = obj == NULL || Py_IS_TYPE(obj, &TwEntry_Type);
    Py_XDECREF(obj);
    return ok;
}

/* A tuple of entries, or NULL with an exception. `answer` is consumed. */
PyObject *
tw_entries_of(PyObject *answer)
{
    PyObject *entries = PySequence_Tuple(answer);

    Py_DECREF(answer);
    for (Py_ssize_t i = 0; entries != NULL && i < PyTuple_GET_SIZE(entries); i++) {
        if (!is_entry(PyTuple_GET_ITEM(entries, i))) {
            PyErr_SetString(PyExc_TypeError, "the frame callback must return entries or None");
            Py_CLEAR(entries);
        }
    }
    return entries;
}

int
tw_records_init(void)
{
    extra_index = tw_extra_request(free_extra);
    if (extra_index < 0) {
        PyErr_SetString(PyExc_ImportError, "CPython has no co_extra slot left");
        return -1;
    }
    return 0;
}

/* --- from Python ------------------------------------------------------------------------------ */

static bool
check_code(PyObject *code)
{
    if (PyCode_Check(code)) {
        return true;
    }
    PyErr_SetString(PyExc_TypeError, "a code object was expected");
    return false;
}

PyObject *
tw_set_skip(PyObject *module, PyObject *code)
{
    if (!check_code(code) || set_extra((PyCodeObject *)code, TW_SKIP) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
tw_set_quiet(PyObject *module, PyObject *code)
{
    if (!check_code(code) || set_extra((PyCodeObject *)code, TW_QUIET) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
tw_attach(PyObject *module, PyObject *args)
{
    PyObject *code, *entries;

    if (!PyArg_ParseTuple(args, "O!O:attach", &PyCode_Type, &code, &entries)) {
        return NULL;
    }
    entries = tw_entries_of(Py_NewRef(entries));
    if (entries == NULL || tw_record_set((PyCodeObject *)code, entries) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

PyObject *
tw_detach(PyObject *module, PyObject *code)
{
    if (!check_code(code) || set_extra((PyCodeObject *)code, NULL) < 0) {
        return NULL;
    }
    Py_RETURN_NONE;
}

/* Empties every record; the code objects themselves cannot be found from here. */
PyObject *
tw_detach_all(PyObject *module, PyObject *unused)
{
    PyObject *old = PyList_New(0), *none = PyTuple_New(0);
    bool ok = old != NULL && none != NULL;

    epoch++;
    for (TwRecord *r = records; ok && r != NULL; r = r->next) {
        ok = PyList_Append(old, r->entries) == 0;
    }
    for (TwRecord *r = records; ok && r != NULL; r = r->next) {
        Py_DECREF(r->entries);  /* `old` holds it: nothing is freed while we walk */
        r->entries = Py_NewRef(none);
        r->settled = false;
    }
    Py_XDECREF(none);
    Py_XDECREF(old);
    return ok ? Py_NewRef(Py_None) : NULL;
}

PyObject *
tw_code_state(PyObject *module, PyObject *code)
{
    TwRecord *r;

    if (!check_code(code)) {
        return NULL;
    }
    r = tw_record_get((PyCodeObject *)code);
    if (r == TW_SKIP || r == TW_QUIET) {
        return PyUnicode_FromString(r == TW_SKIP ? "skip" : "quiet");
    }
    return r == NULL ? Py_NewRef(Py_None) : Py_NewRef(r->entries);
}

