/* Results that graphs give out without a copy.
 *
 * A lent result is the memory that the graph writes to: the graph is not used while somebody has it.
 * What a forward saves for its backward is lent in whole: the same tensors, in the same tuple, at
 * every call, so the backward finds them where they were, and a call makes nothing. Whether they are
 * back is read off their reference counts: of the tuple, of each tensor as a Python object and as a
 * C++ object, and of each storage. Whatever else has a part of it changes one of them.
 */
#include "_graph.h"

/* The word that counts the owners of a tensor, as it does those of a storage. */
static uint64_t owners(Handle t)
{
    return __atomic_load_n(*(uint64_t **)t + 1, __ATOMIC_ACQUIRE);
}

static uint64_t storage_owners(Handle t)
{
    uint64_t *count = storage_count(t);
    return count ? __atomic_load_n(count, __ATOMIC_ACQUIRE) : 0;
}

static int saved_is_back(const Instance *in)
{
    if (Py_REFCNT(in->saved) != 1)
        return 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(in->saved); i++) {
        PyObject *t = PyTuple_GET_ITEM(in->saved, i);
        if (Py_REFCNT(t) != 1 || owners(handle_of(t)) != in->saved_rest[i])
            return 0;
    }
    return 1;
}

static int is_back(const Instance *in, const Lent *l)
{
    void *data;
    int back = in->saved && l->saved ? storage_owners(l->holder) == l->rest
                                     : storage_unique(l->holder);
    return back && torch.get_data_ptr(l->holder, &data) == 0 && data == l->address;
}

int lent_is_back(const Instance *in)
{
    if ((in->saved && !saved_is_back(in)) || !region_free_to_use(in))
        return 0;
    return results_are_back(in);
}

int results_are_back(const Instance *in)
{
    for (int i = 0; i < in->n_lent; i++)
        if (!is_back(in, &in->lent[i]))
            return 0;
    return 1;
}

int lend(Executable *x, Frame *f, Instance *in)
{
    for (int i = 0; i < in->n_lent; i++) {
        int n = in->lent[i].tensor;
        Spec *s = &x->specs[n];
        if (in->saved && in->lent[i].saved)
            continue;
        if (torch.reinterpret(in->lent[i].holder, s->ndim, s->sizes, s->strides, 0,
                              &f->handles[n])) {
            PyErr_Format(torch.internal_error, "tensor %d of a graph cannot be given out", n);
            return -1;
        }
        f->owned[n] = 1;
    }
    f->saved = Py_XNewRef(in->saved);
    return 0;
}

/* Whether each saved output is a tensor of its own in memory where no other output is. */
static int all_saved(const Executable *x, const Instance *in)
{
    Graphs *g = x->graphs;
    int first = x->n_outputs - x->n_saved;
    for (int i = first; i < x->n_outputs; i++) {
        int n = x->outputs[i], root = n < 0 ? 0 : g->root[n];
        if (root < x->n_inputs || in->roles[root] != HELD || g->shown[root])
            return 0;
        for (int k = first; k < i; k++)
            if (x->outputs[k] == n)
                return 0;
    }
    return x->n_saved > 0;
}

int hold_lent(Executable *x, Frame *t)
{
    Instance *in = t->trace;
    Graphs *g = x->graphs;
    in->all_saved = (char)all_saved(x, in);
    for (int i = 0; i < g->n_made; i++) {
        int n = g->made[i];
        Spec *s = &x->specs[n];
        if (in->roles[n] != HELD)
            continue;
        Lent *l = &in->lent[in->n_lent];
        l->tensor = n;
        l->saved = in->all_saved && !g->shown[n];
        if (!t->handles[n] || torch.get_data_ptr(t->handles[n], &l->address) ||
            (l->saved && in->region
                 ? region_take(in->region, t->handles[n], s, &l->holder)
                 : torch.reinterpret(t->handles[n], s->ndim, s->sizes, s->strides, 0, &l->holder))) {
            if (!PyErr_Occurred())
                PyErr_Format(torch.internal_error, "output %d cannot be held", n);
            return -1;
        }
        in->n_lent++;
        in->lent_bytes += s->bytes;
    }
    return 0;
}

void lent_free(Instance *in)
{
    for (int i = 0; i < in->n_lent; i++)
        if (in->lent[i].holder)
            torch.delete_handle(in->lent[i].holder);
    PyMem_Free(in->lent);
    PyMem_Free(in->saved_rest);
    in->n_lent = 0;
    in->lent = NULL;
    in->saved_rest = NULL;
    Py_CLEAR(in->saved);
}

/* ---------------------------------------------------------------- what is given out every time */

/* Whether the graph that served a call still exists: Python code ran since. */
static int exists(const Executable *x, const Instance *in)
{
    for (Instance *at = x->graphs ? x->graphs->first : NULL; at; at = at->next)
        if (at == in)
            return 1;
    return 0;
}

void lent_keep(Executable *x, Frame *f, PyObject *saved)
{
    Instance *in = f->served;
    if (!in || !exists(x, in) || !in->all_saved || in->saved || !torch.storage_word)
        return;
    in->saved_rest = PyMem_Calloc((size_t)x->n_saved, sizeof *in->saved_rest);
    if (in->saved_rest)
        in->saved = Py_NewRef(saved);
    f->settles = in->saved != NULL;
}

/* After the call, before anybody has what it gave: nobody else has a part of it now. */
void lent_settle(Executable *x, Instance *in)
{
    if (!exists(x, in) || !in->saved)
        return;
    for (int i = 0; i < in->n_lent; i++)
        in->lent[i].rest = storage_owners(in->lent[i].holder);
    for (int i = 0; i < x->n_saved; i++)
        in->saved_rest[i] = owners(handle_of(PyTuple_GET_ITEM(in->saved, i)));
}

/* ---------------------------------------------------------------- for Python */

/* lent() -> the addresses of what graphs lend. */
PyObject *lent_addresses(PyObject *self, PyObject *unused)
{
    Graphs *g = ((Executable *)self)->graphs;
    PyObject *found = PySet_New(NULL);
    for (Instance *in = g ? g->first : NULL; found && in; in = in->next)
        for (int i = 0; found && i < in->n_lent; i++) {
            PyObject *address = PyLong_FromVoidPtr(in->lent[i].address);
            if (!address || PySet_Add(found, address) < 0)
                Py_CLEAR(found);
            Py_XDECREF(address);
        }
    return found;
}

/* given() -> the inputs of the call that asked for a graph. */
PyObject *given_inputs(PyObject *self, PyObject *unused)
{
    Executable *x = (Executable *)self;
    if (!x->graphs || !x->graphs->frame)
        return PyErr_Format(PyExc_RuntimeError, "nothing is being recorded");
    PyObject *found = PyTuple_New(x->n_inputs);
    for (int i = 0; found && i < x->n_inputs; i++)
        PyTuple_SET_ITEM(found, i, Py_NewRef(x->graphs->inputs[i]));
    return found;
}

/* save_last(n): the last n outputs are given as one tuple, behind the others. */
PyObject *save_last(PyObject *self, PyObject *number)
{
    Executable *x = (Executable *)self;
    long n = PyLong_AsLong(number);
    if (PyErr_Occurred())
        return NULL;
    if (n < 0 || n > x->n_outputs || x->graphs)
        return PyErr_Format(PyExc_ValueError, "%ld saved of %d outputs", n, x->n_outputs);
    x->n_saved = (int)n;
    x->saves = 1;
    Py_RETURN_NONE;
}
