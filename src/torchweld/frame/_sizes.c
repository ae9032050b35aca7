/* Relations between sizes: a flat postfix program over sizes and strides of tensors, and ints.
   Floats that are rounded in it are on the stack by their bits. */
#include "_tensor.h"

#include <math.h>
#include <string.h>

/* The numbers are those of `program.Postfix`. */
enum {
    PUSH, LOAD, ADD, MUL, FLOORDIV, MOD, IS_ZERO, NOT_ZERO, AT_MOST_ZERO,
    F_ADD, F_SUB, F_MUL, F_DIV, F_POW,                                          /* of two */
    FLOAT, F_SQRT, F_LOG, F_LOG2, F_LOG10, F_EXP, TRUNC, FLOOR, CEIL, ROUND,    /* of one */
    N_CODES
};
#define LARGEST_FLOAT (1ll << 53)   /* of the integers that all are floats */
enum { SIZE, STRIDE, NUMBER, N_KINDS };
#define MAX_STACK 64

typedef struct {
    int32_t reg, kind, dim;
} Read;

struct TwSizes {
    int32_t n_reads, n_code;
    int64_t *code;              /* PUSH and LOAD are followed by their operand */
    Read reads[];
};

/* --- making ---------------------------------------------------------------------------------- */

static int
refuse(const char *why)
{
    PyErr_Format(PyExc_ValueError, "SIZES: %s", why);
    return -1;
}

/* Every path through the program must leave the stack empty: it is checked once. */
static int
check_code(const TwSizes *s)
{
    int depth = 0;

    for (int32_t i = 0; i < s->n_code; i++) {
        int64_t code = s->code[i];
        if (code < 0 || code >= N_CODES) {
            return refuse("unknown code");
        }
        if (code == PUSH || code == LOAD) {
            if (++i >= s->n_code || ++depth > MAX_STACK) {
                return refuse("no operand, or too deep");
            }
            if (code == LOAD && (s->code[i] < 0 || s->code[i] >= s->n_reads)) {
                return refuse("no such read");
            }
            continue;
        }
        if (depth < (code < IS_ZERO || (code >= F_ADD && code < FLOAT) ? 2 : 1)) {
            return refuse("too few operands");
        }
        depth -= code < FLOAT;
    }
    return depth == 0 ? 0 : refuse("operands are left");
}

static int
fill_reads(TwSizes *s, PyObject *reads, const bool *written, Py_ssize_t n_regs)
{
    for (int32_t i = 0; i < s->n_reads; i++) {
        Read *r = &s->reads[i];
        PyObject *item = PyTuple_GET_ITEM(reads, i);
        if (!PyTuple_Check(item)
            || !PyArg_ParseTuple(item, "iii:read", &r->reg, &r->kind, &r->dim)) {
            return PyErr_Occurred() ? -1 : refuse("a read is no tuple");
        }
        if (r->kind != NUMBER && tw_tensor_base() == NULL) {
            return refuse("torch_init must be called before tensors are read");
        }
        if (r->reg < 0 || r->reg >= n_regs || !written[r->reg] || r->kind < 0
            || r->kind >= N_KINDS || r->dim < 0) {
            return refuse("a read of what is not there");
        }
    }
    return 0;
}

TwSizes *
tw_sizes_new(PyObject *tuple, const bool *written, Py_ssize_t n_regs)
{
    PyObject *reads, *code;
    TwSizes *s;

    if (!PyTuple_Check(tuple)
        || !PyArg_ParseTuple(tuple, "O!O!:SIZES", &PyTuple_Type, &reads, &PyTuple_Type, &code)) {
        if (!PyErr_Occurred()) {
            refuse("obj is not (reads, code)");
        }
        return NULL;
    }
    s = PyMem_Calloc(1, sizeof(*s) + sizeof(Read) * (size_t)PyTuple_GET_SIZE(reads));
    if (s == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    s->n_reads = (int32_t)PyTuple_GET_SIZE(reads);
    s->n_code = (int32_t)PyTuple_GET_SIZE(code);
    s->code = PyMem_Calloc((size_t)s->n_code + 1, sizeof(int64_t));
    if (s->code == NULL) {
        PyErr_NoMemory();
    }
    for (int32_t i = 0; s->code != NULL && i < s->n_code && !PyErr_Occurred(); i++) {
        s->code[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(code, i));
    }
    if (PyErr_Occurred() || fill_reads(s, reads, written, n_regs) < 0 || check_code(s) < 0) {
        tw_sizes_free(s);
        return NULL;
    }
    return s;
}

void
tw_sizes_free(TwSizes *s)
{
    if (s != NULL) {
        PyMem_Free(s->code);
        PyMem_Free(s);
    }
}

/* --- running --------------------------------------------------------------------------------- */

static bool
read_number(PyObject *x, int64_t *out)
{
    int overflow = 0;

    if (!PyLong_CheckExact(x)) {
        return false;
    }
    *out = PyLong_AsLongLongAndOverflow(x, &overflow);
    return overflow == 0;
}

static bool
read_slow(const Read *r, PyObject *x, int64_t *out)
{
    TwMeta m;
    bool ok = PyObject_TypeCheck(x, tw_tensor_base()) && tw_tensor_read_slow(x, &m, false)
        && r->dim < m.ndim && (r->kind == SIZE || m.strides != NULL);

    if (ok) {
        *out = (r->kind == SIZE ? m.sizes : m.strides)[r->dim];
    }
    PyErr_Clear();
    return ok;
}

static bool
read_value(const Read *r, PyObject *x, int64_t *out)
{
    void *handle;
    int64_t ndim, *values;
    int32_t layout;

    if (r->kind == NUMBER) {
        return read_number(x, out);
    }
    if (!tw_shim.enabled || !tw_tensor_is_plain(Py_TYPE(x))) {
        return read_slow(r, x, out);
    }
    handle = (char *)x + tw_shim.offset;
    if (tw_shim.dim(handle, &ndim) || r->dim >= ndim) {
        return false;
    }
    if (r->kind == SIZE) {
        if (tw_shim.sizes(handle, &values)) {
            return false;
        }
    }
    else if (tw_shim.layout(handle, &layout) || layout != tw_shim.strided
             || tw_shim.strides(handle, &values)) {
        return false;
    }
    *out = values[r->dim];
    return true;
}

/* Python's // and %, for a positive divisor. */
static bool
divide(int64_t code, int64_t a, int64_t b, int64_t *out)
{
    if (b <= 0) {
        return false;
    }
    *out = code == FLOORDIV ? a / b - (a % b < 0) : a % b + (a % b < 0 ? b : 0);
    return true;
}

/* False also where a value does not fit: then the relation is as good as violated. */
static bool
apply(int64_t code, int64_t a, int64_t b, int64_t *out)
{
    switch (code) {
    case ADD:
        return !__builtin_add_overflow(a, b, out);
    case MUL:
        return !__builtin_mul_overflow(a, b, out);
    default:
        return divide(code, a, b, out);
    }
}

static inline double
as_double(int64_t bits)
{
    double x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static bool
put(double x, int64_t *out)
{
    memcpy(out, &x, sizeof x);
    return isfinite(x);
}

/* What Python gives for the same operands; false where it raises, or gives no float. */
static bool
apply_floats(int64_t code, double a, double b, int64_t *out)
{
    switch (code) {
    case F_ADD:
        return put(a + b, out);
    case F_SUB:
        return put(a - b, out);
    case F_MUL:
        return put(a * b, out);
    case F_DIV:
        return b != 0 && put(a / b, out);
    default:
        return a >= 0 && (a > 0 || b >= 0) && put(pow(a, b), out);
    }
}

static bool
whole(double x, int64_t *out)
{
    if (!(fabs(x) < (double)LARGEST_FLOAT)) {
        return false;
    }
    *out = (int64_t)x;
    return true;
}

static bool
apply_one(int64_t code, int64_t given, int64_t *out)
{
    double x = as_double(given);

    switch (code) {
    case FLOAT:
        return given <= LARGEST_FLOAT && given >= -LARGEST_FLOAT && put((double)given, out);
    case F_SQRT:
        return x >= 0 && put(sqrt(x), out);
    case F_LOG:
        return x > 0 && put(log(x), out);
    case F_LOG2:
        return x > 0 && put(log2(x), out);
    case F_LOG10:
        return x > 0 && put(log10(x), out);
    case F_EXP:
        return put(exp(x), out);
    case FLOOR:
        return whole(floor(x), out);
    case CEIL:
        return whole(ceil(x), out);
    case ROUND:
        return whole(nearbyint(x), out);
    default:
        return whole(trunc(x), out);
    }
}

static inline bool
relation(int64_t code, int64_t x)
{
    return code == IS_ZERO ? x == 0 : code == NOT_ZERO ? x != 0 : x <= 0;
}

static bool
hold(const TwSizes *s, PyObject *const *regs)
{
    int64_t stack[MAX_STACK + 1];
    int top = 0;

    for (int32_t i = 0; i < s->n_code; i++) {
        int64_t code = s->code[i];
        if (code == PUSH) {
            stack[top++] = s->code[++i];
        }
        else if (code == LOAD) {
            const Read *r = &s->reads[s->code[++i]];
            if (!read_value(r, regs[r->reg], &stack[top++])) {
                return false;
            }
        }
        else if (code < IS_ZERO) {
            top--;
            if (!apply(code, stack[top - 1], stack[top], &stack[top - 1])) {
                return false;
            }
        }
        else if (code < F_ADD) {
            if (!relation(code, stack[--top])) {
                return false;
            }
        }
        else if (code < FLOAT) {
            top--;
            if (!apply_floats(code, as_double(stack[top - 1]), as_double(stack[top]),
                              &stack[top - 1])) {
                return false;
            }
        }
        else if (!apply_one(code, stack[top - 1], &stack[top - 1])) {
            return false;
        }
    }
    return true;
}

static bool
runs_python(const TwSizes *s, PyObject *const *regs)
{
    for (int32_t i = 0; i < s->n_reads; i++) {
        const Read *r = &s->reads[i];
        if (r->kind != NUMBER
            && !(tw_shim.enabled && tw_tensor_is_plain(Py_TYPE(regs[r->reg])))) {
            return true;
        }
    }
    return false;
}

int
tw_op_sizes(TwRun *run, const TwInstr *in)
{
    if (!run->owning && runs_python(in->u.sizes, run->regs)) {
        return TW_RESTART;
    }
    return hold(in->u.sizes, run->regs) ? TW_OK : TW_FAIL;
}
