/* Calls as CUDA graphs: submitting a graph costs the same for 1 and for 300 kernels.
 *
 * A call's own tensors are not the graph's: our kernels get their addresses written into the nodes
 * (0.15 us each), what operators read or make is copied. So outputs are fresh tensors that stay
 * valid. Memory of the graphs comes from one pool per device, in which graphs recorded later use
 * again what earlier ones only need while they run. Therefore all graphs of a device run one after
 * another: where the stream changes, the new one waits for the old one.
 *
 * Everything here runs with the GIL, and no Python code between choosing a graph and launching it.
 */
#include "_graph.h"

#include <string.h>

static Instance *all;
static int n_all;
static uint64_t clock_now;

/* The order of the graphs of one device. */
typedef struct {
    int used;
    void *stream;
    void *event;
} Line;
static Line lines[MAX_DEVICES];

/* ---------------------------------------------------------------- life of a graph */

/* Wait for a stream: what a graph still writes must not be given to others. Allowed while another
 * thread captures; a stream that is captured itself has nothing to wait for. */
static void finish(void *stream)
{
    int capturing = 0, mode = 2;  /* CU_STREAM_CAPTURE_MODE_RELAXED */
    if (stream && (cuda.is_capturing(stream, &capturing) || capturing))
        return;
    cuda.exchange_mode(&mode);
    cuda.stream_synchronize(stream);
    cuda.exchange_mode(&mode);
}

void instance_free(Instance *in)
{
    if (in->exec && in->n_lent && in->runs)
        finish(in->last_stream);
    if (in->exec)
        cuda.exec_destroy(in->exec);
    if (in->graph)
        cuda.graph_destroy(in->graph);
    for (int i = 0; i < in->n_nodes; i++) {
        PyMem_Free(in->nodes[i].values);
        PyMem_Free(in->nodes[i].slots);
    }
    lent_free(in);
    void *arrays[] = {in->roles, in->nodes, in->copies, in->patches,
                      in->moving, in->fixed, in->dirty};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        PyMem_Free(arrays[i]);
    PyMem_Free(in->frees);
    region_leave(in);
    PyObject *keep = in->keep, *change = in->change_pool;
    Region *region = in->region;
    PyMem_Free(in);
    Py_XDECREF(change);
    Py_XDECREF(region);
    Py_XDECREF(keep);
}

void instance_link(Instance *in)
{
    Graphs *g = in->owner->graphs;
    in->next = g->first;
    g->first = in;
    in->next_of_all = all;
    all = in;
    n_all++;
}

static void instance_drop(Instance *in)
{
    Instance **at = &in->owner->graphs->first;
    while (*at != in)
        at = &(*at)->next;
    *at = in->next;
    for (at = &all; *at != in;)
        at = &(*at)->next_of_all;
    *at = in->next_of_all;
    n_all--;
    instance_free(in);
}

void graphs_drop(Executable *x)
{
    Graphs *g = x->graphs;
    while (g && g->first)
        instance_drop(g->first);
}

void graphs_free(Executable *x)
{
    Graphs *g = x->graphs;
    if (!g)
        return;
    graphs_drop(x);
    x->graphs = NULL;
    PyMem_Free(g->root);
    PyMem_Free(g->tail);
    PyMem_Free(g->made);
    PyMem_Free(g->shown);
    PyMem_Free(g->seen);
    Py_CLEAR(g->record);
    Py_CLEAR(g->admit);
    Py_CLEAR(g->why);
    PyMem_Free(g);
}

int graphs_visit(Executable *x, visitproc visit, void *arg)
{
    if (x->graphs) {
        Py_VISIT(x->graphs->record);
        Py_VISIT(x->graphs->admit);
    }
    return 0;
}

static void turn_off(Graphs *g, const char *why)
{
    Py_XSETREF(g->why, PyUnicode_FromString(why));
    if (!g->why)
        PyErr_Clear();
}

/* ---------------------------------------------------------------- choosing */

static int in_place(const Instance *in, const Frame *f)
{
    for (int i = 0; i < in->n_fixed; i++)
        if (f->pointers[in->fixed[i].tensor] != in->fixed[i].address)
            return 0;
    return 1;
}

/* The graph that can serve this call, lenders before copiers; it becomes the first. */
static Instance *pick(Graphs *g, const Frame *f)
{
    Instance **best = NULL;
    uint64_t settings = torch_settings();
    for (Instance **at = &g->first; *at; at = &(*at)->next) {
        Instance *in = *at;
        if (in->inference != f->inference || in->settings != settings || !in_place(in, f) ||
            (in->guest && !f->given) || !lent_is_back(in))
            continue;
        if (!best || (in->n_lent && !(*best)->n_lent))
            best = at;
        if (in->n_lent)
            break;
    }
    if (!best)
        return NULL;
    Instance *in = *best;
    *best = in->next;
    in->next = g->first;
    g->first = in;
    return in;
}

/* ---------------------------------------------------------------- running */

int provide(Executable *x, Frame *f, Instance *in)
{
    Graphs *g = x->graphs;
    for (int i = 0; i < g->n_made; i++) {
        int n = g->made[i];
        if (in->roles[n] != HELD && !f->handles[n] && frame_alloc(x, f, n) < 0)
            return -1;
    }
    return 0;
}

static void mark(Instance *in, int node, int *n_dirty)
{
    if (in->nodes[node].dirty)
        return;
    in->nodes[node].dirty = 1;
    in->dirty[(*n_dirty)++] = node;
}

/* Write what moved since the last call into the graph. An error code. */
static int patch(Instance *in, const Frame *f)
{
    int n_dirty = 0, code = 0, copies = 0;
    for (int i = 0; i < in->n_moving; i++) {
        Moving *m = &in->moving[i];
        uint64_t now = (uint64_t)(uintptr_t)f->pointers[m->tensor];
        if (m->size) {
            const void *number = f->pointers[m->tensor];
            now = 0;
            memcpy(&now, number, (size_t)m->size);
        }
        if (now == m->last)
            continue;
        m->last = now;
        for (Patch *p = in->patches + m->first; p < in->patches + m->first + m->n; p++) {
            in->nodes[p->node].values[p->slot] = now + (uint64_t)p->delta;
            mark(in, p->node, &n_dirty);
        }
        for (int k = 0; k < 2; k++)
            if (m->copies[k] >= 0) {
                Copy *c = &in->copies[m->copies[k]];
                *(c->to_tensor ? &c->params.target.device : &c->params.source.device) = now;
                c->dirty = 1;
                copies = 1;
            }
    }
    for (int i = 0; i < n_dirty && !code; i++) {
        Node *node = &in->nodes[in->dirty[i]];
        node->dirty = 0;
        code = cuda.set_kernel_node(in->exec, node->node, &node->params);
    }
    for (int i = 0; copies && i < in->n_copies && !code; i++) {
        Copy *c = &in->copies[i];
        if (c->dirty)
            code = cuda.set_copy_node(in->exec, c->node, &c->params,
                                      cuda_context(in->owner->device));
        c->dirty = 0;
    }
    return code;
}

/* Make `stream` wait for the graphs that ran on another one, and for what read their results there
 * so far. 0, or a code if graphs cannot be used now. */
static int order(Line *line, void *stream)
{
    int capturing = 0, code = 0;
    if (line->used && line->stream != stream) {
        if (line->stream && (code = cuda.is_capturing(line->stream, &capturing)))
            return code;
        if (capturing)
            return 900;  /* CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED */
        if (!line->event)
            code = cuda.event_create(&line->event, 2);  /* without timing */
        if (!code)
            code = cuda.event_record(line->event, line->stream);
        if (!code)
            code = cuda.stream_wait(stream, line->event, 0);
    }
    if (!code) {
        line->used = 1;
        line->stream = stream;
    }
    return code;
}

/* 1: done. 0: the graph is broken or cannot be used now, and nothing was started. -1: exception. */
static int instance_run(Executable *x, Frame *f, Instance *in)
{
    Line *line = &lines[x->device];
    if (provide(x, f, in) < 0)
        return -1;
    if (line->stream != f->stream && order(line, f->stream))
        return 0;
    line->used = 1;
    int code = patch(in, f);
    if (!code)
        code = cuda.graph_launch(in->exec, f->stream);
    if (code) {
        const char *text = NULL;
        cuda.error_string(code, &text);
        turn_off(x->graphs, text ? text : "launching the graph failed");
        graphs_drop(x);
        return 0;
    }
    in->last_stream = f->stream;
    in->stamp = ++clock_now;
    in->runs++;
    return lend(x, f, in) < 0 ? -1 : 1;
}

/* ---------------------------------------------------------------- recording */

/* Positions of inputs that are not where they were. */
static PyObject *moved_inputs(Executable *x, Frame *f)
{
    Graphs *g = x->graphs;
    PyObject *list = PyList_New(0), *moved = NULL;
    for (int i = 0; list && i < x->n_inputs; i++) {
        void *before = g->seen[i];
        if (before == f->pointers[i])
            continue;
        PyObject *n = PyLong_FromLong(i);
        if (!n || PyList_Append(list, n) < 0)
            Py_CLEAR(list);
        Py_XDECREF(n);
    }
    if (list)
        moved = PyList_AsTuple(list);
    Py_XDECREF(list);
    return moved;
}

static void remember(Executable *x, Frame *f)
{
    memcpy(x->graphs->seen, f->pointers, (size_t)x->n_inputs * sizeof(void *));
}

/* Graphs that no call takes any more. */
static void sweep(Graphs *g)
{
    for (Instance *in = g->first, *next; in; in = next) {
        next = in->next;
        if (in->region && in->region->closed)
            instance_drop(in);
    }
}

static int record(Executable *x, Frame *f, PyObject *const *inputs)
{
    Graphs *g = x->graphs;
    sweep(g);
    PyObject *moved = moved_inputs(x, f);
    if (!moved)
        return -1;
    g->frame = f;
    g->inputs = inputs;
    PyObject *done = PyObject_CallFunction(g->record, "OiN", x, f->inference, moved);
    g->frame = NULL;
    g->inputs = NULL;
    if (g->pending) {
        instance_free(g->pending);
        g->pending = NULL;
    }
    remember(x, f);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

/* Outputs that a launch list makes by its own steps. */
static void take_back(Executable *x, Frame *f)
{
    Graphs *g = x->graphs;
    for (int i = 0; i < g->n_made; i++)
        if (x->specs[g->made[i]].place == EXTERN)
            frame_drop(x, f, g->made[i]);
}

/* Whether `order` may record an event on this stream later: it must not go away. */
static int admitted(Executable *x, void *stream)
{
    static void *known[256];
    static int n_known;
    if (stream == lines[x->device].stream)
        return 1;
    for (int i = 0; i < n_known; i++)
        if (known[i] == stream)
            return 1;
    PyObject *answer = PyObject_CallFunction(x->graphs->admit, "i", x->device);
    int good = answer ? PyObject_IsTrue(answer) : -1;
    Py_XDECREF(answer);
    if (good == 1 && n_known < (int)(sizeof known / sizeof *known))
        known[n_known++] = stream;
    return good;
}

int graph_call(Executable *x, Frame *f, PyObject *const *inputs)
{
    Graphs *g = x->graphs;
    if (g->why || f->capturing || f->cloned || g->frame)
        return 0;
    int may = admitted(x, f->stream);
    if (may <= 0)
        return may;
    Instance *in = pick(g, f);
    if (!in) {
        if (!g->runs || g->thread != PyThread_get_thread_ident()) {
            remember(x, f);
            g->runs++;
            g->thread = PyThread_get_thread_ident();
            return 0;
        }
        if (record(x, f, inputs) < 0)
            return -1;
        in = pick(g, f);
    }
    int done = in ? instance_run(x, f, in) : 0;
    if (done == 0)
        take_back(x, f);
    if (done > 0)
        f->served = in;
    PyThreadState *saved = NULL;
    int n_views = done > 0 && in->saved ? g->n_shown_tail : g->n_tail;
    for (int i = 0; done > 0 && i < n_views; i++)
        if (make_view(x, f, &x->steps[g->tail[i]], inputs, &saved) < 0)
            done = -1;
    return done;
}

int graphs_serve(const Executable *x)
{
    return x->graphs && !x->graphs->why;
}

/* ---------------------------------------------------------------- for Python */

/* part() -> whether there were any: close the graphs that cannot be used because results of the
 * backward that worked in their memory are still there. */
PyObject *graphs_part(PyObject *self, PyObject *unused)
{
    Graphs *g = ((Executable *)self)->graphs;
    int found = 0;
    for (Instance *in = g ? g->first : NULL; in; in = in->next)
        if (in->region && !in->guest && in->region->guest && !results_are_back(in->region->guest))
            found = in->region->closed = 1;
    if (found)
        sweep(g);
    return PyBool_FromLong(found);
}

/* consumes() -> whether the call that asked for a graph may use up its inputs. */
PyObject *graphs_consumes(PyObject *self, PyObject *unused)
{
    Graphs *g = ((Executable *)self)->graphs;
    return PyBool_FromLong(g && g->frame && g->frame->given);
}

/* graphs_keep(n): drop all graphs but the n that were used last. */
PyObject *graphs_keep(PyObject *self, PyObject *number)
{
    Graphs *g = ((Executable *)self)->graphs;
    long n = PyLong_AsLong(number);
    if (PyErr_Occurred())
        return NULL;
    Instance *in = g ? g->first : NULL;
    for (; in && n > 1; n--)
        in = in->next;
    while (in && (n < 1 || in->next)) {
        Instance *last = in;
        while (last->next)
            last = last->next;
        int done = last == in;
        instance_drop(last);
        if (done)
            break;
    }
    Py_RETURN_NONE;
}

static int note_shown(Executable *x, Graphs *g)
{
    g->shown = PyMem_Calloc((size_t)x->n_tensors + 1, 1);
    for (int i = 0; g->shown && i < x->n_outputs - x->n_saved; i++)
        if (x->outputs[i] >= 0)
            g->shown[g->root[x->outputs[i]]] = 1;
    return g->shown != NULL;
}

/* graphs_on(record, admit, root, tail, made, n_shown): the first n_shown of `tail` are those that
 * outputs which are not saved need. */
PyObject *graphs_on(PyObject *self, PyObject *args)
{
    Executable *x = (Executable *)self;
    PyObject *record, *admit, *root, *tail, *made;
    int n_shown;
    if (!PyArg_ParseTuple(args, "OOO!O!O!i", &record, &admit, &PyTuple_Type, &root, &PyTuple_Type,
                          &tail, &PyTuple_Type, &made, &n_shown))
        return NULL;
    if (x->device < 0 || x->graphs)
        return PyErr_Format(PyExc_ValueError, "no device, or graphs are on already");
    Graphs *g = PyMem_Calloc(1, sizeof *g);
    if (!g)
        return PyErr_NoMemory();
    x->graphs = g;
    g->record = Py_NewRef(record);
    g->admit = Py_NewRef(admit);
    g->root = numbers(root, &g->n_root, 0, x->n_tensors);
    g->tail = g->root ? numbers(tail, &g->n_tail, 0, x->n_steps) : NULL;
    g->made = g->tail ? numbers(made, &g->n_made, x->n_inputs, x->n_tensors) : NULL;
    g->seen = PyMem_Calloc(x->n_inputs ? (size_t)x->n_inputs : 1, sizeof *g->seen);
    g->n_shown_tail = n_shown;
    int good = g->made && g->seen && g->n_root == x->n_tensors && n_shown >= 0 &&
               n_shown <= g->n_tail && note_shown(x, g);
    for (int i = 0; good && i < g->n_tail; i++)
        good = x->steps[g->tail[i]].kind == S_VIEW;
    if (!good) {
        graphs_free(x);
        return PyErr_Occurred() ? NULL : PyErr_Format(PyExc_ValueError, "graph rows");
    }
    Py_RETURN_NONE;
}

PyObject *graphs_off(PyObject *self, PyObject *reason)
{
    Executable *x = (Executable *)self;
    if (!PyUnicode_Check(reason))
        return PyErr_Format(PyExc_TypeError, "the reason is not a string");
    if (!x->graphs && !(x->graphs = PyMem_Calloc(1, sizeof *x->graphs)))
        return PyErr_NoMemory();
    Py_XSETREF(x->graphs->why, Py_NewRef(reason));
    graphs_drop(x);
    Py_RETURN_NONE;
}

/* The reason, or one (inference, nodes, copies, copied bytes, lent bytes, runs) per graph. */
PyObject *graphs_get(PyObject *self, void *unused)
{
    Graphs *g = ((Executable *)self)->graphs;
    if (!g)
        return PyUnicode_FromString("off");
    if (g->why)
        return Py_NewRef(g->why);
    PyObject *rows = PyList_New(0);
    for (Instance *in = g->first; rows && in; in = in->next) {
        PyObject *row = Py_BuildValue("iiiLLK", in->inference, in->n_nodes, in->n_copies,
                                      (long long)in->copied_bytes, (long long)in->lent_bytes,
                                      (unsigned long long)in->runs);
        if (!row || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    PyObject *result = rows ? PyList_AsTuple(rows) : NULL;
    Py_XDECREF(rows);
    return result;
}

/* graph_totals() -> (graphs, nodes, bytes copied per call, bytes lent, of these in Regions) */
PyObject *graph_totals(PyObject *self, PyObject *unused)
{
    long long nodes = 0, copied = 0, lent = 0, in_regions = 0;
    for (Instance *in = all; in; in = in->next_of_all) {
        nodes += in->n_nodes;
        copied += in->copied_bytes;
        lent += in->lent_bytes;
        in_regions += in->region ? in->lent_bytes : 0;
    }
    return Py_BuildValue("iLLLL", n_all, nodes, copied, lent, in_regions);
}

/* graph_evict(for=None) -> whether there was one: drop the graph that was not used for longest; for an
 * Executable, of others' graphs that lend and that nobody has a part of. */
PyObject *graph_evict(PyObject *self, PyObject *args)
{
    PyObject *other = NULL;
    if (!PyArg_ParseTuple(args, "|O", &other))
        return NULL;
    Instance *oldest = NULL;
    for (Instance *in = all; in; in = in->next_of_all) {
        if (other && (in->owner == (Executable *)other || !in->n_lent || !lent_is_back(in)))
            continue;
        if (!oldest || in->stamp < oldest->stamp)
            oldest = in;
    }
    if (oldest)
        instance_drop(oldest);
    return PyBool_FromLong(oldest != NULL);
}
