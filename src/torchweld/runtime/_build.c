/* The rows that native.py writes -> Specs and Steps. Numbers are checked here, not per call. */
#include "_driver.h"

#include <string.h>

static void *room(Py_ssize_t n, size_t size)
{
    void *p = PyMem_Calloc(n > 0 ? (size_t)n : 1, size);
    if (!p)
        PyErr_NoMemory();
    return p;
}

/* A tuple of Python ints -> int64_t[]. */
static int64_t *int64s(PyObject *row, int *n)
{
    *n = (int)PyTuple_GET_SIZE(row);
    int64_t *out = room(*n, sizeof *out);
    for (int i = 0; out && i < *n; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(row, i));
        if (out[i] == -1 && PyErr_Occurred()) {
            PyMem_Free(out);
            return NULL;
        }
    }
    return out;
}

/* A tuple of numbers in [low, high) -> int[]. */
int *numbers(PyObject *row, int *n, int low, int high)
{
    int64_t *wide = int64s(row, n);
    int *out = wide ? room(*n, sizeof *out) : NULL;
    for (int i = 0; out && i < *n; i++) {
        if (wide[i] < low || wide[i] >= high) {
            PyErr_Format(PyExc_ValueError, "%lld is not in [%d, %d)", (long long)wide[i], low,
                         high);
            PyMem_Free(out);
            out = NULL;
            break;
        }
        out[i] = (int)wide[i];
    }
    PyMem_Free(wide);
    return out;
}

static int check_tensor(Executable *x, int n)
{
    if (n >= 0 && n < x->n_tensors)
        return 0;
    PyErr_Format(PyExc_ValueError, "tensor %d of %d", n, x->n_tensors);
    return -1;
}

static int check_args(Executable *x, const Arg *args, int n)
{
    for (int i = 0; i < n; i++)
        if ((args[i].kind == A_TENSOR && check_tensor(x, args[i].tensor) < 0) ||
            check_args(x, args[i].items, args[i].n) < 0)
            return -1;
    return 0;
}

/* (place, index, dtype, sizes, strides, offset, itemsize, bytes, device type, device, group, output,
 *  pointer, handle, scratch, aligned) */
static int parse_spec(Executable *x, PyObject *row, Spec *s)
{
    PyObject *sizes, *strides;
    long long index, offset, itemsize, bytes;
    int n, output, pointer, handle, scratch, aligned;
    if (!PyArg_ParseTuple(row, "iLiO!O!LLLiiippppp", &s->place, &index, &s->dtype, &PyTuple_Type,
                          &sizes, &PyTuple_Type, &strides, &offset, &itemsize, &bytes,
                          &s->device_type, &s->device, &s->group, &output, &pointer, &handle,
                          &scratch, &aligned))
        return -1;
    s->index = index;
    s->offset = offset;
    s->itemsize = itemsize;
    s->bytes = bytes;
    s->output = (char)output;
    s->pointer = (char)pointer;
    s->handle = (char)handle;
    s->scratch = (char)scratch;
    s->aligned = (char)aligned;
    x->guarded |= aligned;  /* copies are made below autograd */
    if (!(s->sizes = int64s(sizes, &s->ndim)) || !(s->strides = int64s(strides, &n)))
        return -1;
    if (n != s->ndim || s->group < 0 || s->group >= x->n_groups ||
        (s->place == ARENA &&
         (index < 0 || index + offset * itemsize + bytes > x->arena_bytes))) {
        PyErr_SetString(PyExc_ValueError, "tensor row out of bounds");
        return -1;
    }
    return 0;
}

/* (kind, function, address, args, extent, grain, busy) */
static int parse_launch(Executable *x, PyObject *row, Step *s)
{
    unsigned long long address;
    long long extent, grain;
    PyObject *args, *name;
    if (!PyArg_ParseTuple(row, "iUKO!LLp", &s->kind, &name, &address, &PyTuple_Type, &args, &extent,
                          &grain, &s->busy))
        return -1;
    s->name = Py_NewRef(name);
    s->kernel = (Kernel)(uintptr_t)address;
    s->extent = extent;
    s->grain = grain;
    s->args = numbers(args, &s->n_args, 0, x->n_tensors);
    if (s->n_args > x->max_args)
        x->max_args = s->n_args;
    return s->args ? 0 : -1;
}

/* (kind, op, callable, objects, kwnames or None, results, route, busy, apart, detail); detail is
 * (name, overload, words, n_returns) for R_SHIM and (which, words, beta, alpha) for R_INTO. */
static int parse_call(Executable *x, PyObject *row, Step *s)
{
    PyObject *name, *callable, *objects, *kwnames, *results, *detail, *words = NULL;
    if (!PyArg_ParseTuple(row, "iUOO!OO!ippO", &s->kind, &name, &callable, &PyTuple_Type, &objects,
                          &kwnames, &PyTuple_Type, &results, &s->route, &s->busy, &s->apart,
                          &detail))
        return -1;
    s->name = Py_NewRef(name);
    s->callable = Py_NewRef(callable);
    s->kwnames = kwnames == Py_None ? NULL : Py_NewRef(kwnames);
    s->results = numbers(results, &s->n_results, x->n_inputs, x->n_tensors);
    if (!s->results || args_parse(objects, &s->objects, &s->n_objects) < 0 ||
        check_args(x, s->objects, s->n_objects) < 0)
        return -1;
    const char *op, *overload;
    if (s->route == R_SHIM) {
        if (!PyArg_ParseTuple(detail, "ssO!i", &op, &overload, &PyTuple_Type, &words,
                              &s->n_returns))
            return -1;
        s->op = strdup(op);
        s->overload = strdup(overload);
    } else if (s->route == R_INTO) {
        if (!PyArg_ParseTuple(detail, "iO!dd", &s->into, &PyTuple_Type, &words, &s->beta,
                              &s->alpha))
            return -1;
    }
    if (words && (args_parse(words, &s->words, &s->n_words) < 0 ||
                  check_args(x, s->words, s->n_words) < 0))
        return -1;
    if (s->route == R_INTO &&
        (s->into < 0 || s->into > 9 || !torch.into[s->into] || s->n_results != 1 ||
         s->n_words != 2 + (s->into % 4 > 1 || s->into >= INTO_ACTIVATION))) {
        PyErr_SetString(PyExc_ValueError, "matmul row");
        return -1;
    }
    int stack = s->n_words > s->n_returns ? s->n_words : s->n_returns;
    if (stack > x->max_stack)
        x->max_stack = stack;
    x->guarded = 1;
    return 0;
}

static int parse_step(Executable *x, PyObject *row, Step *s)
{
    if (!PyTuple_Check(row) || PyTuple_GET_SIZE(row) < 2) {
        PyErr_SetString(PyExc_TypeError, "step row");
        return -1;
    }
    long kind = PyLong_AsLong(PyTuple_GET_ITEM(row, 0));
    switch (kind) {
    case S_ALLOC:
    case S_DROP:
        if (!PyArg_ParseTuple(row, "ii", &s->kind, &s->tensor))
            return -1;
        break;
    case S_VIEW:
        if (!PyArg_ParseTuple(row, "iiip", &s->kind, &s->tensor, &s->source, &s->tracked) ||
            check_tensor(x, s->source) < 0)
            return -1;
        x->guarded |= s->tracked;
        break;
    case S_LAUNCH:
        return parse_launch(x, row, s);
    case S_CALL:
        return parse_call(x, row, s);
    case S_GRID:
        return grid_parse(x, row, s);
    case S_DRAW:
        return draw_parse(x, row, s);
    default:
        PyErr_Format(PyExc_ValueError, "step kind %ld", kind);
        return -1;
    }
    if (check_tensor(x, s->tensor) < 0)
        return -1;
    if (s->tensor < x->n_inputs && s->kind != S_DROP) {
        PyErr_SetString(PyExc_ValueError, "a step makes an input");
        return -1;
    }
    return 0;
}

int build_rows(Executable *x, PyObject *specs, PyObject *steps, PyObject *outputs,
               PyObject *mutated)
{
    x->n_tensors = (int)PyTuple_GET_SIZE(specs);
    if (x->n_inputs < 0 || x->n_inputs > x->n_tensors) {
        PyErr_SetString(PyExc_ValueError, "more inputs than tensors");
        return -1;
    }
    x->specs = room(x->n_tensors, sizeof *x->specs);
    x->steps = room(PyTuple_GET_SIZE(steps), sizeof *x->steps);
    x->pools = room(x->n_tensors, sizeof *x->pools);
    x->outputs = numbers(outputs, &x->n_outputs, -1, x->n_tensors);
    x->mutated = numbers(mutated, &x->n_mutated, 0, x->n_inputs);
    if (!x->specs || !x->steps || !x->pools || !x->outputs || !x->mutated)
        return -1;
    for (int i = 0; i < x->n_tensors; i++)
        if (parse_spec(x, PyTuple_GET_ITEM(specs, i), &x->specs[i]) < 0)
            return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(steps); i++) {
        x->n_steps = (int)i + 1;
        if (parse_step(x, PyTuple_GET_ITEM(steps, i), &x->steps[i]) < 0)
            return -1;
    }
    return 0;
}

static void free_step(Step *s)
{
    product_free(s->product);
    args_free(s->words, s->n_words);
    args_free(s->objects, s->n_objects);
    PyMem_Free(s->args);
    PyMem_Free(s->by_value);
    PyMem_Free(s->results);
    free((void *)s->op);
    free((void *)s->overload);
    Py_CLEAR(s->name);
    Py_CLEAR(s->callable);
    Py_CLEAR(s->kwnames);
    Py_CLEAR(s->get_seed);
    Py_CLEAR(s->get_offset);
    Py_CLEAR(s->set_offset);
}

int replace_step(Executable *x, PyObject *item)
{
    int n;
    PyObject *row;
    if (!PyArg_ParseTuple(item, "iO!", &n, &PyTuple_Type, &row))
        return -1;
    if (n < 0 || n >= x->n_steps || x->steps[n].kind == S_DRAW) {
        PyErr_Format(PyExc_ValueError, "step %d cannot be replaced", n);
        return -1;
    }
    Step fresh = {0};
    int status = parse_step(x, row, &fresh);
    Step old = status < 0 ? fresh : x->steps[n];
    if (status == 0)
        x->steps[n] = fresh;
    free_step(&old);
    return status;
}

void free_rows(Executable *x)
{
    for (int i = 0; x->steps && i < x->n_steps; i++)
        free_step(&x->steps[i]);
    for (int i = 0; x->specs && i < x->n_tensors; i++) {
        PyMem_Free(x->specs[i].sizes);
        PyMem_Free(x->specs[i].strides);
    }
    PyMem_Free(x->steps);
    PyMem_Free(x->specs);
    PyMem_Free(x->pools);
    PyMem_Free(x->outputs);
    PyMem_Free(x->mutated);
    given_free(x);
}
