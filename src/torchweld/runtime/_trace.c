/* Recording a CUDA graph: the launch list runs once into a captured stream, and what of the graph
 * must follow the tensors of later calls is noted on the way.
 *
 * Python begins and ends the capture and says where memory comes from (cudagraph.py):
 * prepare(roles), then between capture_begin and capture_end trace(), then adopt(graph).
 */
#include "_graph.h"

#include <string.h>

static int grow(void **array, int *room, int n, size_t size)
{
    if (n < *room)
        return 0;
    int more = *room ? 2 * *room : 16;
    void *bigger = PyMem_Realloc(*array, (size_t)more * size);
    if (!bigger) {
        PyErr_NoMemory();
        return -1;
    }
    *array = bigger;
    *room = more;
    return 0;
}

/* The node that was captured last on a stream, or NULL with an exception. */
static void *last_node(void *stream, void **graph)
{
    int status = 0;
    uint64_t id;
    void *const *nodes = NULL;
    size_t n = 0;
    int code = cuda.capture_info(stream, &status, &id, graph, &nodes, &n);
    if (code || status != 1 || n != 1) {
        cuda_raise(code ? code : 901, "capturing a graph");  /* ...CAPTURE_INVALIDATED */
        return NULL;
    }
    return nodes[0];
}

/* ---------------------------------------------------------------- launches */

static int add_patch(Instance *in, int tensor, int slot, int size, int64_t delta)
{
    if (grow((void **)&in->patches, &in->room_patches, in->n_patches, sizeof *in->patches) < 0)
        return -1;
    in->patches[in->n_patches++] = (Patch){tensor, in->n_nodes, slot, size, delta};
    return 0;
}

static int note_parameters(Executable *x, Frame *f, Step *s, void **params, Node *node)
{
    Instance *in = f->trace;
    Graphs *g = x->graphs;
    for (int i = 0; i < s->n_params; i++) {
        size_t size = i < s->n_args && s->by_value[i] ? (size_t)s->by_value[i] : sizeof(void *);
        memcpy(&node->values[i], params[i], size);
        node->slots[i] = &node->values[i];
        if (i >= s->n_args)
            continue;
        int n = s->args[i], root = g->root[n];
        int64_t delta = (char *)f->pointers[n] - (char *)f->pointers[root];
        if (x->specs[n].place == NUMBER)
            continue;  /* a size: it never changes */
        if (s->by_value[i] && in->roles[n] != VALUE) {
            PyErr_Format(torch.internal_error, "tensor %d is passed by value to a graph", n);
            return -1;
        }
        if (s->by_value[i] ? add_patch(in, n, i, s->by_value[i], 0) < 0
                           : in->roles[root] == PATCH && add_patch(in, root, i, 0, delta) < 0)
            return -1;
    }
    return 0;
}

static int note_launch(Executable *x, Frame *f, Step *s, void **params)
{
    Instance *in = f->trace;
    void *graph, *made = last_node(f->stream, &graph);
    if (!made || grow((void **)&in->nodes, &in->room_nodes, in->n_nodes, sizeof *in->nodes) < 0)
        return -1;
    Node *node = &in->nodes[in->n_nodes];
    memset(node, 0, sizeof *node);
    node->node = made;
    node->n = s->n_params;
    node->values = PyMem_Calloc((size_t)s->n_params + 1, sizeof *node->values);
    node->slots = PyMem_Calloc((size_t)s->n_params + 1, sizeof *node->slots);
    int status = node->values && node->slots ? note_parameters(x, f, s, params, node)
                                             : (PyErr_NoMemory(), -1);
    in->n_nodes++;
    return status;
}

int trace_launch(Executable *x, Frame *f, Step *s, void **params)
{
    PyGILState_STATE state = PyGILState_Ensure();
    int status = note_launch(x, f, s, params);
    PyGILState_Release(state);
    return status;
}

/* Take memory from where no other graph does, or from where all do. */
static int change_pool(Instance *in, int lends)
{
    PyObject *done = PyObject_CallFunction(in->change_pool, "i", lends);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Operators whose results are lent take them from memory that no other graph uses. */
int trace_call(Executable *x, Frame *f, Step *s, PyObject *const *inputs, PyThreadState **saved)
{
    Instance *in = f->trace;
    int lends = 0;
    if (!in->change_pool)
        return call_step(x, f, s, inputs, saved);
    for (int i = 0; i < s->n_results; i++)
        lends |= in->roles[s->results[i]] == HELD;
    if (!lends)
        return call_step(x, f, s, inputs, saved);
    take_gil(saved);
    if (change_pool(in, 1) < 0)
        return -1;
    int status = call_step(x, f, s, inputs, saved);
    take_gil(saved);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    if (change_pool(in, 0) < 0)
        status = -1;
    else
        PyErr_Restore(type, value, trace);
    return status;
}

/* What the backward has read for the last time is memory for what it does next. */
void trace_step(Instance *in, int step)
{
    for (; in->next_free < in->n_frees && in->frees[2 * in->next_free] <= step; in->next_free++) {
        Block *b = &in->region->blocks[in->frees[2 * in->next_free + 1]];
        if (b->owner)
            torch.delete_handle(b->owner);
        b->owner = NULL;
    }
}

/* The same for what kernels of ours write. */
static int allocate_lent(Executable *x, Frame *t)
{
    Instance *in = t->trace;
    Graphs *g = x->graphs;
    int status = 0, n_lent = 0;
    for (int i = 0; i < g->n_made; i++)
        n_lent += in->roles[g->made[i]] == HELD && x->specs[g->made[i]].place == FRESH;
    if (!n_lent || !in->change_pool)
        return 0;
    if (change_pool(in, 1) < 0)
        return -1;
    for (int i = 0; i < g->n_made && status == 0; i++)
        if (in->roles[g->made[i]] == HELD && x->specs[g->made[i]].place == FRESH)
            status = frame_alloc(x, t, g->made[i]);
    return change_pool(in, 0) < 0 ? -1 : status;
}

/* ---------------------------------------------------------------- copies */

static int add_copy(Frame *f, int tensor, int to_tensor, void *outside, void *inside, int64_t bytes)
{
    Instance *in = f->trace;
    if (bytes <= 0)
        return 0;
    uint64_t a = (uint64_t)(uintptr_t)outside, b = (uint64_t)(uintptr_t)inside;
    int code = cuda.copy(to_tensor ? a : b, to_tensor ? b : a, (size_t)bytes, f->stream);
    if (code)
        return cuda_raise(code, "copying into a graph");
    void *graph, *node = last_node(f->stream, &graph);
    if (!node || grow((void **)&in->copies, &in->room_copies, in->n_copies, sizeof *in->copies) < 0)
        return -1;
    in->copies[in->n_copies++] =
        (Copy){.node = node, .tensor = tensor, .to_tensor = (char)to_tensor};
    in->copied_bytes += bytes;
    return 0;
}

/* The inputs as the graph sees them: those that are copied are tensors of the graph. */
static int copy_in(Executable *x, Frame *f, Frame *t, PyObject *const *inputs, PyObject **given)
{
    Instance *in = t->trace;
    for (int i = 0; i < x->n_inputs; i++) {
        if (in->roles[i] != COPY) {
            given[i] = Py_NewRef(inputs[i]);
            continue;
        }
        Handle made = spec_tensor(&x->specs[i]);
        void *inside;
        if (!made) {
            allocation_failed(&x->specs[i]);
            return -1;
        }
        if (torch.get_data_ptr(made, &inside) || !(given[i] = torch_wrap(made)) ||
            add_copy(t, i, 0, f->pointers[i], inside, x->specs[i].bytes) < 0)
            return -1;
    }
    return 0;
}

static int copy_out(Executable *x, Frame *f, Frame *t)
{
    Instance *in = t->trace;
    Graphs *g = x->graphs;
    void *inside;
    for (int i = 0; i < x->n_mutated; i++) {
        int n = x->mutated[i];
        if (in->roles[n] == COPY &&
            add_copy(t, n, 1, f->pointers[n], t->pointers[n], x->specs[n].bytes) < 0)
            return -1;
    }
    for (int i = 0; i < g->n_made; i++) {
        int n = g->made[i];
        if (in->roles[n] != OUT)
            continue;
        if (!t->handles[n] || torch.get_data_ptr(t->handles[n], &inside)) {
            PyErr_Format(torch.internal_error, "output %d was not made", n);
            return -1;
        }
        if (add_copy(t, n, 1, f->pointers[n], inside, x->specs[n].bytes) < 0)
            return -1;
    }
    return 0;
}

/* ---------------------------------------------------------------- for Python */

static Graphs *recording(Executable *x)
{
    if (x->graphs && x->graphs->frame)
        return x->graphs;
    PyErr_SetString(PyExc_RuntimeError, "nothing is being recorded");
    return NULL;
}

/* How a graph works in a Region: the forward's (no `frees`), or the backward's, which frees blocks
 * behind steps. */
static int enter_region(Instance *in, PyObject *region, PyObject *frees)
{
    if (region == Py_None)
        return 0;
    if (!Py_IS_TYPE(region, &region_type)) {
        PyErr_SetString(PyExc_TypeError, "not a Region");
        return -1;
    }
    Region *r = (Region *)region;
    in->region = (Region *)Py_NewRef(region);
    if (frees == Py_None)
        return 0;
    int n = 0;
    if (!PyTuple_Check(frees) || r->guest || r->closed)
        PyErr_SetString(PyExc_ValueError, "the Region is in use");
    else
        in->frees = numbers(frees, &n, 0, 1 << 30);
    if (!in->frees)
        return -1;
    in->n_frees = n / 2;
    in->guest = 1;
    r->guest = in;
    for (int i = 0; i < in->n_frees; i++)
        if (in->frees[2 * i + 1] >= r->n_blocks) {
            PyErr_SetString(PyExc_ValueError, "the Region has no such block");
            return -1;
        }
    return 0;
}

/* prepare(roles, keep, change_pool or None, region or None, frees or None): begin a graph, and make the
 * outputs of this call. */
PyObject *graph_prepare(PyObject *self, PyObject *args)
{
    Executable *x = (Executable *)self;
    Graphs *g = recording(x);
    Py_buffer roles;
    PyObject *keep, *change, *region, *frees;
    if (!g || !PyArg_ParseTuple(args, "y*OOOO", &roles, &keep, &change, &region, &frees))
        return NULL;
    Instance *in = roles.len == x->n_tensors ? PyMem_Calloc(1, sizeof *in) : NULL;
    if (in) {
        in->owner = x;
        in->inference = g->frame->inference;
        in->settings = torch_settings();
        in->roles = PyMem_Calloc((size_t)x->n_tensors + 1, 1);
        in->fixed = PyMem_Calloc((size_t)x->n_inputs + 1, sizeof *in->fixed);
        in->lent = PyMem_Calloc((size_t)g->n_made + 1, sizeof *in->lent);
        in->keep = Py_NewRef(keep);
        in->change_pool = change == Py_None ? NULL : Py_NewRef(change);
    }
    if (in && in->roles)
        memcpy(in->roles, roles.buf, (size_t)roles.len);
    PyBuffer_Release(&roles);
    if (!in || !in->roles || !in->fixed || !in->lent) {
        if (in)
            instance_free(in);
        return PyErr_Format(PyExc_ValueError, "roles of a graph");
    }
    if (g->pending)
        instance_free(g->pending);
    g->pending = in;
    if (enter_region(in, region, frees) < 0)
        return NULL;
    for (int i = 0; i < x->n_inputs; i++)
        if (in->roles[i] == STATIC)
            in->fixed[in->n_fixed++] = (Fixed){i, g->frame->pointers[i]};
    frame_shed(x, g->frame);  /* the graph has its own */
    if (provide(x, g->frame, in) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static int trace_in(Executable *x, Frame *f, Frame *t, PyObject *const *inputs, PyObject **given)
{
    Graphs *g = x->graphs;
    if (copy_in(x, f, t, inputs, given) < 0 || bind_inputs(x, t, given) < 0)
        return -1;
    if (t->cloned) {
        PyErr_Format(torch.internal_error, "a graph needs aligned inputs");
        return -1;
    }
    for (int i = 0; i < g->n_made; i++) {
        int n = g->made[i];
        if (t->trace->roles[n] == PATCH) {
            t->handles[n] = f->handles[n];
            t->pointers[n] = f->pointers[n];
        }
    }
    memcpy(t->drawn, f->drawn, 2 * (size_t)x->n_draws * sizeof *t->drawn);
    if (allocate_lent(x, t) < 0 || frame_arena(x, t) < 0)
        return -1;
    PyThreadState *saved = NULL;
    int status = run_steps(x, t, given, &saved);
    take_gil(&saved);
    return status < 0 || copy_out(x, f, t) < 0 || hold_lent(x, t) < 0 ? -1 : 0;
}

/* trace(): run the launch list on the stream that is being captured. */
PyObject *graph_trace(PyObject *self, PyObject *unused)
{
    Executable *x = (Executable *)self;
    Graphs *g = recording(x);
    if (!g || !g->pending)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "prepare was not called");
    Frame *f = g->frame, *t = frame_new(x, f->inference);
    if (!t)
        return PyErr_NoMemory();
    PyObject *given[x->n_inputs + 1];
    memset(given, 0, sizeof given);
    t->trace = g->pending;
    int status = cuda.current_stream(x->device, &t->stream) ? -1 : 0;
    if (status == 0)
        status = trace_in(x, f, t, g->inputs, given);
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    for (int n = 0; n < x->n_tensors; n++)
        if (x->specs[n].place != ARENA && (n >= x->n_inputs || t->owned[n]))
            frame_drop(x, t, n);
    frame_free(x, t);
    for (int i = 0; i < x->n_inputs; i++)
        Py_CLEAR(given[i]);
    PyErr_Restore(type, value, trace);
    if (status < 0)
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_RuntimeError, "no current stream");
    g->pending->traced = 1;
    Py_RETURN_NONE;
}

/* The tensors that may move, each with its patches side by side. */
static int list_moving(Executable *x, Instance *in, const Frame *f)
{
    Patch *sorted = PyMem_Calloc((size_t)in->n_patches + 1, sizeof *sorted);
    in->moving = PyMem_Calloc((size_t)x->n_tensors + 1, sizeof *in->moving);
    if (!sorted || !in->moving) {
        PyMem_Free(sorted);
        PyErr_NoMemory();
        return -1;
    }
    int filled = 0;
    for (int n = 0; n < x->n_tensors; n++) {
        Moving m = {.tensor = n, .first = filled, .copies = {-1, -1}};
        m.last = (uint64_t)(uintptr_t)f->pointers[n];
        for (int i = 0; i < in->n_patches; i++)
            if (in->patches[i].tensor == n)
                sorted[filled++] = in->patches[i];
        m.n = filled - m.first;
        if (m.n && (m.size = sorted[m.first].size)) {
            m.last = 0;
            memcpy(&m.last, f->pointers[n], (size_t)m.size);
        }
        for (int i = 0, k = 0; i < in->n_copies; i++)
            if (in->copies[i].tensor == n)
                m.copies[k++] = i;
        if (m.n || m.copies[0] >= 0)
            in->moving[in->n_moving++] = m;
    }
    PyMem_Free(in->patches);
    in->patches = sorted;
    return 0;
}

static int read_nodes(Instance *in)
{
    for (int i = 0; i < in->n_nodes; i++) {
        Node *node = &in->nodes[i];
        int code = cuda.get_kernel_node(node->node, &node->params);
        if (code)
            return cuda_raise(code, "reading a graph");
        node->params.params = node->slots;
        node->params.extra = NULL;
    }
    for (int i = 0; i < in->n_copies; i++) {
        int code = cuda.get_copy_node(in->copies[i].node, &in->copies[i].params);
        if (code)
            return cuda_raise(code, "reading a graph");
    }
    return 0;
}

/* adopt(graph): make what was traced and captured callable. The graph is taken over. */
PyObject *graph_adopt(PyObject *self, PyObject *graph)
{
    Executable *x = (Executable *)self;
    Graphs *g = recording(x);
    void *captured = PyLong_AsVoidPtr(graph);
    if (!g || PyErr_Occurred())
        return NULL;
    Instance *in = g->pending;
    if (!in || !in->traced || !captured)
        return PyErr_Format(PyExc_RuntimeError, "nothing was traced");
    in->graph = captured;
    in->dirty = PyMem_Calloc((size_t)in->n_nodes + 1, sizeof *in->dirty);
    if (!in->dirty)
        return PyErr_NoMemory();
    if (list_moving(x, in, g->frame) < 0 || read_nodes(in) < 0)
        return NULL;
    int code = cuda.instantiate(&in->exec, in->graph, 0);
    if (code) {
        cuda_raise(code, "instantiating a graph");
        return NULL;
    }
    g->pending = NULL;
    instance_link(in);
    Py_RETURN_NONE;
}

static int current(PyObject *number, void **stream)
{
    int device = (int)PyLong_AsLong(number);
    if (PyErr_Occurred())
        return -1;
    if (!cuda.ready || device < 0 || device >= MAX_DEVICES || cuda.current_stream(device, stream)) {
        PyErr_SetString(PyExc_RuntimeError, "no current CUDA stream");
        return -1;
    }
    return 0;
}

/* capture_begin(device): capture torch's current stream; other threads are not disturbed. */
PyObject *capture_begin(PyObject *self, PyObject *device)
{
    void *stream;
    if (current(device, &stream) < 0)
        return NULL;
    int code = cuda.begin_capture(stream, 1);  /* CU_STREAM_CAPTURE_MODE_THREAD_LOCAL */
    if (code)
        return cuda_raise(code, "beginning to capture"), NULL;
    Py_RETURN_NONE;
}

/* capture_end(device) -> the graph, or 0 if what was captured is none. */
PyObject *capture_end(PyObject *self, PyObject *device)
{
    void *stream, *graph = NULL;
    if (current(device, &stream) < 0)
        return NULL;
    if (cuda.end_capture(stream, &graph))
        graph = NULL;
    return PyLong_FromVoidPtr(graph);
}

/* capture_drop(graph): a graph that will not be adopted. */
PyObject *capture_drop(PyObject *self, PyObject *graph)
{
    void *captured = PyLong_AsVoidPtr(graph);
    if (PyErr_Occurred())
        return NULL;
    if (captured)
        cuda.graph_destroy(captured);
    Py_RETURN_NONE;
}
