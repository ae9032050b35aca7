/* An Executable of a Program for a range of sizes, made for other sizes by changing its numbers: the
 * table of sizes is computed, and its rows are written where they belong (ir/program_sizes.py says the
 * same in Python).
 *
 * Cost: a GPT-2 of 12 layers (371 tensors, 418 patches) takes some microseconds; in Python it were
 * milliseconds, in every call of a sequence that grows.
 */
#include "_driver.h"

#include <string.h>

enum operation { CONST, ROW, ADD, MUL, DIV, MOD, STORE };
static const char *const OPERATIONS[] = {"const", "row", "add", "mul", "div", "mod", "store"};

enum number { SIZE, STRIDE, OFFSET, INDEX, EXTENT, GRAIN, BLOCKS, ARENA_BYTES };
static const char *const NUMBERS[] = {"size",   "stride", "offset", "index",
                                      "extent", "grain",  "blocks", "arena"};

typedef struct {
    int operation;
    int64_t n;
} Op;

typedef struct {
    int what, at, dim, row;
} SizePatch;

typedef struct Ranges {
    int n_values, n_rows, n_code, n_patches, n_limits;
    int64_t *low, *high;   /* by value: what the Program is right for */
    Op *code;
    SizePatch *patches;
    int *limits;           /* rows that must be below `limit` */
    int64_t limit;
    int64_t *rows, *stack;
} Ranges;

void ranges_free(Ranges *r)
{
    if (!r)
        return;
    void *arrays[] = {r->low, r->high, r->code, r->patches, r->limits, r->rows, r->stack};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        PyMem_Free(arrays[i]);
    PyMem_Free(r);
}

/* ---------------------------------------------------------------- what it is told */

static int position(const char *name, const char *const *names, int n)
{
    for (int i = 0; i < n; i++)
        if (!strcmp(name, names[i]))
            return i;
    PyErr_Format(PyExc_ValueError, "%s", name);
    return -1;
}

static int parse_bounds(Ranges *r, PyObject *rows)
{
    for (int i = 0; i < r->n_values; i++) {
        long long low, high;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "LL", &low, &high))
            return -1;
        r->low[i] = low;
        r->high[i] = high;
    }
    return 0;
}

/* Each operation, and that the stack and the rows it reads are there. */
static int parse_code(Ranges *r, PyObject *rows)
{
    int depth = 0;
    r->n_rows = r->n_values;
    for (int i = 0; i < r->n_code; i++) {
        const char *name;
        long long n;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "sL", &name, &n))
            return -1;
        int op = position(name, OPERATIONS, STORE + 1);
        if (op < 0)
            return -1;
        r->code[i] = (Op){op, n};
        depth += op <= ROW ? 1 : -1;
        r->n_rows += op == STORE;
        if (depth < (op == STORE ? 0 : 1) || (op == ROW && (n < 0 || n >= r->n_rows))) {
            PyErr_SetString(PyExc_ValueError, "code of sizes");
            return -1;
        }
    }
    return 0;
}

static int fits_patch(const Executable *x, const Ranges *r, const SizePatch *p)
{
    if (p->row < 0 || p->row >= r->n_rows)
        return 0;
    if (p->what == ARENA_BYTES)
        return 1;
    if (p->what >= EXTENT)
        return p->at >= 0 && p->at < x->n_steps &&
               x->steps[p->at].kind == (p->what == BLOCKS ? S_GRID : S_LAUNCH);
    return p->at >= 0 && p->at < x->n_tensors &&
           (p->what > STRIDE || (p->dim >= 0 && p->dim < x->specs[p->at].ndim));
}

static int parse_patches(Executable *x, Ranges *r, PyObject *rows)
{
    for (int i = 0; i < r->n_patches; i++) {
        const char *what;
        SizePatch *p = &r->patches[i];
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "siii", &what, &p->at, &p->dim, &p->row) ||
            (p->what = position(what, NUMBERS, ARENA_BYTES + 1)) < 0)
            return -1;
        if (!fits_patch(x, r, p)) {
            PyErr_Format(PyExc_ValueError, "patch %d of %s", i, what);
            return -1;
        }
    }
    return 0;
}

static void *room(int n, size_t size)
{
    return PyMem_Calloc((size_t)n + 1, size);
}

static int make_room(Ranges *r)
{
    r->low = room(r->n_values, sizeof *r->low);
    r->high = room(r->n_values, sizeof *r->high);
    r->code = room(r->n_code, sizeof *r->code);
    r->patches = room(r->n_patches, sizeof *r->patches);
    r->rows = room(r->n_values + r->n_code, sizeof *r->rows);
    r->stack = room(r->n_code, sizeof *r->stack);
    if (r->low && r->high && r->code && r->patches && r->rows && r->stack)
        return 0;
    PyErr_NoMemory();
    return -1;
}

/* sizes_on(bounds, code, patches, limits, limit) */
PyObject *sizes_on(PyObject *self, PyObject *args)
{
    Executable *x = (Executable *)self;
    PyObject *bounds, *code, *patches, *limits;
    long long limit;
    if (!PyArg_ParseTuple(args, "O!O!O!O!L", &PyTuple_Type, &bounds, &PyTuple_Type, &code,
                          &PyTuple_Type, &patches, &PyTuple_Type, &limits, &limit))
        return NULL;
    Ranges *r = PyMem_Calloc(1, sizeof *r);
    if (!r)
        return PyErr_NoMemory();
    r->n_values = (int)PyTuple_GET_SIZE(bounds);
    r->n_code = (int)PyTuple_GET_SIZE(code);
    r->n_patches = (int)PyTuple_GET_SIZE(patches);
    r->limit = limit;
    if (make_room(r) < 0 || parse_bounds(r, bounds) < 0 || parse_code(r, code) < 0 ||
        parse_patches(x, r, patches) < 0 ||
        !(r->limits = numbers(limits, &r->n_limits, 0, r->n_rows))) {
        ranges_free(r);
        return NULL;
    }
    ranges_free(x->ranges);
    x->ranges = r;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- the table */

/* 0, or -1 where the result is no 64-bit number. Division rounds down, as Python's. */
static int compute(int operation, int64_t a, int64_t b, int64_t *out)
{
    if (operation == ADD)
        return __builtin_add_overflow(a, b, out) ? -1 : 0;
    if (operation == MUL)
        return __builtin_mul_overflow(a, b, out) ? -1 : 0;
    if (b == 0 || (b == -1 && a == INT64_MIN))
        return -1;
    int64_t rest = a % b, lower = rest && (rest < 0) != (b < 0);
    *out = operation == DIV ? a / b - lower : rest + (lower ? b : 0);
    return 0;
}

/* The whole table for these values. 0, or -1 where the Program is not right for them. */
static int fill_table(Ranges *r, const int64_t *values)
{
    int top = 0, filled = r->n_values;
    for (int i = 0; i < r->n_values; i++) {
        if (values[i] < r->low[i] || values[i] > r->high[i])
            return -1;
        r->rows[i] = values[i];
    }
    for (int i = 0; i < r->n_code; i++) {
        const Op *op = &r->code[i];
        if (op->operation == CONST || op->operation == ROW)
            r->stack[top++] = op->operation == CONST ? op->n : r->rows[op->n];
        else if (op->operation == STORE)
            r->rows[filled++] = r->stack[--top];
        else if (top--, compute(op->operation, r->stack[top - 1], r->stack[top],
                                &r->stack[top - 1]))
            return -1;
    }
    for (int i = 0; i < r->n_limits; i++)
        if (r->rows[r->limits[i]] > r->limit || r->rows[r->limits[i]] < -r->limit)
            return -1;
    return 0;
}

/* ---------------------------------------------------------------- where the numbers go */

static void write_number(Executable *x, const SizePatch *p, int64_t n)
{
    switch (p->what) {
    case SIZE:
        x->specs[p->at].sizes[p->dim] = n;
        break;
    case STRIDE:
        x->specs[p->at].strides[p->dim] = n;
        break;
    case OFFSET:
        x->specs[p->at].offset = n;
        break;
    case INDEX:
        x->specs[p->at].index = n;
        break;
    case EXTENT:
        x->steps[p->at].extent = n;
        break;
    case GRAIN:
        x->steps[p->at].grain = n > 1 ? n : 1;
        break;
    case BLOCKS:
        x->steps[p->at].blocks = (unsigned)n;
        break;
    case ARENA_BYTES:
        x->arena_bytes = n > 64 ? n : 64;  /* empty intermediates are somewhere, too */
        break;
    }
}

/* What follows from a tensor's sizes. 0, or -1 where it does not fit in the arena. */
static int settle_spec(const Executable *x, Spec *s)
{
    int64_t span = 1;
    for (int d = 0; d < s->ndim; d++)
        span = s->sizes[d] && span ? span + (s->sizes[d] - 1) * s->strides[d] : 0;
    s->bytes = span * s->itemsize;
    int64_t end = s->index + s->offset * s->itemsize + s->bytes;
    return s->place == ARENA && (s->index < 0 || s->index % 64 || end > x->arena_bytes) ? -1 : 0;
}

static int64_t elements(const Spec *s)
{
    int64_t n = 1;
    for (int d = 0; d < s->ndim; d++)
        n *= s->sizes[d];
    return n;
}

static int64_t elements_of(const Executable *x, const Arg *args, int n)
{
    int64_t total = 0;
    for (int i = 0; i < n; i++)
        total += args[i].kind == A_TENSOR ? elements(&x->specs[args[i].tensor])
                                          : elements_of(x, args[i].items, args[i].n);
    return total;
}

/* Whether a product can be written there: row after row, perhaps with gaps between the rows. */
static int has_rows(const Spec *s)
{
    int64_t step = 1;
    for (int d = s->ndim - 1; d >= 0; d--) {
        int gaps = d == s->ndim - 2 && s->strides[d] > step;
        if (s->strides[d] != step && !gaps)
            return 0;
        step = s->strides[d] * s->sizes[d];
    }
    return step > 0;
}

/* What follows for a step. 0, or -1 where its row must be another one. */
static int settle_step(const Executable *x, Step *s)
{
    if (s->kind == S_LAUNCH)
        s->busy = s->extent >= 2 * s->grain;
    if (s->kind != S_CALL)
        return 0;
    int64_t n = elements_of(x, s->objects, s->n_objects);
    for (int i = 0; i < s->n_results; i++)
        n += elements(&x->specs[s->results[i]]);
    s->busy = n >= BUSY_ELEMENTS || (x->device >= 0 && s->route == R_SHIM);
    for (int i = 0; s->route == R_INTO && i < s->n_words; i++)
        if (s->words[i].kind == A_TENSOR && !elements(&x->specs[s->words[i].tensor]))
            return -1;
    return s->route == R_INTO && !has_rows(&x->specs[s->results[0]]) ? -1 : 0;
}

/* resize(values, ((step number, row), ...)) -> True: it runs these sizes from now on. False: not while
 * a call is in flight, nor where something else was made for the sizes. None: it cannot run them, and
 * others only after it was resized again. steps: calls whose arguments are numbers of these sizes.
 * After an exception the Executable is of no use. */
PyObject *executable_resize(PyObject *self, PyObject *args)
{
    Executable *x = (Executable *)self;
    Ranges *r = x->ranges;
    PyObject *values, *steps;
    if (!PyArg_ParseTuple(args, "O!O!", &PyTuple_Type, &values, &PyTuple_Type, &steps))
        return NULL;
    if (!r || PyTuple_GET_SIZE(values) != r->n_values)
        return PyErr_Format(PyExc_ValueError, "sizes of another Program");
    if (x->running || x->graphs || x->planner)
        Py_RETURN_FALSE;
    int64_t given[r->n_values + 1];
    for (int i = 0; i < r->n_values; i++)
        given[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(values, i));
    if (PyErr_Occurred())
        return NULL;
    drop_idle(x);
    if (fill_table(r, given) < 0)
        Py_RETURN_NONE;
    for (int i = 0; i < r->n_patches; i++)
        write_number(x, &r->patches[i], r->rows[r->patches[i].row]);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++)
        if (replace_step(x, PyTuple_GET_ITEM(steps, i)) < 0)
            return NULL;
    int fits = 1;
    for (int n = 0; n < x->n_tensors; n++)
        fits &= settle_spec(x, &x->specs[n]) == 0;
    for (int i = 0; i < x->n_steps; i++)
        fits &= settle_step(x, &x->steps[i]) == 0;
    if (!fits)
        Py_RETURN_NONE;
    Py_RETURN_TRUE;
}
