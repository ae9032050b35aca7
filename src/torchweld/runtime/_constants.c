/* Constants of a Program: found again by the identity of the inputs that they were computed from.
 *
 * The pointers in `witness` are not owned. They are good because `forget` is called before one of
 * those tensors is freed (constants.py keeps weak references to them), so that a tensor at the same
 * address is never taken for the old one.
 */
#include "_driver.h"

#include <string.h>

int constants_init(Executable *x, int n, PyObject *frozen, PyObject *source)
{
    x->n_constants = n;
    x->n_inputs += n;
    x->n_frozen = (int)PyTuple_GET_SIZE(frozen);
    x->frozen = PyMem_Calloc((size_t)x->n_frozen + 1, sizeof *x->frozen);
    x->witness = PyMem_Calloc((size_t)x->n_frozen + 1, sizeof *x->witness);
    if (!x->frozen || !x->witness) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < x->n_frozen; i++) {
        long at = PyLong_AsLong(PyTuple_GET_ITEM(frozen, i));
        if (at < 0 || at >= x->n_inputs - n) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError, "frozen input %ld", at);
            return -1;
        }
        x->frozen[i] = (int)at;
    }
    x->source = Py_NewRef(source);
    return 0;
}

void constants_forget(Executable *x)
{
    Py_CLEAR(x->known);
}

void constants_free(Executable *x)
{
    constants_forget(x);
    Py_CLEAR(x->source);
    PyMem_Free(x->frozen);
    PyMem_Free(x->witness);
}

static int recognised(const Executable *x, PyObject *const *given)
{
    if (!x->known)
        return 0;
    for (int i = 0; i < x->n_frozen; i++)
        if (given[x->frozen[i]] != x->witness[i])
            return 0;
    return 1;
}

PyObject *constants_for(Executable *x, PyObject *const *given)
{
    if (recognised(x, given))
        return Py_NewRef(x->known);
    PyObject *found =
        PyObject_Vectorcall(x->source, given, (size_t)(x->n_inputs - x->n_constants), NULL);
    if (!found)
        return NULL;
    int right = PyTuple_Check(found) && PyTuple_GET_SIZE(found) == x->n_constants;
    if (!right) {
        Py_DECREF(found);
        PyErr_Format(torch.internal_error, "a prologue did not give %d tensors", x->n_constants);
        return NULL;
    }
    for (int i = 0; i < x->n_frozen; i++)
        x->witness[i] = given[x->frozen[i]];
    Py_XSETREF(x->known, Py_NewRef(found));
    return found;
}
