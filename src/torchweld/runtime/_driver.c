/* The native driver: walks a launch list. Executable(...)(*inputs) -> tuple of outputs.
 *
 * A call takes a Frame (the arena and what was allocated around it), runs the steps, wraps the
 * outputs and gives the frame back. Steps need the interpreter only where they make or call Python
 * objects, so it is left at the first step that is worth a team of threads and taken back when a
 * step or the end of the call needs it.
 *
 * Cost: x + 1 on 4 elements takes 0.52 us a call against eager's 2.75, best of 15 interleaved
 * rounds, 2-core EPYC VM, Python 3.11, torch 2.13, 2026-11-29.
 */
#include "_driver.h"

#include <stddef.h>
#include <string.h>

/* ---------------------------------------------------------------- dispatch state */

/* Calls run below autograd and autocast, as captured graphs contain what those would have added.
 * ADInplaceOrView stays: it is what advances version counters. */
typedef struct {
    int grad;
    unsigned keys;
} Guard;

static Guard guard_enter(void)
{
    Guard g = {torch.grad_enabled(), 0};
    if (g.grad)
        torch.set_grad_enabled(false);
    for (int i = 0; i < torch.n_keys; i++)
        if (!torch.key_excluded(torch.keys[i])) {
            torch.set_key_excluded(torch.keys[i], true);
            g.keys |= 1u << i;
        }
    return g;
}

static void guard_leave(Guard g)
{
    for (int i = 0; i < torch.n_keys; i++)
        if (g.keys >> i & 1)
            torch.set_key_excluded(torch.keys[i], false);
    if (g.grad)
        torch.set_grad_enabled(true);
}

/* ---------------------------------------------------------------- steps */

int bind_inputs(Executable *x, Frame *f, PyObject *const *inputs)
{
    for (int i = 0; i < x->n_inputs; i++) {
        if (!PyObject_TypeCheck(inputs[i], torch.tensor_type)) {
            PyErr_Format(PyExc_TypeError, "input %d is %s, not a tensor", i,
                         Py_TYPE(inputs[i])->tp_name);
            return -1;
        }
        f->handles[i] = handle_of(inputs[i]);
        if (x->verify && i < x->n_inputs - x->n_constants && !fits(&x->specs[i], f->handles[i])) {
            PyErr_Format(torch.internal_error, "input %d is not what was compiled for: %R", i,
                         inputs[i]);
            return -1;
        }
        if (frame_pointer(x, f, i) < 0)
            return -1;
    }
    return 0;
}

/* Raises what a kernel's status stands for: eager's own exception where somebody can say it, else
 * that of its code (FAILURES in ir/loop_ops.py). */
static void raise_failure(Executable *x, Step *s, int32_t status, PyObject *const *inputs)
{
    if (x->explain) {
        size_t n = (size_t)(x->n_inputs - x->n_constants);
        PyObject *said = PyObject_Vectorcall(x->explain, inputs, n, NULL);
        if (!said)
            return;
        Py_DECREF(said);
    }
    PyErr_Format(status & 1 ? PyExc_IndexError : PyExc_RuntimeError,
                 "index out of range in a compiled kernel (%U)", s->name);
}

static int launch(Executable *x, Frame *f, Step *s, PyObject *const *inputs, PyThreadState **saved)
{
    for (int i = 0; i < s->n_args; i++)
        f->gather[i] = f->pointers[s->args[i]];
    if (s->busy)
        leave_gil(saved);
    int32_t status = run_kernel(s->kernel, f->gather, s->extent, s->grain);
    if (!status)
        return 0;
    take_gil(saved);
    raise_failure(x, s, status, inputs);
    return -1;
}

int make_view(Executable *x, Frame *f, Step *s, PyObject *const *inputs, PyThreadState **saved)
{
    int n = s->tensor;
    Spec *spec = &x->specs[n];
    if (s->tracked) {
        take_gil(saved);
        /* of the user's own tensor, also where kernels read a copy of it */
        PyObject *source = s->source < x->n_inputs
                               ? inputs[s->source]
                               : frame_object(f, inputs, x->n_inputs, s->source);
        PyObject *made = NULL;
        if (source)
            made = PyObject_CallFunction(x->view, "Oii", source, n, s->source);
        if (!made)
            return -1;
        f->objects[n] = made;
        f->handles[n] = handle_of(made);
        return frame_pointer(x, f, n);
    }
    int64_t shift = spec->offset - x->specs[s->source].offset;
    Handle source = f->handles[s->source];
    if (!source ||
        torch.reinterpret(source, spec->ndim, spec->sizes, spec->strides, shift, &f->handles[n])) {
        take_gil(saved);
        PyErr_Format(torch.internal_error, "tensor %d cannot be a view of tensor %d", n, s->source);
        return -1;
    }
    f->owned[n] = 1;
    return frame_pointer(x, f, n);
}

int run_steps(Executable *x, Frame *f, PyObject *const *inputs, PyThreadState **saved)
{
    for (int i = 0; i < x->n_steps; i++) {
        Step *s = &x->steps[i];
        int status = 0;
        switch (s->kind) {
        case S_LAUNCH:
            status = launch(x, f, s, inputs, saved);
            break;
        case S_CALL:
            status = f->trace ? trace_call(x, f, s, inputs, saved)
                              : call_step(x, f, s, inputs, saved);
            break;
        case S_ALLOC:
            if (!f->handles[s->tensor])  /* a recording writes to the call's own outputs */
                status = frame_alloc(x, f, s->tensor);
            break;
        case S_GRID:
            status = grid_launch(x, f, s);
            break;
        case S_VIEW:
            status = make_view(x, f, s, inputs, saved);
            break;
        case S_DROP:
            if (s->tensor >= x->n_inputs && x->specs[s->tensor].place != ARENA)
                frame_drop(x, f, s->tensor);
            break;
        }
        if (status < 0)
            return -1;
        if (f->given)
            let_go(x, f, i, saved);
        if (f->trace)
            trace_step(f->trace, i);
    }
    return 0;
}

/* ---------------------------------------------------------------- the call */

static PyObject *output(Executable *x, Frame *f, PyObject *const *inputs, int n)
{
    if (n < 0)
        Py_RETURN_NONE;
    if (n < x->n_inputs)
        return Py_NewRef(inputs[n]);
    if (!f->objects[n]) {
        if (!f->handles[n]) {
            PyErr_Format(torch.internal_error, "output tensor %d was never made", n);
            return NULL;
        }
        Handle h = f->handles[n];
        f->owned[n] = 0;
        f->handles[n] = NULL;
        f->objects[n] = torch_wrap(h);
    }
    return Py_XNewRef(f->objects[n]);
}

/* Outputs [first, end) as a tuple of `size` items. */
static PyObject *outputs_between(Executable *x, Frame *f, PyObject *const *inputs, int first, int end,
                                 int size)
{
    PyObject *result = PyTuple_New(size);
    for (int i = first; result && i < end; i++) {
        PyObject *made = output(x, f, inputs, x->outputs[i]);
        if (!made)
            Py_CLEAR(result);
        else
            PyTuple_SET_ITEM(result, i - first, made);
    }
    return result;
}

static PyObject *outputs_of(Executable *x, Frame *f, PyObject *const *inputs)
{
    int shown = x->n_outputs - x->n_saved;
    PyObject *result = outputs_between(x, f, inputs, 0, shown, shown + x->saves);
    if (!result || !x->saves)
        return result;
    PyObject *saved = f->saved;
    f->saved = NULL;
    if (!saved && (saved = outputs_between(x, f, inputs, shown, x->n_outputs, x->n_saved)))
        lent_keep(x, f, saved);
    if (saved)
        PyTuple_SET_ITEM(result, shown, saved);
    else
        Py_CLEAR(result);
    return result;
}

static int bump_versions(Executable *x, PyObject *const *inputs)
{
    PyObject *list = PyList_New(x->n_mutated);
    if (!list)
        return -1;
    for (int i = 0; i < x->n_mutated; i++)
        PyList_SET_ITEM(list, i, Py_NewRef(inputs[x->mutated[i]]));
    PyObject *done = PyObject_CallOneArg(x->bump, list);
    Py_DECREF(list);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* What kernels wrote to the copies of inputs goes where the user sees it. */
static int copy_back(Executable *x, Frame *f, PyObject *const *inputs)
{
    for (int i = 0; i < x->n_mutated; i++) {
        int n = x->mutated[i];
        if (f->owned[n] &&
            (!torch.copy || torch.copy(handle_of(inputs[n]), f->handles[n], 0))) {
            PyErr_Format(torch.internal_error, "input %d could not be written", n);
            return -1;
        }
    }
    return 0;
}

static int run(Executable *x, Frame *f, PyObject *const *inputs)
{
    if (bind_inputs(x, f, inputs) < 0 || draw_numbers(x, f) < 0)
        return -1;
    int done = x->graphs ? graph_call(x, f, inputs) : 0;
    if (done)
        return done < 0 ? -1 : 0;
    if (frame_arena(x, f) < 0)
        return -1;
    PyThreadState *saved = NULL;
    int status = run_steps(x, f, inputs, &saved);
    take_gil(&saved);
    return status == 0 && f->cloned ? copy_back(x, f, inputs) : status;
}

/* What a capture of the user's draws is counted at each replay: only eager's kernels know how. */
static PyObject *in_eager(Executable *x, PyObject *const *inputs)
{
    PyObject *made =
        PyObject_Vectorcall(x->eager, inputs, (size_t)(x->n_inputs - x->n_constants), NULL);
    PyObject *result = made ? PySequence_Tuple(made) : NULL;
    Py_XDECREF(made);
    return result;
}

/* inputs: constants included. */
static PyObject *call(Executable *x, PyObject *const *inputs, PyObject *given)
{
    void *before = NULL;
    int code = x->device >= 0 ? cuda_enter(x->device, &before) : 0;
    if (code)
        return cuda_raise(code, "entering the device"), NULL;
    Frame *f = frame_take(x, torch.inference_mode());
    if (!f) {
        cuda_leave(before);
        return NULL;
    }
    if (x->n_draws && f->capturing && x->eager) {
        frame_give(x, f);
        cuda_leave(before);
        return in_eager(x, inputs);
    }
    f->given = x->explain ? NULL : given;
    Py_INCREF(x);  /* an operator written in Python may drop the caller's last reference */
    PyObject *result = NULL;
    Guard guard = {0, 0};
    if (x->guarded)
        guard = guard_enter();
    /* before outputs are made: autograd refuses views of no_grad that are older than a write */
    int status = x->n_mutated ? bump_versions(x, inputs) : 0;
    if (status == 0)
        status = run(x, f, inputs);
    if (x->guarded)
        guard_leave(guard);
    if (status == 0)
        result = outputs_of(x, f, inputs);
    if (result) {
        struct Instance *settling = f->settles ? f->served : NULL;
        frame_give(x, f);
        if (settling)
            lent_settle(x, settling);
    } else {
        PyObject *type, *value, *trace;
        PyErr_Fetch(&type, &value, &trace);
        frame_give(x, f);
        PyErr_Restore(type, value, trace);
    }
    cuda_leave(before);
    x->n_calls++;
    Py_DECREF(x);
    return result;
}

/* A call counts while it is in flight; it may drop the last other reference. */
PyObject *counted_call(Executable *x, PyObject *const *inputs, PyObject *given)
{
    Py_INCREF(x);
    x->running++;
    PyObject *result = call(x, inputs, given);
    x->running--;
    Py_DECREF(x);
    return result;
}

static PyObject *executable_call(PyObject *self, PyObject *const *inputs, size_t nargsf,
                                 PyObject *kwnames)
{
    Executable *x = (Executable *)self;
    int n = (int)PyVectorcall_NARGS(nargsf), wanted = x->n_inputs - x->n_constants;
    if (n != wanted || (kwnames && PyTuple_GET_SIZE(kwnames)))
        return PyErr_Format(PyExc_TypeError, "expected %d tensors, got %d%s", wanted, n,
                            kwnames ? " and keywords" : "");
    return executable_run(x, inputs, NULL);
}

/* ---------------------------------------------------------------- the type */

static PyObject *executable_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *program, *specs, *steps, *outputs, *mutated, *settle, *view_, *bump;
    PyObject *frozen = NULL, *source = NULL;
    int n_inputs, n_groups, verify, device, arena_type, arena_device, n_constants = 0;
    long long arena;
    if (!torch.tensor_type)
        return PyErr_Format(PyExc_RuntimeError, "init was not called");
    if (!PyArg_ParseTuple(args, "OiiL(iii)O!O!O!O!OOOp|iO!O", &program, &n_inputs, &n_groups, &arena,
                          &device, &arena_type, &arena_device, &PyTuple_Type, &specs, &PyTuple_Type, &steps, &PyTuple_Type, &outputs,
                          &PyTuple_Type, &mutated, &settle, &view_, &bump, &verify, &n_constants,
                          &PyTuple_Type, &frozen, &source))
        return NULL;
    if (n_constants < 0 || (n_constants && !source))
        return PyErr_Format(PyExc_ValueError, "%d constants from nowhere", n_constants);
    Executable *x = (Executable *)type->tp_alloc(type, 0);
    if (!x)
        return NULL;
    pthread_mutex_init(&x->mutex, NULL);
    x->vectorcall = executable_call;
    x->program = Py_NewRef(program);
    x->settle = Py_NewRef(settle);
    x->view = Py_NewRef(view_);
    x->bump = Py_NewRef(bump);
    x->n_inputs = n_inputs;
    x->n_groups = n_groups;
    x->arena_bytes = arena;
    x->device = device;
    x->arena_type = arena_type;
    x->arena_device = arena_device;
    x->verify = verify;
    if ((n_constants && constants_init(x, n_constants, frozen, source) < 0) ||
        build_rows(x, specs, steps, outputs, mutated) < 0) {
        Py_DECREF(x);
        return NULL;
    }
    return (PyObject *)x;
}

void drop_idle(Executable *x)
{
    pthread_mutex_lock(&x->mutex);
    Frame *f = x->idle;
    x->idle = NULL;
    pools_clear(x);
    pthread_mutex_unlock(&x->mutex);
    if (f)
        frame_free(x, f);
}

static PyObject *executable_trim(PyObject *self, PyObject *unused)
{
    Executable *x = (Executable *)self;
    drop_idle(x);
    graphs_drop(x);
    Py_RETURN_NONE;
}

static PyObject *executable_forget(PyObject *self, PyObject *unused)
{
    constants_forget((Executable *)self);
    Py_RETURN_NONE;
}

static int executable_traverse(PyObject *self, visitproc visit, void *arg)
{
    Executable *x = (Executable *)self;
    Py_VISIT(x->program);
    Py_VISIT(x->settle);
    Py_VISIT(x->view);
    Py_VISIT(x->bump);
    Py_VISIT(x->explain);
    Py_VISIT(x->eager);
    Py_VISIT(x->source);
    Py_VISIT(x->known);
    Py_VISIT(x->planner);
    return graphs_visit(x, visit, arg);
    return 0;
}

static void executable_dealloc(PyObject *self)
{
    Executable *x = (Executable *)self;
    PyObject_GC_UnTrack(self);
    if (x->weak)
        PyObject_ClearWeakRefs(self);
    graphs_free(x);
    if (x->specs && x->pools)
        pools_clear(x);
    if (x->idle)
        frame_free(x, x->idle);
    free_rows(x);
    ranges_free(x->ranges);
    Py_CLEAR(x->program);
    Py_CLEAR(x->settle);
    Py_CLEAR(x->view);
    Py_CLEAR(x->bump);
    Py_CLEAR(x->explain);
    Py_CLEAR(x->eager);
    Py_CLEAR(x->planner);
    constants_free(x);
    pthread_mutex_destroy(&x->mutex);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *get_driver(PyObject *self, void *unused)
{
    return PyUnicode_FromString("native");
}

static PyObject *get_saves(PyObject *self, void *unused)
{
    return PyBool_FromLong(((Executable *)self)->saves);
}

static PyObject *get_program(PyObject *self, void *unused)
{
    return Py_NewRef(((Executable *)self)->program);
}

static PyObject *get_counts(PyObject *self, void *unused)
{
    Executable *x = (Executable *)self;
    return Py_BuildValue("KK", (unsigned long long)x->n_calls, (unsigned long long)x->n_reused);
}

static PyObject *get_explain(PyObject *self, void *unused)
{
    PyObject *explain = ((Executable *)self)->explain;
    return Py_NewRef(explain ? explain : Py_None);
}

static int set_explain(PyObject *self, PyObject *value, void *unused)
{
    Executable *x = (Executable *)self;
    Py_XSETREF(x->explain, value && value != Py_None ? Py_NewRef(value) : NULL);
    return 0;
}

static PyObject *get_eager(PyObject *self, void *unused)
{
    PyObject *eager = ((Executable *)self)->eager;
    return Py_NewRef(eager ? eager : Py_None);
}

static int set_eager(PyObject *self, PyObject *value, void *unused)
{
    Executable *x = (Executable *)self;
    Py_XSETREF(x->eager, value && value != Py_None ? Py_NewRef(value) : NULL);
    return 0;
}

static PyMethodDef executable_methods[] = {
    {"sizes_on", sizes_on, METH_VARARGS, "Let it be resized, by these rows."},
    {"resize", executable_resize, METH_VARARGS, "Serve other sizes from now on, if it is idle."},
    {"consume", executable_consume, METH_O, "A call that empties its list of inputs."},
    {"trim", executable_trim, METH_NOARGS, "Give back the memory kept between calls."},
    {"forget", executable_forget, METH_NOARGS, "Ask for the constants again at the next call."},
    {"graphs_on", graphs_on, METH_VARARGS, "Allow CUDA graphs, recorded by a callable."},
    {"graphs_keep", graphs_keep, METH_O, "Drop all graphs but the n that were used last."},
    {"save_last", save_last, METH_O, "Give the last n outputs as one tuple behind the others."},
    {"part", graphs_part, METH_NOARGS, "Close graphs whose memory a backward's results are in."},
    {"region", graphs_region, METH_O, "The Region of the graph that lends what is at an address."},
    {"consumes", graphs_consumes, METH_NOARGS, "Whether the call in flight may use up its inputs."},
    {"lent", lent_addresses, METH_NOARGS, "The addresses of what graphs lend."},
    {"given", given_inputs, METH_NOARGS, "The inputs of the call in flight."},
    {"graphs_off", graphs_off, METH_O, "Run as a launch list from now on, and why."},
    {"products_on", products_on, METH_VARARGS, "Let cuBLASLt compute products, as planned."},
    {"prepare", graph_prepare, METH_VARARGS, "Begin a graph of the call that asked for one."},
    {"trace", graph_trace, METH_NOARGS, "Run the launch list into the stream being captured."},
    {"adopt", graph_adopt, METH_O, "Make what was traced and captured callable."},
    {NULL},
};

static PyGetSetDef executable_getset[] = {
    {"driver", get_driver, NULL, "\"native\"", NULL},
    {"saves", get_saves, NULL, "Whether the last outputs are one tuple behind the others.", NULL},
    {"program", get_program, NULL, "The Program that this runs.", NULL},
    {"explain", get_explain, set_explain, "Raises eager's error when a kernel fails.", NULL},
    {"eager", get_eager, set_eager, "Does in eager what a call does.", NULL},
    {"graphs", graphs_get, NULL, "What is recorded: one tuple per graph, or why nothing is.", NULL},
    {"products", products_get, NULL, "(who plans products, how many cuBLASLt computed)", NULL},
    {"counts", get_counts, NULL, "(calls, outputs placed in pooled memory)", NULL},
    {NULL},
};

static PyTypeObject executable_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "torchweld.runtime._driver.Executable",
    .tp_basicsize = sizeof(Executable),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL | Py_TPFLAGS_HAVE_GC,
    .tp_doc = "A compiled launch list. Called with its input tensors; gives a tuple of outputs.",
    .tp_vectorcall_offset = offsetof(Executable, vectorcall),
    .tp_weaklistoffset = offsetof(Executable, weak),
    .tp_call = PyVectorcall_Call,
    .tp_new = executable_new,
    .tp_dealloc = executable_dealloc,
    .tp_traverse = executable_traverse,
    .tp_methods = executable_methods,
    .tp_getset = executable_getset,
};

static PyMethodDef module_methods[] = {
    {"init", torch_init, METH_VARARGS, "Find torch's entry points; the names not found."},
    {"describe", torch_describe, METH_O, "A tensor as the driver reads it (self-test)."},
    {"make", torch_make, METH_VARARGS, "A fresh uint8 tensor (self-test)."},
    {"calibrate", torch_calibrate, METH_VARARGS, "Learn how owners of a storage are counted."},
    {"find_keys", torch_find_keys, METH_O, "Learn where a tensor has its dispatch keys."},
    {"note_plain", torch_note_plain, METH_O, "A tensor that is memory and nothing else."},
    {"all_plain", (PyCFunction)(void (*)(void))torch_all_plain, METH_FASTCALL,
     "Whether all are tensors that are known to be memory and nothing else."},
    {"all_fit", (PyCFunction)(void (*)(void))torch_all_fit, METH_FASTCALL,
     "Whether all are such tensors with given strides."},
    {"overlap", (PyCFunction)(void (*)(void))torch_overlap, METH_FASTCALL,
     "Whether a written input shares memory with another one."},
    {"cuda_init", cuda_init, METH_VARARGS, "Find the CUDA driver's entry points."},
    {"cuda_load", cuda_load, METH_VARARGS, "A kernel of a cubin."},
    {"capture_begin", capture_begin, METH_O, "Capture torch's current stream of a device."},
    {"capture_end", capture_end, METH_O, "The graph that was captured; 0 if it is no graph."},
    {"capture_drop", capture_drop, METH_O, "Release a graph that nothing adopted."},
    {"graph_totals", graph_totals, METH_NOARGS, "What the graphs of this process hold."},
    {"graph_evict", graph_evict, METH_VARARGS, "Drop the graph that was not used for longest."},
    {"product_library", product_library, METH_VARARGS, "Where cuBLASLt's functions are."},
    {"gemm_library", gemm_library, METH_VARARGS, "Where cuBLAS's functions are."},
    {"product_spaces", product_spaces, METH_O, "Bytes of workspaces; true: give them back."},
    {"product_settings", product_settings_now, METH_NOARGS, "What changes how ATen multiplies."},
    {"held", memory_held, METH_NOARGS, "Bytes kept between calls."},
    {NULL},
};

static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT,
    .m_name = "torchweld.runtime._driver",
    .m_doc = "The native driver of launch lists.",
    .m_size = -1,
    .m_methods = module_methods,
};

PyMODINIT_FUNC PyInit__driver(void)
{
    if (PyType_Ready(&executable_type) < 0)
        return NULL;
    PyObject *m = PyModule_Create(&module);
    if (m && (PyModule_AddObjectRef(m, "Executable", (PyObject *)&executable_type) < 0 ||
              sized_ready(m) < 0 || region_ready(m) < 0))
        Py_CLEAR(m);
    return m;
}
