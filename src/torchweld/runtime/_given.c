/* Inputs that a call may let go of: what a forward saved is of no use once its backward has read it.
 *
 * Executable.consume(list) is a call that empties the list: an input leaves it behind the last step
 * that reads it, so memory that nobody else has is free for what comes next. A call of a CUDA graph
 * that works in such memory (_region.c) is such a call, too.
 */
#include "_driver.h"

#define WORTH ((int64_t)64 << 10)  /* smaller inputs stay until the end of the call */

/* The last step that reads each input. Views and results that share its memory own a part of it. */
static void note_args(const Executable *x, const Arg *args, int n, int step, int *last)
{
    for (int i = 0; i < n; i++) {
        if (args[i].kind == A_TENSOR && args[i].tensor < x->n_inputs)
            last[args[i].tensor] = step;
        note_args(x, args[i].items, args[i].n, step, last);
    }
}

static void note_step(const Executable *x, const Step *s, int step, int *last)
{
    for (int i = 0; i < s->n_args; i++)
        if (s->args[i] < x->n_inputs)
            last[s->args[i]] = step;
    if (s->kind == S_VIEW && s->source < x->n_inputs)
        last[s->source] = step;
    note_args(x, s->words, s->n_words, step, last);
    note_args(x, s->objects, s->n_objects, step, last);
}

/* Inputs that the call needs until its end: those that are written or returned, and constants. */
static void note_kept(const Executable *x, int *last)
{
    for (int i = 0; i < x->n_mutated; i++)
        last[x->mutated[i]] = -1;
    for (int i = 0; i < x->n_outputs; i++)
        if (x->outputs[i] >= 0 && x->outputs[i] < x->n_inputs)
            last[x->outputs[i]] = -1;
    for (int i = x->n_inputs - x->n_constants; i < x->n_inputs; i++)
        last[i] = -1;
}

static int learn(Executable *x)
{
    int *last = PyMem_Malloc(((size_t)x->n_inputs + 1) * sizeof *last);
    int *last_of = PyMem_Malloc(((size_t)x->n_steps + 1) * sizeof *last_of);
    int *same_step = PyMem_Malloc(((size_t)x->n_inputs + 1) * sizeof *same_step);
    if (!last || !last_of || !same_step) {
        PyMem_Free(last);
        PyMem_Free(last_of);
        PyMem_Free(same_step);
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < x->n_inputs; i++)
        last[i] = -1;
    for (int i = 0; i < x->n_steps; i++)
        note_step(x, &x->steps[i], i, last);
    note_kept(x, last);
    for (int i = 0; i < x->n_steps; i++)
        last_of[i] = -1;
    for (int i = 0; i < x->n_inputs; i++)
        if (last[i] >= 0) {
            same_step[i] = last_of[last[i]];
            last_of[last[i]] = i;
        }
    PyMem_Free(last);
    x->last_of = last_of;
    x->same_step = same_step;
    return 0;
}

void given_free(Executable *x)
{
    PyMem_Free(x->last_of);
    PyMem_Free(x->same_step);
}

void let_go(Executable *x, Frame *f, int step, PyThreadState **saved)
{
    for (int i = x->last_of[step]; i >= 0; i = x->same_step[i]) {
        if (x->specs[i].bytes < WORTH)
            continue;
        take_gil(saved);
        if (f->owned[i])
            frame_drop(x, f, i);
        f->handles[i] = NULL;
        PyObject *item = PyList_GET_ITEM(f->given, i);
        PyList_SET_ITEM(f->given, i, Py_NewRef(Py_None));
        Py_DECREF(item);
    }
}

PyObject *executable_run(Executable *x, PyObject *const *inputs, PyObject *given)
{
    int n = x->n_inputs - x->n_constants;
    if (!x->n_constants)
        return counted_call(x, inputs, given);
    PyObject *known = constants_for(x, inputs);
    if (!known)
        return NULL;
    PyObject *all[x->n_inputs];
    memcpy(all, inputs, (size_t)n * sizeof *all);
    for (int i = 0; i < x->n_constants; i++)
        all[n + i] = PyTuple_GET_ITEM(known, i);
    PyObject *result = counted_call(x, all, given);
    Py_DECREF(known);
    return result;
}

/* consume(list of inputs) -> what a call gives; the list is empty then. */
PyObject *executable_consume(PyObject *self, PyObject *list)
{
    Executable *x = (Executable *)self;
    Py_ssize_t wanted = x->n_inputs - x->n_constants;
    if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) != wanted)
        return PyErr_Format(PyExc_TypeError, "expected a list of %zd tensors", wanted);
    if (!x->last_of && learn(x) < 0)
        return NULL;
    PyObject *inputs[wanted + 1];
    for (Py_ssize_t i = 0; i < wanted; i++)
        inputs[i] = PyList_GET_ITEM(list, i);
    PyObject *result = executable_run(x, inputs, list);
    if (PyList_SetSlice(list, 0, wanted, NULL) < 0)
        Py_CLEAR(result);
    return result;
}
