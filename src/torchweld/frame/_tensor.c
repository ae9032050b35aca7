/* Reads the metadata of a tensor without torch's headers. Fast: libtorch's C shim, on the
   at::Tensor inside the Python object. Slow: Python attributes. The fast reader is used only after
   both have agreed on every sample tensor given to `torch_init`. */
#include "_tensor.h"

#include <dlfcn.h>

TwShim tw_shim;
static PyTypeObject *tensor_base;
static PyObject *plain_types;   /* set of the exact types of the samples */

/* The shim's numbers, by kind: for the slow reader. */
enum { DTYPE, DEVICE, LAYOUT, N_KINDS };
static PyObject *code_of[N_KINDS], *object_of[N_KINDS];

/* --- the fast reader ---------------------------------------------------------------------- */

static inline bool
read_fast(PyObject *tensor, TwMeta *m, bool with_grad)
{
    void *handle = (char *)tensor + tw_shim.offset;
    int64_t *sizes = NULL, *strides = NULL;

    if (tw_shim.dtype(handle, &m->dtype) || tw_shim.device_type(handle, &m->device_type)
        || tw_shim.device_index(handle, &m->device_index) || tw_shim.layout(handle, &m->layout)
        || tw_shim.dim(handle, &m->ndim) || tw_shim.sizes(handle, &sizes)) {
        return false;
    }
    if (m->layout == tw_shim.strided && tw_shim.strides(handle, &strides)) {
        return false;
    }
    m->sizes = sizes;
    m->strides = strides;
    return !with_grad || tw_tensor_requires_grad(tensor, &m->requires_grad);
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
read_device(PyObject *tensor, TwMeta *m)
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

/* -1: not a tuple of at most TW_MAX_DIMS ints. */
static int64_t
read_ints(PyObject *tuple, int64_t *out)
{
    Py_ssize_t n;

    if (tuple == NULL || !PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) > TW_MAX_DIMS) {
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
read_strides(PyObject *tensor, TwMeta *m)
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
        if (read_ints(stride, m->buffer + TW_MAX_DIMS) == m->ndim) {
            m->strides = m->buffer + TW_MAX_DIMS;
        }
        Py_XDECREF(stride);
    }
    Py_DECREF(name);
    return !PyErr_Occurred();
}

bool
tw_tensor_read_slow(PyObject *tensor, TwMeta *m, bool with_grad)
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
read_meta(PyObject *tensor, TwMeta *m, bool with_grad)
{
    return tw_shim.enabled ? read_fast(tensor, m, with_grad)
        : tw_tensor_read_slow(tensor, m, with_grad);
}

PyTypeObject *
tw_tensor_base(void)
{
    return tensor_base;
}

bool
tw_tensor_is_plain(PyTypeObject *type)
{
    return plain_types != NULL && PySet_Contains(plain_types, (PyObject *)type) == 1;
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
    TwMeta m;
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
        {"aoti_torch_get_dtype", &tw_shim.dtype},
        {"aoti_torch_get_device_type", &tw_shim.device_type},
        {"aoti_torch_get_device_index", &tw_shim.device_index},
        {"aoti_torch_get_layout", &tw_shim.layout},
        {"aoti_torch_get_dim", &tw_shim.dim},
        {"aoti_torch_get_sizes", &tw_shim.sizes},
        {"aoti_torch_get_strides", &tw_shim.strides},
        {"aoti_torch_get_data_ptr", &tw_shim.data},
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
    tw_shim.strided = strided();
    /* c10::TensorImpl::requires_grad() const. The shim has no such function; the getter costs 54 ns
       and asks the torch-function modes first. */
    *(void **)&tw_shim.requires_grad = dlsym(lib, "_ZNK3c1010TensorImpl13requires_gradEv");
    /* at::native::is_inference(at::Tensor const&) */
    *(void **)&tw_shim.is_inference = dlsym(lib, "_ZN2at6native12is_inferenceERKNS_6TensorE");
    return true;
}

static void
find_requires_grad_getter(void)
{
    PyObject *descr = PyObject_GetAttrString((PyObject *)tensor_base, "requires_grad");

    if (descr != NULL && Py_TYPE(descr) == &PyGetSetDescr_Type) {
        PyGetSetDef *def = ((PyGetSetDescrObject *)descr)->d_getset;
        tw_shim.requires_grad_getter = def->get;
        tw_shim.requires_grad_closure = def->closure;
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
            tw_shim.offset = at;
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
learn_codes(PyObject *tensor, const TwMeta *m)
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
    TwMeta fast, slow;
    size_t bytes;

    if (!PyObject_TypeCheck(tensor, tensor_base) || !read_fast(tensor, &fast, true)
        || !learn_codes(tensor, &fast) || !tw_tensor_read_slow(tensor, &slow, true)) {
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

/* The function is used only if some sample is an inference tensor, some is none, and it is right
   about all of them. */
static void
try_is_inference(PyObject *samples)
{
    bool (*fast)(const void *) = tw_shim.is_inference;
    bool right = fast != NULL && tw_shim.available, seen[2] = {false, false};
    int slow;

    tw_shim.is_inference = NULL;
    for (Py_ssize_t i = 0; right && i < PySequence_Fast_GET_SIZE(samples); i++) {
        PyObject *tensor = PySequence_Fast_GET_ITEM(samples, i);
        right = tw_tensor_is_inference(tensor, &slow)
            && fast((char *)tensor + tw_shim.offset) == slow;
        seen[right && slow] = true;
    }
    PyErr_Clear();
    if (right && seen[0] && seen[1]) {
        tw_shim.is_inference = fast;
    }
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
    memset(&tw_shim, 0, sizeof(tw_shim));
    find_requires_grad_getter();
    tw_shim.available = find_symbols(path) && PySequence_Fast_GET_SIZE(samples) > 0
        && PyObject_TypeCheck(PySequence_Fast_GET_ITEM(samples, 0), tensor_base)
        && find_offset(PySequence_Fast_GET_ITEM(samples, 0)) && all_agree(samples);
    tw_shim.enabled = tw_shim.available;
    try_is_inference(samples);
    if (!tw_shim.available && !new_tables()) {
        Py_DECREF(samples);
        return NULL;
    }
    Py_DECREF(samples);
    return PyBool_FromLong(tw_shim.available);
}

PyObject *
tw_torch_fast(PyObject *module, PyObject *arg)
{
    int wanted = PyObject_IsTrue(arg);

    if (wanted < 0) {
        return NULL;
    }
    tw_shim.enabled = wanted && tw_shim.available;
    return PyBool_FromLong(tw_shim.enabled);
}

PyObject *
tw_torch_inference(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(tw_shim.enabled && tw_shim.is_inference != NULL);
}
