/* What each guard instruction does. An access or a check that cannot be made fails; no exception
   leaves this file. In a run that is not `owning` nothing here may run Python code or allocate: an
   instruction that finds it would have to answers TW_RESTART, and the run starts again owning.
   REDUCE allocates, but keeps the garbage collector from running. */
#include "_frame.h"

static inline int
put_borrowed(TwRun *run, const TwInstr *in, PyObject *value)
{
    if (value == NULL) {
        return TW_FAIL;
    }
    run->regs[in->dst] = value;
    if (run->owning) {
        run->owned[run->n_owned++] = Py_NewRef(value);
    }
    return TW_OK;
}

/* In owning runs, and for REDUCE. */
static int
put_new(TwRun *run, const TwInstr *in, PyObject *value)
{
    if (value == NULL) {
        PyErr_Clear();
        return TW_FAIL;
    }
    run->regs[in->dst] = value;
    run->owned[run->n_owned++] = value;
    return TW_OK;
}

static inline int
verdict(bool passed)
{
    return passed ? TW_OK : TW_FAIL;
}

/* --- accesses ---------------------------------------------------------------------------- */

static int
op_arg(TwRun *run, const TwInstr *in)
{
    return put_borrowed(run, in, run->args[in->aux]);
}

static int
op_const(TwRun *run, const TwInstr *in)
{
    return put_borrowed(run, in, in->obj);
}

/* TW_OK with `*value` NULL: the key is not there. */
static int
look_up(TwRun *run, PyObject *dict, PyObject *key, PyObject **value)
{
    if (!PyDict_Check(dict)) {
        return TW_FAIL;
    }
    if (!run->owning && !(PyUnicode_CheckExact(key) && tw_dict_has_text_keys(dict))) {
        return TW_RESTART;
    }
    *value = PyDict_GetItemWithError(dict, key);
    if (*value == NULL && PyErr_Occurred()) {
        PyErr_Clear();
        return TW_FAIL;
    }
    return TW_OK;
}

static int
op_item_dict(TwRun *run, const TwInstr *in)
{
    PyObject *value = NULL;
    int status = look_up(run, run->regs[in->src], in->obj, &value);

    return status == TW_OK ? put_borrowed(run, in, value) : status;
}

/* NULL without an exception if the key is not there. Tensors are hashed by their address, which
   needs no Python code; a key that is hashed otherwise is not found. */
static PyObject *
look_up_address(PyObject *dict, PyObject *key)
{
    PyObject *value = NULL;

    if (PyDict_Check(dict)) {
        value = _PyDict_GetItem_KnownHash(dict, key, (Py_hash_t)(uintptr_t)key);
        if (value == NULL) {
            PyErr_Clear();
        }
    }
    return value;
}

static int
op_item_keyed(TwRun *run, const TwInstr *in)
{
    return put_borrowed(run, in, look_up_address(run->regs[in->src], run->regs[in->aux]));
}

static int
op_lacks_keyed(TwRun *run, const TwInstr *in)
{
    PyObject *dict = run->regs[in->src];

    return verdict(PyDict_Check(dict) && look_up_address(dict, run->regs[in->aux]) == NULL);
}

static int
op_item_seq(TwRun *run, const TwInstr *in)
{
    PyObject *seq = run->regs[in->src];
    bool is_tuple = PyTuple_Check(seq);

    if (!is_tuple && !PyList_Check(seq)) {
        return TW_FAIL;
    }
    Py_ssize_t n = is_tuple ? PyTuple_GET_SIZE(seq) : PyList_GET_SIZE(seq);
    Py_ssize_t at = in->aux < 0 ? in->aux + n : in->aux;    /* from the end, as in Python */
    if (at < 0 || at >= n) {
        return TW_FAIL;
    }
    return put_borrowed(run, in, is_tuple ? PyTuple_GET_ITEM(seq, at) : PyList_GET_ITEM(seq, at));
}

static int
op_getattr(TwRun *run, const TwInstr *in)
{
    PyObject *obj = run->regs[in->src];
    TwAttr attr = tw_attr_read(obj, in->obj);

    if (attr.value != NULL) {
        return put_borrowed(run, in, attr.value);
    }
    return run->owning ? put_new(run, in, PyObject_GetAttr(obj, in->obj)) : TW_RESTART;
}

/* Makes the `__dict__` of an object that has none yet. CPython 3.11 may collect garbage on that
   allocation, and finalizers are Python code: not while registers are borrowed. */
static PyObject *
make_instance_dict(PyObject *obj)
{
    int collecting = PyGC_Disable();
    PyObject *dict = PyObject_GenericGetDict(obj, NULL);

    if (collecting) {
        PyGC_Enable();
    }
    if (dict == NULL) {
        PyErr_Clear();
        return NULL;
    }
    Py_DECREF(dict);    /* the object holds it */
    return dict;
}

static PyObject *
instance_dict(PyObject *obj)
{
    PyTypeObject *type = Py_TYPE(obj);
    PyObject *dict = NULL;

    if (PyType_Check(obj)) {
        return tw_class_dict((PyTypeObject *)obj);
    }
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        dict = tw_managed_dict_peek(obj);
    }
    else if (type->tp_dictoffset > 0) {
        dict = *(PyObject **)((char *)obj + type->tp_dictoffset);
    }
    else if (type->tp_dictoffset == 0) {
        return NULL;
    }
    return dict != NULL ? dict : make_instance_dict(obj);
}

const void *
tw_instance_dict_word(PyObject *obj)
{
    PyTypeObject *type = Py_TYPE(obj);

    if (PyType_Check(obj)) {
        return NULL;
    }
    if (type->tp_flags & Py_TPFLAGS_MANAGED_DICT) {
        return tw_managed_dict_word(obj);
    }
    return type->tp_dictoffset > 0 ? (char *)obj + type->tp_dictoffset : NULL;
}

static int
op_instance_dict(TwRun *run, const TwInstr *in)
{
    return put_borrowed(run, in, instance_dict(run->regs[in->src]));
}

static int
op_cell(TwRun *run, const TwInstr *in)
{
    PyObject *cell = run->regs[in->src];

    return PyCell_Check(cell) ? put_borrowed(run, in, PyCell_GET(cell)) : TW_FAIL;
}

static int
op_closure(TwRun *run, const TwInstr *in)
{
    PyObject *fn = run->regs[in->src];
    PyObject *cells = PyFunction_Check(fn) ? PyFunction_GET_CLOSURE(fn) : NULL;

    if (cells == NULL || in->aux >= PyTuple_GET_SIZE(cells)) {
        return TW_FAIL;
    }
    return put_borrowed(run, in, PyCell_GET(PyTuple_GET_ITEM(cells, in->aux)));
}

static int
op_type_of(TwRun *run, const TwInstr *in)
{
    return put_borrowed(run, in, (PyObject *)Py_TYPE(run->regs[in->src]));
}

static int
op_call0(TwRun *run, const TwInstr *in)
{
    return put_new(run, in, PyObject_CallNoArgs(in->obj));
}

static int
op_apply(TwRun *run, const TwInstr *in)
{
    return put_new(run, in, PyObject_CallOneArg(in->obj, run->regs[in->src]));
}

/* x.__reduce__() of an iterator of a built-in type, whose C code runs no Python code: the garbage
   collector, which might, waits. The run holds what it gives, owning or not. */
static int
op_reduce(TwRun *run, const TwInstr *in)
{
    PyObject *x = run->regs[in->src], *state;
    int collects;

    if ((Py_TYPE(x)->tp_flags & Py_TPFLAGS_HEAPTYPE) || Py_TYPE(x)->tp_iternext == NULL) {
        return TW_FAIL;
    }
    collects = PyGC_Disable();
    state = PyObject_CallMethod(x, "__reduce__", NULL);
    if (collects) {
        PyGC_Enable();
    }
    return put_new(run, in, state);
}

/* --- checks ------------------------------------------------------------------------------ */

static int
op_is(TwRun *run, const TwInstr *in)
{
    return verdict(run->regs[in->src] == in->obj);
}

static int
op_is_not(TwRun *run, const TwInstr *in)
{
    return verdict(run->regs[in->src] != in->obj);
}

static int
op_type(TwRun *run, const TwInstr *in)
{
    return verdict((PyObject *)Py_TYPE(run->regs[in->src]) == in->obj);
}

static int
op_eq(TwRun *run, const TwInstr *in)
{
    return verdict(tw_const_equal(run->regs[in->src], in->obj));
}

const void *
tw_length_word(PyObject *x, Py_ssize_t *length)
{
    const Py_ssize_t *at = NULL;

    if (PyList_Check(x) || PyTuple_Check(x)) {
        at = &((PyVarObject *)x)->ob_size;
    }
    else if (PyDict_Check(x)) {
        at = &((PyDictObject *)x)->ma_used;
    }
    else if (PyAnySet_Check(x)) {
        at = &((PySetObject *)x)->used;
    }
    else if (PyUnicode_Check(x)) {
        at = &((PyASCIIObject *)x)->length;
    }
    *length = at != NULL ? *at : -1;
    return at;
}

static int
op_len(TwRun *run, const TwInstr *in)
{
    Py_ssize_t length;

    (void)tw_length_word(run->regs[in->src], &length);
    return verdict(length == in->aux);
}

static int
op_has_key(TwRun *run, const TwInstr *in)
{
    PyObject *value = NULL;
    int status = look_up(run, run->regs[in->src], in->obj, &value);

    return status == TW_OK ? verdict(value != NULL) : status;
}

static int
op_lacks_key(TwRun *run, const TwInstr *in)
{
    PyObject *value = NULL;
    int status = look_up(run, run->regs[in->src], in->obj, &value);

    return status == TW_OK ? verdict(value == NULL) : status;
}

static bool
plain_keys_are(PyObject *dict, PyObject *keys)
{
    Py_ssize_t pos = 0, i = 0;
    PyObject *key;

    while (PyDict_Next(dict, &pos, &key, NULL)) {
        if (!tw_const_equal(key, PyTuple_GET_ITEM(keys, i))) {
            return false;
        }
        i++;
    }
    return true;
}

/* An OrderedDict has an order of its own, which move_to_end changes and the dict does not show. */
static bool
ordered_keys_are(PyObject *dict, PyObject *keys)
{
    PyObject *it = PyODict_Type.tp_iter(dict);
    Py_ssize_t i = 0;
    bool same = it != NULL;

    while (same) {
        PyObject *key = PyIter_Next(it);
        if (key == NULL) {
            break;
        }
        same = i < PyTuple_GET_SIZE(keys) && tw_const_equal(key, PyTuple_GET_ITEM(keys, i));
        i++;
        Py_DECREF(key);
    }
    same = same && !PyErr_Occurred() && i == PyTuple_GET_SIZE(keys);
    PyErr_Clear();
    Py_XDECREF(it);
    return same;
}

static int
op_keys(TwRun *run, const TwInstr *in)
{
    PyObject *dict = run->regs[in->src];

    if (!PyDict_Check(dict) || PyDict_GET_SIZE(dict) != PyTuple_GET_SIZE(in->obj)) {
        return TW_FAIL;
    }
    if (PyTuple_GET_SIZE(in->obj) == 0) {
        return TW_OK;
    }
    if (!PyODict_Check(dict)) {
        return verdict(plain_keys_are(dict, in->obj));
    }
    return run->owning ? verdict(ordered_keys_are(dict, in->obj)) : TW_RESTART;
}

static int
op_same(TwRun *run, const TwInstr *in)
{
    return verdict(run->regs[in->src] == run->regs[in->aux]);
}

static int
op_distinct(TwRun *run, const TwInstr *in)
{
    return verdict(run->regs[in->src] != run->regs[in->aux]);
}

/* u.regs: the number of registers, the number of slots (a power of 2), the registers, the slots. */
static int
op_all_distinct(TwRun *run, const TwInstr *in)
{
    int32_t n = in->u.regs[0], mask = in->u.regs[1] - 1;
    const int32_t *regs = in->u.regs + 2;
    int32_t *slots = in->u.regs + 2 + n;

    memset(slots, 0xff, sizeof(*slots) * (size_t)(mask + 1));
    for (int32_t i = 0; i < n; i++) {
        PyObject *x = run->regs[regs[i]];
        uintptr_t hash = ((uintptr_t)x >> 4) ^ ((uintptr_t)x >> 13);
        int32_t at = (int32_t)(hash & (uintptr_t)mask);
        while (slots[at] >= 0) {
            if (run->regs[slots[at]] == x) {
                return TW_FAIL;
            }
            at = (at + 1) & mask;
        }
        slots[at] = regs[i];
    }
    return TW_OK;
}

static int
op_tensor(TwRun *run, const TwInstr *in)
{
    if (!run->owning && tw_tensor_runs_python(in->u.tensor)) {
        return TW_RESTART;
    }
    return verdict(tw_tensor_matches(in->u.tensor, run->regs[in->src]));
}

static int
op_predicate(TwRun *run, const TwInstr *in)
{
    PyObject *answer = PyObject_CallOneArg(in->obj, run->regs[in->src]);
    int truth = answer == NULL ? -1 : PyObject_IsTrue(answer);

    Py_XDECREF(answer);
    if (truth < 0) {
        PyErr_Clear();
    }
    return verdict(truth > 0);
}

static int
op_int_range(TwRun *run, const TwInstr *in)
{
    PyObject *x = run->regs[in->src];
    int overflow = 0;
    long long value;

    if (!PyLong_CheckExact(x)) {
        return TW_FAIL;
    }
    value = PyLong_AsLongLongAndOverflow(x, &overflow);
    if (overflow != 0) {
        return TW_FAIL;
    }
    return verdict(in->u.range[0] <= value && value <= in->u.range[1]);
}

static int
op_type_version(TwRun *run, const TwInstr *in)
{
    if (in->src >= 0 && run->regs[in->src] != in->obj) {
        return TW_FAIL;
    }
    return verdict(tw_type_tag((PyTypeObject *)in->obj) == in->u.tag);
}

/* Most functions that tell a state are C functions without arguments. */
static inline PyObject *
ask_state(PyObject *fn)
{
    if (PyCFunction_CheckExact(fn) && PyCFunction_GET_FLAGS(fn) == METH_NOARGS) {
        return PyCFunction_GET_FUNCTION(fn)(PyCFunction_GET_SELF(fn), NULL);
    }
    return PyObject_CallNoArgs(fn);
}

/* `obj` is (function, result). */
static int
op_state(TwRun *run, const TwInstr *in)
{
    PyObject *answer = ask_state(PyTuple_GET_ITEM(in->obj, 0));
    bool same;

    if (answer == NULL) {
        PyErr_Clear();
        return TW_FAIL;
    }
    same = tw_const_equal(answer, PyTuple_GET_ITEM(in->obj, 1));
    Py_DECREF(answer);
    return verdict(same);
}

/* --- the dict that did not change --------------------------------------------------------- */

/* What an unchanged dict says nothing about: the class of an item, which can be assigned. */
static int
recheck(TwRun *run, const TwBlock *b)
{
    for (int i = 0; i < b->n_rechecks; i++) {
        const TwInstr *in = &run->program->instrs[b->rechecks[i]];
        int status = TW_OPS[in->op].run(run, in);
        if (status != TW_OK) {
            run->pc = b->rechecks[i];
            return status;
        }
    }
    return TW_OK;
}

static void
hold_block(TwRun *run, const TwBlock *b)
{
    for (Py_ssize_t i = b->first; i < b->first + b->count; i++) {
        const TwInstr *in = &run->program->instrs[i];
        if (TW_OPS[in->op].needs & TW_DST) {
            run->owned[run->n_owned++] = Py_NewRef(run->regs[in->dst]);
        }
    }
}

static int
op_dict_unchanged(TwRun *run, const TwInstr *in)
{
    TwBlock *b = in->u.block;
    PyObject *dict = run->regs[in->src];

    if (!PyDict_Check(dict)) {
        return TW_FAIL;
    }
    if (run->is_private || b->demoted || (b->orders && PyODict_Check(dict))) {
        return TW_OK;
    }
    if (b->version != 0 && tw_dict_version(b->watch, dict) == b->version) {
        if (run->owning) {
            hold_block(run, b);
        }
        b->fires = 0;
        run->pc += b->count;
        return b->n_rechecks ? recheck(run, b) : TW_OK;
    }
    b->version = 0;     /* the registers of the block are about to be overwritten */
    if (b->of_instance && tw_inline_stores_are_silent()) {
        return TW_OK;
    }
    b->pending = tw_dict_follow(&b->watch, dict);
    run->dirty |= b->pending != 0;
    return TW_OK;
}

const TwOp TW_OPS[TW_N_OPS] = {
    [TW_OP_ARG] = {"ARG", op_arg, TW_DST},
    [TW_OP_CONST] = {"CONST", op_const, TW_DST | TW_OBJ},
    [TW_OP_ITEM_DICT] = {"ITEM_DICT", op_item_dict, TW_SRC | TW_DST | TW_OBJ | TW_OF_DICT},
    [TW_OP_ITEM_SEQ] = {"ITEM_SEQ", op_item_seq, TW_SRC | TW_DST},
    [TW_OP_GETATTR] = {"GETATTR", op_getattr, TW_SRC | TW_DST | TW_OBJ},
    [TW_OP_INSTANCE_DICT] = {"INSTANCE_DICT", op_instance_dict, TW_SRC | TW_DST},
    [TW_OP_CELL] = {"CELL", op_cell, TW_SRC | TW_DST},
    [TW_OP_CLOSURE] = {"CLOSURE", op_closure, TW_SRC | TW_DST},
    [TW_OP_TYPE_OF] = {"TYPE_OF", op_type_of, TW_SRC | TW_DST},
    [TW_OP_CALL0] = {"CALL0", op_call0, TW_DST | TW_OBJ | TW_PYTHON},
    [TW_OP_IS] = {"IS", op_is, TW_SRC | TW_OBJ | TW_OF_ITEM},
    [TW_OP_IS_NOT] = {"IS_NOT", op_is_not, TW_SRC | TW_OBJ | TW_OF_ITEM},
    [TW_OP_TYPE] = {"TYPE", op_type, TW_SRC | TW_OBJ | TW_OF_ITEM},
    [TW_OP_EQ] = {"EQ", op_eq, TW_SRC | TW_OBJ | TW_OF_ITEM},
    [TW_OP_LEN] = {"LEN", op_len, TW_SRC | TW_OF_DICT},
    [TW_OP_HAS_KEY] = {"HAS_KEY", op_has_key, TW_SRC | TW_OBJ | TW_OF_DICT},
    [TW_OP_LACKS_KEY] = {"LACKS_KEY", op_lacks_key, TW_SRC | TW_OBJ | TW_OF_DICT},
    [TW_OP_KEYS] = {"KEYS", op_keys, TW_SRC | TW_OBJ | TW_OF_DICT},
    [TW_OP_SAME] = {"SAME", op_same, TW_SRC | TW_AUX_REG},
    [TW_OP_DISTINCT] = {"DISTINCT", op_distinct, TW_SRC | TW_AUX_REG},
    [TW_OP_TENSOR] = {"TENSOR", op_tensor, TW_SRC | TW_OBJ},
    [TW_OP_PREDICATE] = {"PREDICATE", op_predicate, TW_SRC | TW_OBJ | TW_PYTHON},
    [TW_OP_INT_RANGE] = {"INT_RANGE", op_int_range, TW_SRC | TW_OBJ},
    [TW_OP_TYPE_VERSION] = {"TYPE_VERSION", op_type_version, TW_OBJ},
    [TW_OP_DICT_UNCHANGED] = {"DICT_UNCHANGED", op_dict_unchanged, TW_SRC},
    [TW_OP_ALL_DISTINCT] = {"ALL_DISTINCT", op_all_distinct, TW_OBJ},
    [TW_OP_STATE] = {"STATE", op_state, TW_OBJ | TW_PYTHON},
    [TW_OP_APPLY] = {"APPLY", op_apply, TW_SRC | TW_DST | TW_OBJ | TW_PYTHON},
    [TW_OP_SIZES] = {"SIZES", tw_op_sizes, TW_OBJ},
    [TW_OP_ITEM_KEYED] = {"ITEM_KEYED", op_item_keyed, TW_SRC | TW_DST | TW_AUX_REG},
    [TW_OP_LACKS_KEYED] = {"LACKS_KEYED", op_lacks_keyed, TW_SRC | TW_AUX_REG},
    [TW_OP_SAME_VALUES] = {"SAME_VALUES", tw_op_same_values, TW_OBJ},
    [TW_OP_REDUCE] = {"REDUCE", op_reduce, TW_SRC | TW_DST},
};
