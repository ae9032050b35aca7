/* What a guard demands of a tensor, and whether a tensor is so. */
#include "_tensor.h"

#define ANY INT64_MIN

struct TwTensorSpec {
    PyTypeObject *type;
    int32_t dtype, device_type, device_index, layout;
    int requires_grad, inference;       /* -1: any */
    bool plain;                 /* reading such a tensor runs no Python code */
    bool any_size, any_stride;  /* some entry is ANY */
    int64_t ndim, n_strides;    /* n_strides 0: any */
    int64_t dims[];             /* sizes, then strides */
};

static bool
fill_dims(PyObject *tuple, int64_t *out, bool *any)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(tuple); i++) {
        PyObject *item = PyTuple_GET_ITEM(tuple, i);
        if (item == Py_None) {
            out[i] = ANY;
            *any = true;
            continue;
        }
        out[i] = PyLong_AsLongLong(item);
        if (out[i] == -1 && PyErr_Occurred()) {
            return false;
        }
    }
    return true;
}

TwTensorSpec *
tw_tensor_spec_new(PyObject *tuple)
{
    PyObject *type, *grad, *sizes, *strides, *inference = Py_None;
    int dtype, device_type, device_index, layout;
    TwTensorSpec *s;

    if (tw_tensor_base() == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "torch_init must be called before TENSOR is used");
        return NULL;
    }
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a TENSOR spec is a tuple");
        return NULL;
    }
    if (!PyArg_ParseTuple(tuple, "O!iiiiOO!O!|O:TENSOR spec", &PyType_Type, &type, &dtype,
                          &device_type, &device_index, &layout, &grad, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &strides, &inference)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)type, tw_tensor_base())) {
        PyErr_SetString(PyExc_TypeError, "the class in a TENSOR spec is not a tensor class");
        return NULL;
    }
    if ((grad != Py_None && !PyBool_Check(grad))
        || (inference != Py_None && !PyBool_Check(inference))) {
        PyErr_SetString(PyExc_TypeError,
                        "requires_grad and is_inference in a TENSOR spec are bools or None");
        return NULL;
    }
    if (PyTuple_GET_SIZE(strides) != 0 && PyTuple_GET_SIZE(strides) != PyTuple_GET_SIZE(sizes)) {
        PyErr_SetString(PyExc_ValueError, "a TENSOR spec needs as many strides as sizes, or none");
        return NULL;
    }
    s = PyMem_Calloc(1, sizeof(*s) + sizeof(int64_t) * 2 * (size_t)PyTuple_GET_SIZE(sizes));
    if (s == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    s->type = (PyTypeObject *)type;
    s->dtype = dtype;
    s->device_type = device_type;
    s->device_index = device_index;
    s->layout = layout;
    s->requires_grad = grad == Py_None ? -1 : grad == Py_True;
    s->inference = inference == Py_None ? -1 : inference == Py_True;
    s->plain = tw_tensor_is_plain(s->type);
    s->ndim = PyTuple_GET_SIZE(sizes);
    s->n_strides = PyTuple_GET_SIZE(strides);
    if (!fill_dims(sizes, s->dims, &s->any_size)
        || !fill_dims(strides, s->dims + s->ndim, &s->any_stride)) {
        PyMem_Free(s);
        return NULL;
    }
    return s;
}

void
tw_tensor_spec_free(TwTensorSpec *spec)
{
    PyMem_Free(spec);
}

bool
tw_tensor_runs_python(const TwTensorSpec *s)
{
    return !(tw_shim.enabled && s->plain
             && (s->requires_grad < 0 || tw_shim.requires_grad != NULL)
             && (s->inference < 0 || tw_shim.is_inference != NULL));
}

static inline bool
dims_match(const int64_t *want, const int64_t *have, int64_t n, bool any)
{
    for (int64_t i = 0; i < n; i++) {
        if (want[i] != have[i] && !(any && want[i] == ANY)) {
            return false;
        }
    }
    return true;
}

static inline bool
is_code(GetInt32 get, void *handle, int32_t want)
{
    int32_t have;

    return get(handle, &have) == 0 && have == want;
}

/* As `read_fast` in _tensor.c, and a comparison with all that it reads. This is most of what guards
   cost. */
static inline bool
matches_fast(const TwTensorSpec *s, PyObject *tensor)
{
    void *handle = (char *)tensor + tw_shim.offset;
    int64_t ndim, *sizes, *strides;
    int grad;

    if (!is_code(tw_shim.dtype, handle, s->dtype) || tw_shim.dim(handle, &ndim) || ndim != s->ndim
        || tw_shim.sizes(handle, &sizes) || !dims_match(s->dims, sizes, ndim, s->any_size)
        || !is_code(tw_shim.device_type, handle, s->device_type)
        || !is_code(tw_shim.device_index, handle, s->device_index)
        || !is_code(tw_shim.layout, handle, s->layout)) {
        return false;
    }
    if (s->n_strides != 0
        && (s->layout != tw_shim.strided || tw_shim.strides(handle, &strides)
            || !dims_match(s->dims + ndim, strides, ndim, s->any_stride))) {
        return false;
    }
    return s->requires_grad < 0
        || (tw_tensor_requires_grad(tensor, &grad) && grad == s->requires_grad);
}

static bool
matches_slow(const TwTensorSpec *s, PyObject *tensor)
{
    TwMeta m;

    if (!tw_tensor_read_slow(tensor, &m, s->requires_grad >= 0) || m.dtype != s->dtype
        || m.device_type != s->device_type || m.layout != s->layout
        || m.device_index != s->device_index || m.ndim != s->ndim
        || (s->requires_grad >= 0 && m.requires_grad != s->requires_grad)
        || !dims_match(s->dims, m.sizes, s->ndim, s->any_size)) {
        return false;
    }
    return s->n_strides == 0
        || (m.strides != NULL && dims_match(s->dims + s->ndim, m.strides, s->ndim, s->any_stride));
}

bool
tw_tensor_matches(const TwTensorSpec *s, PyObject *tensor)
{
    bool ok;
    int inference;

    if (Py_TYPE(tensor) != s->type) {
        return false;
    }
    ok = tw_shim.enabled ? matches_fast(s, tensor) : matches_slow(s, tensor);
    if (ok && s->inference >= 0) {
        ok = tw_tensor_is_inference(tensor, &inference) && inference == s->inference;
    }
    if (!ok && PyErr_Occurred()) {
        PyErr_Clear();
    }
    return ok;
}

/* --- values ------------------------------------------------------------------------------- */

static bool
reads_by_shim(PyObject *tensor)
{
    return tw_shim.enabled && tw_tensor_is_plain(Py_TYPE(tensor));
}

/* Where the elements of a tensor on the CPU begin; NULL with an exception, or without one if it
   has none. */
static const void *
elements_of(PyObject *tensor)
{
    void *data = NULL;
    PyObject *address;

    if (reads_by_shim(tensor)) {
        return tw_shim.data((char *)tensor + tw_shim.offset, &data) == 0 ? data : NULL;
    }
    address = PyObject_CallMethod(tensor, "data_ptr", NULL);
    data = address == NULL ? NULL : PyLong_AsVoidPtr(address);
    Py_XDECREF(address);
    return data;
}

/* Whether the first `aux` bytes of tensors on the CPU are the same: their guards have made sure
   that they have so many. */
int
tw_op_same_values(TwRun *run, const TwInstr *in)
{
    int32_t n = in->u.regs[0];
    const int32_t *regs = in->u.regs + 2;
    const void *first = NULL, *data;

    for (int32_t i = 0; i < n; i++) {
        PyObject *tensor = run->regs[regs[i]];
        if (!run->owning && !reads_by_shim(tensor)) {
            return TW_RESTART;
        }
        data = elements_of(tensor);
        if (data == NULL || (first != NULL && memcmp(first, data, (size_t)in->aux) != 0)) {
            PyErr_Clear();
            return TW_FAIL;
        }
        first = data;
    }
    return TW_OK;
}
