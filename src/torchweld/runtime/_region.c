/* Memory of a forward's graph in which the graph of its backward works, too (ADR 0034).
 *
 * What a forward saves is read by its backward for the last time somewhere in it; from there on its
 * memory serves the backward's own results, as in eager. But a graph writes to the same addresses in
 * every call, and the tensors that the forward gives out are made once. So these do not own their
 * memory: each owns a part of the Region, which owns blocks of the allocator's. While the backward is
 * recorded, a block goes back to the allocator behind the step that reads it last, and what the
 * backward makes is put there. The addresses stay the pool's for as long as the Region lives.
 *
 * The forward's graph is used again when nobody has what it lent, nor what the backward lent. A Region
 * that one of both left is closed: then the other is not used any more either.
 */
#include "_graph.h"

#include <stdlib.h>
#include <string.h>

/* DLPack 0.8 (dmlc.github.io/dlpack): how torch takes memory over that somebody else frees. */
typedef struct {
    int32_t type, number;
} Device;

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
} Type;

typedef struct Shared {
    struct {
        void *data;
        Device device;
        int32_t ndim;
        Type dtype;
        int64_t *shape, *strides;
        uint64_t offset;
    } tensor;
    void *owner;
    void (*let_go)(struct Shared *);
    int64_t size;
} Shared;

#define ON_CPU 1
#define ON_CUDA 2
#define UNSIGNED 1

static void let_go_of(Shared *s)
{
    if (Py_IsInitialized()) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF((PyObject *)s->owner);
        PyGILState_Release(state);
    }
    free(s);
}

/* Bytes as a tensor that owns a part of the Region; NULL with an exception. */
static PyObject *shared_tensor(Region *r, void *data, int64_t bytes, const Spec *like)
{
    Shared *s = calloc(1, sizeof *s);
    if (!s)
        return PyErr_NoMemory();
    int on_gpu = like->device_type != torch.cpu;
    s->size = bytes;
    s->tensor.data = data;
    s->tensor.device = (Device){on_gpu ? ON_CUDA : ON_CPU, on_gpu ? like->device : 0};
    s->tensor.ndim = 1;
    s->tensor.dtype = (Type){UNSIGNED, 8, 1};
    s->tensor.shape = &s->size;
    s->owner = Py_NewRef(r);
    s->let_go = let_go_of;
    PyObject *capsule = PyCapsule_New(s, "dltensor", NULL);
    PyObject *made = capsule ? PyObject_CallOneArg(r->from_dlpack, capsule) : NULL;
    if (!made)
        let_go_of(s);
    Py_XDECREF(capsule);
    return made;
}

int region_take(Region *r, Handle t, const Spec *s, Handle *holder)
{
    void *data;
    int64_t bytes, offset;
    if (r->n_blocks == r->room_blocks) {
        int room = r->room_blocks ? 2 * r->room_blocks : 64;
        Block *more = PyMem_Realloc(r->blocks, (size_t)room * sizeof *more);
        if (!more)
            return PyErr_NoMemory(), -1;
        r->blocks = more;
        r->room_blocks = room;
    }
    if (torch.get_data_ptr(t, &data) || torch.get_storage_size(t, &bytes) ||
        torch.get_storage_offset(t, &offset))
        return -1;
    Block *b = &r->blocks[r->n_blocks];
    char *start = (char *)data - offset * s->itemsize;
    if (torch.new_handle(t, &b->owner))
        return -1;
    b->address = start;
    b->bytes = bytes;
    r->n_blocks++;
    PyObject *whole = shared_tensor(r, start, bytes, s);
    if (!whole)
        return -1;
    int code = torch.alloc_from_pool(handle_of(whole), offset * s->itemsize, s->dtype, s->ndim,
                                     s->sizes, s->strides, holder);
    Py_DECREF(whole);
    return code ? -1 : 0;
}

int region_free_to_use(const Instance *in)
{
    const Region *r = in->region;
    return !r || (!r->closed && (in->guest || !r->guest || results_are_back(r->guest)));
}

void region_leave(Instance *in)
{
    if (!in->region)
        return;
    in->region->closed = 1;
    if (in->region->guest == in)
        in->region->guest = NULL;
}

/* region(address) -> the Region of the graph that lends what is there, or None */
PyObject *graphs_region(PyObject *self, PyObject *address)
{
    void *wanted = PyLong_AsVoidPtr(address);
    if (PyErr_Occurred())
        return NULL;
    Graphs *g = ((Executable *)self)->graphs;
    for (Instance *in = g ? g->first : NULL; in; in = in->next)
        for (int i = 0; in->region && !in->guest && i < in->n_lent; i++)
            if (in->lent[i].address == wanted && !in->region->closed)
                return Py_NewRef(in->region);
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- for Python */

static PyObject *region_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *pool, *from_dlpack;
    if (!PyArg_ParseTuple(args, "OO", &pool, &from_dlpack))
        return NULL;
    Region *r = (Region *)type->tp_alloc(type, 0);
    if (r) {
        r->pool = Py_NewRef(pool);
        r->from_dlpack = Py_NewRef(from_dlpack);
    }
    return (PyObject *)r;
}

static void region_dealloc(PyObject *self)
{
    Region *r = (Region *)self;
    for (int i = 0; i < r->n_blocks; i++)
        if (r->blocks[i].owner)
            torch.delete_handle(r->blocks[i].owner);
    PyMem_Free(r->blocks);
    Py_CLEAR(r->pool);
    Py_CLEAR(r->from_dlpack);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *region_pool(PyObject *self, void *unused)
{
    return Py_NewRef(((Region *)self)->pool);
}

/* Whether a backward's graph may be recorded that works in it. */
static PyObject *region_open(PyObject *self, void *unused)
{
    Region *r = (Region *)self;
    return PyBool_FromLong(r->n_blocks && !r->closed && !r->guest);
}

/* ((address, bytes), ...) */
static PyObject *region_blocks(PyObject *self, void *unused)
{
    Region *r = (Region *)self;
    PyObject *found = PyTuple_New(r->n_blocks);
    for (int i = 0; found && i < r->n_blocks; i++) {
        PyObject *row = Py_BuildValue("NL", PyLong_FromVoidPtr(r->blocks[i].address),
                                      (long long)r->blocks[i].bytes);
        if (!row)
            Py_CLEAR(found);
        else
            PyTuple_SET_ITEM(found, i, row);
    }
    return found;
}

static PyGetSetDef getset[] = {
    {"pool", region_pool, NULL, "Where its memory comes from.", NULL},
    {"open", region_open, NULL, "Whether a backward may be recorded in it.", NULL},
    {"blocks", region_blocks, NULL, "(address, bytes) of what the forward saves.", NULL},
    {NULL},
};

PyTypeObject region_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "torchweld.runtime._driver.Region",
    .tp_basicsize = sizeof(Region),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_doc = "Memory of a forward's graph that its backward works in, too.",
    .tp_new = region_new,
    .tp_dealloc = region_dealloc,
    .tp_getset = getset,
};

int region_ready(PyObject *module)
{
    if (PyType_Ready(&region_type) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Region", (PyObject *)&region_type);
}
