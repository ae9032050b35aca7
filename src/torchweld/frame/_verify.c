/* Reads the instructions of a program and refuses what could not be run safely. */
#include "_tensor.h"

static int
refuse(Py_ssize_t at, const char *why)
{
    PyErr_Format(PyExc_ValueError, "instruction %zd: %s", at, why);
    return -1;
}

static int
check_registers(const TwProgram *p, Py_ssize_t at)
{
    const TwInstr *in = &p->instrs[at];
    unsigned int needs = TW_OPS[in->op].needs;

    if (in->src >= p->n_regs || in->dst >= p->n_regs) {
        return refuse(at, "register out of range");
    }
    if ((needs & TW_SRC) && (in->src < 0 || !p->written[in->src])) {
        return refuse(at, "src is read before it is written");
    }
    if (in->src >= 0 && !p->written[in->src]) {
        return refuse(at, "src is read before it is written");
    }
    if ((needs & TW_AUX_REG)
        && (in->aux < 0 || in->aux >= p->n_regs || !p->written[in->aux])) {
        return refuse(at, "aux is not a register that was written");
    }
    if ((needs & TW_DST) && (in->dst < 0 || p->written[in->dst])) {
        return refuse(at, "dst must be a register that nothing else writes");
    }
    return 0;
}

bool
tw_class_can_change(PyObject *type)
{
    return (((PyTypeObject *)type)->tp_flags & Py_TPFLAGS_HEAPTYPE)
        || PyType_IsSubtype((PyTypeObject *)type, &PyModule_Type);
}

static int
set_range(Py_ssize_t at, TwInstr *in)
{
    if (!PyArg_ParseTuple(in->obj, "LL:INT_RANGE", &in->u.range[0], &in->u.range[1])) {
        return -1;
    }
    return 0;
}

static int
set_state(Py_ssize_t at, TwInstr *in)
{
    PyObject *fn, *expected;

    if (!PyTuple_Check(in->obj) || !PyArg_ParseTuple(in->obj, "OO:STATE", &fn, &expected)) {
        PyErr_Clear();
        return refuse(at, "obj is not (callable, result)");
    }
    return PyCallable_Check(fn) ? 0 : refuse(at, "obj is not (callable, result)");
}

int
tw_set_type_tag(Py_ssize_t at, TwInstr *in)
{
    PyObject *name = PyUnicode_InternFromString("__doc__");

    if (name == NULL) {
        return -1;
    }
    in->u.tag = tw_type_tag_assign((PyTypeObject *)in->obj, name);
    Py_DECREF(name);
    return in->u.tag != 0 ? 0 : refuse(at, "CPython gives this class no version tag");
}

static int
set_distinct(const TwProgram *p, Py_ssize_t at, TwInstr *in)
{
    Py_ssize_t n = PyTuple_GET_SIZE(in->obj);
    size_t n_slots = 4;

    while (n_slots < 2 * (size_t)n) {
        n_slots *= 2;
    }
    in->u.regs = PyMem_Calloc(2 + (size_t)n + n_slots, sizeof(int32_t));
    if (in->u.regs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    in->u.regs[0] = (int32_t)n;
    in->u.regs[1] = (int32_t)n_slots;
    for (Py_ssize_t i = 0; i < n; i++) {
        long reg = PyLong_AsLong(PyTuple_GET_ITEM(in->obj, i));
        if (reg == -1 && PyErr_Occurred()) {
            return -1;
        }
        if (reg < 0 || reg >= p->n_regs || !p->written[reg]) {
            return refuse(at, "obj names a register that was not written");
        }
        in->u.regs[2 + i] = (int32_t)reg;
    }
    return 0;
}

/* What obj and aux must be, and what is worked out of them. */
static int
check_operands(TwProgram *p, Py_ssize_t at)
{
    TwInstr *in = &p->instrs[at];

    switch (in->op) {
    case TW_OP_ARG:
        return in->aux >= 0 && in->aux < p->n_args ? 0 : refuse(at, "no such argument");
    case TW_OP_CLOSURE:
    case TW_OP_LEN:
        return in->aux >= 0 ? 0 : refuse(at, "aux is negative");
    case TW_OP_TYPE:
        return PyType_Check(in->obj) ? 0 : refuse(at, "obj is not a class");
    case TW_OP_GETATTR:
        if (!PyUnicode_CheckExact(in->obj)) {
            return refuse(at, "obj is not a str");
        }
        PyUnicode_InternInPlace(&in->obj);
        return 0;
    case TW_OP_EQ:
        return tw_const_is_supported(in->obj) ? 0 : refuse(at, "EQ cannot compare such an obj");
    case TW_OP_KEYS:
        return PyTuple_CheckExact(in->obj) ? 0 : refuse(at, "obj is not a tuple");
    case TW_OP_CALL0:
    case TW_OP_PREDICATE:
    case TW_OP_APPLY:
        return PyCallable_Check(in->obj) ? 0 : refuse(at, "obj is not callable");
    case TW_OP_TENSOR:
        in->u.tensor = tw_tensor_spec_new(in->obj);
        return in->u.tensor != NULL ? 0 : -1;
    case TW_OP_SIZES:
        in->u.sizes = tw_sizes_new(in->obj, p->written, p->n_regs);
        return in->u.sizes != NULL ? 0 : -1;
    case TW_OP_INT_RANGE:
        return PyTuple_Check(in->obj) ? set_range(at, in) : refuse(at, "obj is not (low, high)");
    case TW_OP_TYPE_VERSION:
        return PyType_Check(in->obj) ? tw_set_type_tag(at, in) : refuse(at, "obj is not a class");
    case TW_OP_STATE:
        return set_state(at, in);
    case TW_OP_SAME_VALUES:
        if (in->aux <= 0 || tw_tensor_base() == NULL) {
            return refuse(at, "aux is no number of bytes, or torch_init was not called");
        }
        /* fall through */
    case TW_OP_ALL_DISTINCT:
        return PyTuple_Check(in->obj) ? set_distinct(p, at, in) : refuse(at, "obj is not a tuple");
    default:
        return 0;
    }
}

/* An instruction of a block reads the block's dict, or checks what the block read out of it. */
static int
check_block_member(const TwProgram *p, TwBlock *b, Py_ssize_t at, int32_t dict, bool *in_block)
{
    const TwInstr *in = &p->instrs[at];
    unsigned int needs = TW_OPS[in->op].needs;

    if (!((needs & TW_OF_DICT) && in->src == dict)
        && !((needs & TW_OF_ITEM) && in->src >= 0 && in_block[in->src])) {
        return refuse(at, "an unchanged dict does not answer this, so it cannot be in its block");
    }
    if (needs & TW_DST) {
        in_block[in->dst] = true;
    }
    b->orders |= in->op == TW_OP_KEYS;
    if (in->op == TW_OP_TYPE && tw_class_can_change(in->obj)) {
        b->rechecks[b->n_rechecks++] = (int32_t)at;
    }
    return 0;
}

static bool
is_instance_dict(const TwProgram *p, int32_t reg)
{
    for (Py_ssize_t i = 0; i < p->n_instrs; i++) {
        if (p->instrs[i].op == TW_OP_INSTANCE_DICT && p->instrs[i].dst == reg) {
            return true;
        }
    }
    return false;
}

static int
make_block(TwProgram *p, Py_ssize_t at)
{
    TwInstr *in = &p->instrs[at];
    bool *in_block;
    TwBlock *b;
    int status = 0;

    if (in->aux < 0 || in->aux >= p->n_instrs - at) {
        return refuse(at, "the block ends after the program");
    }
    b = PyMem_Calloc(1, sizeof(*b));
    in_block = PyMem_Calloc((size_t)p->n_regs + 1, sizeof(bool));
    if (b != NULL) {
        in->u.block = b;
        p->blocks[p->n_blocks++] = b;
        b->rechecks = PyMem_Calloc((size_t)in->aux + 1, sizeof(int32_t));
    }
    if (b == NULL || in_block == NULL || b->rechecks == NULL) {
        PyMem_Free(in_block);
        PyErr_NoMemory();
        return -1;
    }
    b->first = at + 1;
    b->count = in->aux;
    b->of_instance = is_instance_dict(p, in->src);
    for (Py_ssize_t i = b->first; status == 0 && i < b->first + b->count; i++) {
        status = check_block_member(p, b, i, in->src, in_block);
    }
    PyMem_Free(in_block);
    return status;
}

static int
parse_instr(TwProgram *p, Py_ssize_t at, PyObject *item)
{
    TwInstr *in = &p->instrs[at];
    int op, dst, src;
    PyObject *obj, *aux;

    if (!PyTuple_Check(item)) {
        return refuse(at, "not a tuple");
    }
    if (!PyArg_ParseTuple(item, "iiiOO:instruction", &op, &dst, &src, &obj, &aux)) {
        return -1;
    }
    if (op < 0 || op >= TW_N_OPS) {
        return refuse(at, "unknown op");
    }
    in->op = (uint8_t)op;
    in->dst = dst;
    in->src = src;
    in->obj = Py_NewRef(obj);
    in->aux = aux == Py_None ? 0 : PyLong_AsSsize_t(aux);
    if (in->aux == -1 && PyErr_Occurred()) {
        return -1;
    }
    if (check_registers(p, at) < 0 || check_operands(p, at) < 0) {
        return -1;
    }
    if (op == TW_OP_PREDICATE) {
        p->kept[src] = true;
    }
    if (TW_OPS[op].needs & TW_DST) {
        p->written[dst] = true;
        p->n_writes++;
    }
    /* a snapshot that misses leaves what it holds to the run that follows */
    p->n_writes += op == TW_OP_REDUCE;
    if (op == TW_OP_STATE && p->n_states == at) {
        p->n_states++;          /* nothing is borrowed yet */
    }
    else {
        p->owning |= (TW_OPS[op].needs & TW_PYTHON) != 0;
    }
    return 0;
}

int
tw_program_fill(TwProgram *p, PyObject *items)
{
    p->n_instrs = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(items); i++) {
        p->n_instrs = i + 1;
        if (parse_instr(p, i, PyTuple_GET_ITEM(items, i)) < 0) {
            return -1;
        }
    }
    for (Py_ssize_t i = 0; i < p->n_instrs; i++) {
        if (p->instrs[i].op == TW_OP_DICT_UNCHANGED && make_block(p, i) < 0) {
            return -1;
        }
    }
    p->owned = PyMem_Calloc((size_t)p->n_writes + 1, sizeof(PyObject *));
    return p->owned != NULL ? tw_snapshot_init(p) : (PyErr_NoMemory(), -1);
}
