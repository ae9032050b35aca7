/* Reads the metadata of a tensor without torch's headers. Fast: libtorch's C shim, on the
   at::Tensor inside the Python object. Slow: Python attributes. The fast reader is used only after
   both have agreed on every sample tensor given to `torch_init`. */
#include "_frame.h"

#include <dlfcn.h>

#define MAX_DIMS 64
#define ANY INT64_MIN

struct TwTensorSpec {
    PyTypeObject *type;
    int32_t dtype, device_type, device_index, layout;
    int requires_grad;          /* -1: any */
    bool plain;                 /* reading such a tensor runs no Python code */
    bool any_size, any_stride;  /* some entry is ANY */
    int64_t ndim, n_strides;    /* n_strides 0: any */
    int64_t dims[];             /* sizes, then strides */
};

typedef struct {
    int32_t dtype, device_type, device_index, layout;
    int requires_grad;
    int64_t ndim;
    const int64_t *sizes, *strides;     /* strides NULL: it has none */
    int64_t buffer[2 * MAX_DIMS];
} Meta;

typedef int32_t (*GetInt32)(void *, int32_t *);
typedef int32_t (*GetInt64)(void *, int64_t *);
typedef int32_t (*GetArray)(void *, int64_t **);

static struct {
    GetInt32 dtype, device_type, device_index, layout;
    GetInt64 dim;
    GetArray sizes, strides;
    bool (*requires_grad)(const void *impl);
    getter requires_grad_getter;
    void *requires_grad_closure;
    int32_t strided;
    Py_ssize_t offset;          /* of the at::Tensor in the Python object */
    bool available, enabled;
} shim;

static PyTypeObject *tensor_base;
static PyObject *plain_types;   /* set of the exact types of the samples */

/* The shim's numbers, by kind: for the slow reader. */
enum { DTYPE, DEVICE, LAYOUT, N_KINDS };
static PyObject *code_of[N_KINDS], *object_of[N_KINDS];

/* --- the fast reader ---------------------------------------------------------------------- */

static inline bool
read_requires_grad(PyObject *tensor, int *out)
{
    PyObject *value;

    if (shim.requires_grad != NULL) {
        *out = shim.requires_grad(*(void **)((char *)tensor + shim.offset));
        return true;
    }
    value = shim.requires_grad_getter != NULL
        ? shim.requires_grad_getter(tensor, shim.requires_grad_closure)
        : PyObject_GetAttrString(tensor, "requires_grad");
    if (value == NULL) {
        return false;
    }
    *out = value == Py_True;
    Py_DECREF(value);
    return true;
}

static inline bool
read_fast(PyObject *tensor, Meta *m, bool with_grad)
{
    void *handle = (char *)tensor + shim.offset;
    int64_t *sizes = NULL, *strides = NULL;

    if (shim.dtype(handle, &m->dtype) || shim.device_type(handle, &m->device_type)
        || shim.device_index(handle, &m->device_index) || shim.layout(handle, &m->layout)
        || shim.dim(handle, &m->ndim) || shim.sizes(handle, &sizes)) {
        return false;
    }
    if (m->layout == shim.strided && shim.strides(handle, &strides)) {
        return false;
    }
    m->sizes = sizes;
    m->strides = strides;
    return !with_grad || read_requires_grad(tensor, &m->requires_grad);
}

/* --- the slow reader ---------------------------------------------------------------------- */

/* The number of a dtype, layout or device type (all hashable); numbers of our own where the shim
   told none. `obj` is consumed. */
static bool
number_of(int kind, PyObject *obj, int32_t *out)
{
    PyObject *number;
    bool ok = false;

    if (obj == NULL) {
        return false;
    }
    number = Py_XNewRef(PyDict_GetItemWithError(code_of[kind], obj));
    if (number == NULL && !PyErr_Occurred()) {
        number = PyLong_FromSsize_t(1000000 + PyDict_GET_SIZE(code_of[kind]));
        if (number != NULL && PyDict_SetItem(code_of[kind], obj, number) < 0) {
            Py_CLEAR(number);
        }
    }
    if (number != NULL) {
        *out = (int32_t)PyLong_AsLong(number);
        ok = !PyErr_Occurred();
    }
    Py_XDECREF(number);
    Py_DECREF(obj);
    return ok;
}

static bool
read_device(PyObject *tensor, Meta *m)
{
    PyObject *device = PyObject_GetAttrString(tensor, "device"), *index = NULL;
    bool ok = false;

    if (device == NULL) {
        return false;
    }
    index = PyObject_GetAttrString(device, "index");
    if (index != NULL
        && number_of(DEVICE, PyObject_GetAttrString(device, "type"), &m->device_type)) {
        m->device_index = index == Py_None ? -1 : (int32_t)PyLong_AsLong(index);
        ok = !PyErr_Occurred();
    }
    Py_XDECREF(index);
    Py_DECREF(device);
    return ok;
}

/* -1: not a tuple of at most MAX_DIMS ints. */
static int64_t
read_ints(PyObject *tuple, int64_t *out)
{
    Py_ssize_t n;

    if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > MAX_DIMS) {
        return -1;
    }
    n = PyTuple_GET_SIZE(tuple);
    for (Py_ssize_t i = 0; i < n; i++) {
        out[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (out[i] == -1 && PyErr_Occurred()) {
            return -1;
        }
    }
    return n;
}

/* Only strided tensors have strides: `stride()` of a sparse one answers zeros. */
static bool
read_strides(PyObject *tensor, Meta *m)
{
    PyObject *layout = PyObject_GetAttrString(tensor, "layout");
    PyObject *name = layout == NULL ? NULL : PyObject_Str(layout), *stride;

    m->strides = NULL;
    Py_XDECREF(layout);
    if (name == NULL) {
        return false;
    }
    if (PyUnicode_CompareWithASCIIString(name, "torch.strided") == 0) {
        stride = PyObject_CallMethod(tensor, "stride", NULL);
        if (read_ints(stride, m->buffer + MAX_DIMS) == m->ndim) {
            m->strides = m->buffer + MAX_DIMS;
        }
        Py_XDECREF(stride);
    }
    Py_DECREF(name);
    return !PyErr_Occurred();
}

static bool
read_slow(PyObject *tensor, Meta *m, bool with_grad)
{
    PyObject *shape, *grad;

    if (!number_of(DTYPE, PyObject_GetAttrString(tensor, "dtype"), &m->dtype)
        || !number_of(LAYOUT, PyObject_GetAttrString(tensor, "layout"), &m->layout)
        || !read_device(tensor, m)) {
        return false;
    }
    shape = PyObject_GetAttrString(tensor, "shape");
    m->ndim = read_ints(shape, m->buffer);
    m->sizes = m->buffer;
    Py_XDECREF(shape);
    if (m->ndim < 0 || !read_strides(tensor, m)) {
        return false;
    }
    if (!with_grad) {
        return true;
    }
    grad = PyObject_GetAttrString(tensor, "requires_grad");
    m->requires_grad = grad == Py_True;
    Py_XDECREF(grad);
    return grad != NULL;
}

static inline bool
read_meta(PyObject *tensor, Meta *m, bool with_grad)
{
    return shim.enabled ? read_fast(tensor, m, with_grad) : read_slow(tensor, m, with_grad);
}

/* --- specs -------------------------------------------------------------------------------- */

static bool
is_plain(PyTypeObject *type)
{
    return plain_types != NULL && PySet_Contains(plain_types, (PyObject *)type) == 1;
}

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
    PyObject *type, *grad, *sizes, *strides;
    int dtype, device_type, device_index, layout;
    TwTensorSpec *s;

    if (tensor_base == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "torch_init must be called before TENSOR is used");
        return NULL;
    }
    if (!PyTuple_Check(tuple)) {
        PyErr_SetString(PyExc_TypeError, "a TENSOR spec is a tuple");
        return NULL;
    }
    if (!PyArg_ParseTuple(tuple, "O!iiiiOO!O!:TENSOR spec", &PyType_Type, &type, &dtype,
                          &device_type, &device_index, &layout, &grad, &PyTuple_Type, &sizes,
                          &PyTuple_Type, &strides)) {
        return NULL;
    }
    if (!PyType_IsSubtype((PyTypeObject *)type, tensor_base)) {
        PyErr_SetString(PyExc_TypeError, "the class in a TENSOR spec is not a tensor class");
        return NULL;
    }
    if (grad != Py_None && !PyBool_Check(grad)) {
        PyErr_SetString(PyExc_TypeError, "requires_grad in a TENSOR spec is a bool or None");
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
    s->plain = is_plain(s->type);
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
    return !(shim.enabled && s->plain && (s->requires_grad < 0 || shim.requires_grad != NULL));
}

static inline bool
dims_match(const int64_t *want, const int64_t *have, int64_t n, bool any)
{
    if (!any) {
        return memcmp(want, have, sizeof(*want) * (size_t)n) == 0;
    }
    for (int64_t i = 0; i < n; i++) {
        if (want[i] != ANY && want[i] != have[i]) {
            return false;
        }
    }
    return true;
}

bool
tw_tensor_matches(const TwTensorSpec *s, PyObject *tensor)
{
    Meta m;

    if (Py_TYPE(tensor) != s->type) {
        return false;
    }
    if (!read_meta(tensor, &m, s->requires_grad >= 0)) {
        PyErr_Clear();
        return false;
    }
    if (m.dtype != s->dtype || m.device_type != s->device_type || m.layout != s->layout
        || m.device_index != s->device_index || m.ndim != s->ndim
        || (s->requires_grad >= 0 && m.requires_grad != s->requires_grad)) {
        return false;
    }
    if (!dims_match(s->dims, m.sizes, s->ndim, s->any_size)) {
        return false;
    }
    return s->n_strides == 0
        || (m.strides != NULL && dims_match(s->dims + s->ndim, m.strides, s->ndim, s->any_stride));
}

/* --- from Python -------------------------------------------------------------------------- */

static PyObject *
ints_tuple(const int64_t *values, int64_t n)
{
    PyObject *tuple = PyTuple_New((Py_ssize_t)n);

    for (Py_ssize_t i = 0; tuple != NULL && i < n; i++) {
        PyObject *item = PyLong_FromLongLong(values[i]);
        if (item == NULL) {
            Py_CLEAR(tuple);
            break;
        }
        PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

PyObject *
tw_tensor_codes(PyObject *module, PyObject *tensor)
{
    Meta m;
    PyObject *sizes, *strides;

    if (tensor_base == NULL) {
        PyErr_SetString(PyExc_RuntimeError, "torch_init must be called before tensor_codes");
        return NULL;
    }
    if (!PyObject_TypeCheck(tensor, tensor_base)) {
        return PyErr_Format(PyExc_TypeError, "not a tensor: %.100s", Py_TYPE(tensor)->tp_name);
    }
    if (!read_meta(tensor, &m, true)) {
        if (!PyErr_Occurred()) {
            PyErr_SetString(PyExc_ValueError, "the metadata of this tensor cannot be read");
        }
        return NULL;
    }
    sizes = ints_tuple(m.sizes, m.ndim);
    strides = sizes == NULL ? NULL : ints_tuple(m.strides, m.strides == NULL ? 0 : m.ndim);
    if (strides == NULL) {
        Py_XDECREF(sizes);
        return NULL;
    }
    return Py_BuildValue("(OiiiiNNN)", (PyObject *)Py_TYPE(tensor), m.dtype, m.device_type,
                         m.device_index, m.layout, PyBool_FromLong(m.requires_grad), sizes,
                         strides);
}

/* --- finding the shim --------------------------------------------------------------------- */

static bool
find_symbols(const char *path)
{
    void *lib = path == NULL ? RTLD_DEFAULT : dlopen(path, RTLD_NOW | RTLD_NOLOAD);
    int32_t (*strided)(void);
    struct { const char *name; void *where; } wanted[] = {
        {"aoti_torch_get_dtype", &shim.dtype},
        {"aoti_torch_get_device_type", &shim.device_type},
        {"aoti_torch_get_device_index", &shim.device_index},
        {"aoti_torch_get_layout", &shim.layout},
        {"aoti_torch_get_dim", &shim.dim},
        {"aoti_torch_get_sizes", &shim.sizes},
        {"aoti_torch_get_strides", &shim.strides},
        {"aoti_torch_layout_strided", &strided},
    };

    if (path != NULL && lib == NULL) {
        return false;
    }
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *symbol = dlsym(lib, wanted[i].name);
        if (symbol == NULL) {
            return false;
        }
        memcpy(wanted[i].where, &symbol, sizeof(symbol));
    }
    shim.strided = strided();
    /* c10::TensorImpl::requires_grad() const. The shim has no such function; the getter costs 54 ns
       and asks the torch-function modes first. */
    *(void **)&shim.requires_grad = dlsym(lib, "_ZNK3c1010TensorImpl13requires_gradEv");
    return true;
}

static void
find_requires_grad_getter(void)
{
    PyObject *descr = PyObject_GetAttrString((PyObject *)tensor_base, "requires_grad");

    if (descr != NULL && Py_TYPE(descr) == &PyGetSetDescr_Type) {
        PyGetSetDef *def = ((PyGetSetDescrObject *)descr)->d_getset;
        shim.requires_grad_getter = def->get;
        shim.requires_grad_closure = def->closure;
    }
    PyErr_Clear();
    Py_XDECREF(descr);
}

/* The word of a tensor object that holds its `_cdata`: there the at::Tensor begins. */
static bool
find_offset(PyObject *tensor)
{
    PyObject *cdata = PyObject_GetAttrString(tensor, "_cdata");
    void *impl = cdata == NULL ? NULL : PyLong_AsVoidPtr(cdata);
    Py_ssize_t size = tensor_base->tp_basicsize;

    Py_XDECREF(cdata);
    PyErr_Clear();
    if (impl == NULL) {
        return false;
    }
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(void *) <= size;
         at += sizeof(void *)) {
        if (*(void **)((char *)tensor + at) == impl) {
            shim.offset = at;
            return true;
        }
    }
    return false;
}

/* One number for one object, and back. */
static bool
learn(int kind, PyObject *obj, int32_t code)
{
    PyObject *number = PyLong_FromLong(code), *old_number, *old_obj;
    bool ok = false;

    if (obj != NULL && number != NULL) {
        old_number = PyDict_SetDefault(code_of[kind], obj, number);
        old_obj = PyDict_SetDefault(object_of[kind], number, obj);
        ok = old_number != NULL && old_obj != NULL && PyLong_AsLong(old_number) == code
            && PyObject_RichCompareBool(old_obj, obj, Py_EQ) == 1;
    }
    Py_XDECREF(number);
    Py_XDECREF(obj);
    return ok;
}

static bool
learn_codes(PyObject *tensor, const Meta *m)
{
    PyObject *device = PyObject_GetAttrString(tensor, "device");
    bool ok = device != NULL
        && learn(DEVICE, PyObject_GetAttrString(device, "type"), m->device_type)
        && learn(DTYPE, PyObject_GetAttrString(tensor, "dtype"), m->dtype)
        && learn(LAYOUT, PyObject_GetAttrString(tensor, "layout"), m->layout);

    Py_XDECREF(device);
    return ok;
}

/* Both readers must say the same of the sample. */
static bool
readers_agree(PyObject *tensor)
{
    Meta fast, slow;
    size_t bytes;

    if (!PyObject_TypeCheck(tensor, tensor_base) || !read_fast(tensor, &fast, true)
        || !learn_codes(tensor, &fast) || !read_slow(tensor, &slow, true)) {
        return false;
    }
    bytes = sizeof(int64_t) * (size_t)fast.ndim;
    return fast.dtype == slow.dtype && fast.device_type == slow.device_type
        && fast.device_index == slow.device_index && fast.layout == slow.layout
        && fast.requires_grad == slow.requires_grad && fast.ndim == slow.ndim
        && memcmp(fast.sizes, slow.sizes, bytes) == 0
        && (fast.strides == NULL) == (slow.strides == NULL)
        && (fast.strides == NULL || memcmp(fast.strides, slow.strides, bytes) == 0);
}

static bool
all_agree(PyObject *samples)
{
    Py_ssize_t n = PySequence_Fast_GET_SIZE(samples);

    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *tensor = PySequence_Fast_GET_ITEM(samples, i);
        if (!readers_agree(tensor) || PySet_Add(plain_types, (PyObject *)Py_TYPE(tensor)) < 0) {
            PyErr_Clear();
            return false;
        }
    }
    return n > 0;
}

static bool
new_tables(void)
{
    for (int kind = 0; kind < N_KINDS; kind++) {
        Py_XSETREF(code_of[kind], PyDict_New());
        Py_XSETREF(object_of[kind], PyDict_New());
        if (code_of[kind] == NULL || object_of[kind] == NULL) {
            return false;
        }
    }
    Py_XSETREF(plain_types, PySet_New(NULL));
    return plain_types != NULL;
}

PyObject *
tw_torch_init(PyObject *module, PyObject *args)
{
    PyObject *base, *samples;
    const char *path;

    if (!PyArg_ParseTuple(args, "O!zO:torch_init", &PyType_Type, &base, &path, &samples)) {
        return NULL;
    }
    samples = PySequence_Fast(samples, "samples must be a sequence of tensors");
    if (samples == NULL) {
        return NULL;
    }
    if (!new_tables()) {
        Py_DECREF(samples);
        return NULL;
    }
    Py_XSETREF(tensor_base, (PyTypeObject *)Py_NewRef(base));
    memset(&shim, 0, sizeof(shim));
    find_requires_grad_getter();
    shim.available = find_symbols(path) && PySequence_Fast_GET_SIZE(samples) > 0
        && PyObject_TypeCheck(PySequence_Fast_GET_ITEM(samples, 0), tensor_base)
        && find_offset(PySequence_Fast_GET_ITEM(samples, 0)) && all_agree(samples);
    shim.enabled = shim.available;
    if (!shim.available && !new_tables()) {
        Py_DECREF(samples);
        return NULL;
    }
    Py_DECREF(samples);
    return PyBool_FromLong(shim.available);
}

PyObject *
tw_torch_fast(PyObject *module, PyObject *arg)
{
    int wanted = PyObject_IsTrue(arg);

    if (wanted < 0) {
        return NULL;
    }
    shim.enabled = wanted && shim.available;
    return PyBool_FromLong(shim.enabled);
}
