/* torch's entry points: found by name, then tested by native.py before anything relies on them. */
#include "_driver.h"

#include <dlfcn.h>
#include <string.h>

Torch torch;

typedef struct {
    void *slot;
    const char *names[4];
    int required;
} Row;

#define NEED(field, ...) {&torch.field, {__VA_ARGS__}, 1}
#define MAY(field, ...) {&torch.field, {__VA_ARGS__}, 0}

static const Row ROWS[] = {
    NEED(get_data_ptr, "aoti_torch_get_data_ptr"),
    NEED(get_dim, "aoti_torch_get_dim"),
    NEED(get_sizes, "aoti_torch_get_sizes"),
    NEED(get_strides, "aoti_torch_get_strides"),
    NEED(get_storage_offset, "aoti_torch_get_storage_offset"),
    NEED(get_storage_size, "aoti_torch_get_storage_size"),
    NEED(get_dtype, "aoti_torch_get_dtype"),
    NEED(get_device_type, "aoti_torch_get_device_type"),
    NEED(empty_strided, "aoti_torch_empty_strided"),
    NEED(alloc_from_pool, "aoti_torch__alloc_from_pool"),
    NEED(reinterpret, "aoti_torch__reinterpret_tensor"),
    NEED(new_handle, "aoti_torch_new_tensor_handle"),
    NEED(delete_handle, "aoti_torch_delete_tensor_object"),
    NEED(clone_strided, "aoti_torch_clone_preserve_strides"),
    NEED(is_defined, "aoti_torch_is_defined"),
    NEED(grad_enabled, "aoti_torch_grad_mode_is_enabled"),
    NEED(set_grad_enabled, "aoti_torch_grad_mode_set_enabled"),
    NEED(key_excluded, "_ZN3c104impl28tls_is_dispatch_key_excludedENS_11DispatchKeyE"),
    NEED(set_key_excluded, "_ZN3c104impl29tls_set_dispatch_key_excludedENS_11DispatchKeyEb"),
    NEED(inference_mode, "_ZN3c1013InferenceMode10is_enabledEv"),
    /* THPVariable_Wrap by const&, && or value. All three receive the address of the at::Tensor; by
     * value the callee may move out of it, which leaves a handle that is still right to delete. */
    MAY(wrap, "_Z16THPVariable_WrapRKN2at10TensorBaseE", "_Z16THPVariable_WrapON2at10TensorBaseE",
        "_Z16THPVariable_WrapN2at10TensorBaseE"),
    MAY(copy, "aoti_torch_copy_"),
    MAY(call, "aoti_torch_call_dispatcher"),
    MAY(new_list, "torch_new_list_reserve_size"),
    MAY(push_back, "torch_list_push_back"),
    MAY(new_box, "torch_new_stable_ivalue"),
    MAY(operator_new, "_Znwm"),
    MAY(new_string, "torch_new_string_handle"),
    MAY(num_threads_shim, "torch_get_num_threads"),
    MAY(num_threads, "_ZN2at15get_num_threadsEv"),
    MAY(omp_max_threads, "omp_get_max_threads"),
    MAY(omp_in_parallel, "omp_in_parallel"),
    MAY(omp_thread_num, "omp_get_thread_num"),
    MAY(omp_num_threads, "omp_get_num_threads"),
    MAY(gomp_parallel, "GOMP_parallel"),
    MAY(context, "_ZN2at13globalContextEv"),
    MAY(settings[0], "_ZNK2at7Context23deterministicAlgorithmsEv"),
    MAY(settings[1], "_ZNK2at7Context18deterministicCuDNNEv"),
    MAY(settings[2], "_ZNK2at7Context14benchmarkCuDNNEv"),
    MAY(settings[3], "_ZNK2at7Context16userEnabledCuDNNEv"),
    MAY(settings[4], "_ZNK2at7Context19userEnabledFlashSDPEv"),
    MAY(settings[5], "_ZNK2at7Context18userEnabledMathSDPEv"),
    MAY(settings[6], "_ZNK2at7Context26userEnabledMemEfficientSDPEv"),
    MAY(settings[7], "_ZNK2at7Context19userEnabledCuDNNSDPEv"),
    MAY(settings[8], "_ZNK2at7Context24allowFP16ReductionCuBLASEv"),
    MAY(settings[9], "_ZNK2at7Context24allowBF16ReductionCuBLASEv"),
    MAY(settings[10], "_ZNK2at7Context27allowFP16AccumulationCuBLASEv"),
    MAY(precision, "_ZNK2at7Context16float32PrecisionENS_14Float32BackendENS_9Float32OpE"),
    MAY(blas_backend, "_ZN2at7Context20blasPreferredBackendEv"),
    MAY(carveout, "_ZNK2at7Context24_SMCarveout_EXPERIMENTALEv"),
    MAY(tuning, "_ZN2at4cuda7tunable16getTuningContextEv"),
    MAY(tuned, "_ZNK2at4cuda7tunable13TuningContext18IsTunableOpEnabledEv"),
    MAY(into[0], "aoti_torch_cpu_mm_out"),
    MAY(into[1], "aoti_torch_cpu_bmm_out"),
    MAY(into[2], "aoti_torch_cpu_addmm_out"),
    MAY(into[3], "aoti_torch_cpu_baddbmm_out"),
    MAY(into[4], "aoti_torch_cuda_mm_out"),
    MAY(into[5], "aoti_torch_cuda_bmm_out"),
    MAY(into[6], "aoti_torch_cuda_addmm_out"),
    MAY(into[7], "aoti_torch_cuda_baddbmm_out"),
    MAY(into[8], "aoti_torch_cuda__addmm_activation"),
    MAY(into[9], "aoti_torch_cuda__addmm_activation"),
};

#define N_ROWS ((int)(sizeof ROWS / sizeof *ROWS))

/* Looking a name up in a library also searches what the library was linked with: so the OpenMP
 * functions that come out of libtorch_cpu are those of the runtime that ATen itself uses. */
static void *find(void *const *libraries, int n, const char *const *names)
{
    for (int k = 0; k < 4 && names[k]; k++)
        for (int i = 0; i < n; i++) {
            void *found = libraries[i] ? dlsym(libraries[i], names[k]) : NULL;
            if (found)
                return found;
        }
    return NULL;
}

/* Fill the table; a list of the optional names that were not found, NULL if a required one was. */
static PyObject *find_all(void *const *libraries, int n)
{
    PyObject *missing = PyList_New(0);
    for (int i = 0; missing && i < N_ROWS; i++) {
        void *found = find(libraries, n, ROWS[i].names);
        memcpy(ROWS[i].slot, &found, sizeof found);
        if (found)
            continue;
        PyObject *name = NULL;
        if (ROWS[i].required)
            PyErr_Format(PyExc_RuntimeError, "torch has no %s", ROWS[i].names[0]);
        else
            name = PyUnicode_FromString(ROWS[i].names[0]);
        if (!name || PyList_Append(missing, name) < 0)
            Py_CLEAR(missing);
        Py_XDECREF(name);
    }
    return missing;
}

/* The word of the Python tensor that holds `impl`, or 0. */
static Py_ssize_t find_word(PyObject *object, Py_ssize_t size, uintptr_t impl)
{
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof impl <= size; at += sizeof impl)
        if (*(uintptr_t *)((char *)object + at) == impl)
            return at;
    return 0;
}

static int read_keys(PyObject *keys)
{
    torch.n_keys = 0;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(keys) && torch.n_keys < 16; i++) {
        long key = PyLong_AsLong(PyTuple_GET_ITEM(keys, i));
        if (key == -1 && PyErr_Occurred())
            return -1;
        torch.keys[torch.n_keys++] = (uint16_t)key;
    }
    return 0;
}

/* init(libraries, tensor_type, sample, sample_cdata, keys, view_key, wrap_stolen, internal_error,
 * huge) -> the optional names that were not found. RuntimeError if a required one is missing. */
PyObject *torch_init(PyObject *self, PyObject *args)
{
    PyObject *paths, *type, *sample, *keys, *stolen, *internal;
    unsigned long long impl;
    int huge;
    if (!PyArg_ParseTuple(args, "O!O!OKO!HOOp", &PyTuple_Type, &paths, &PyType_Type, &type, &sample,
                          &impl, &PyTuple_Type, &keys, &torch.view_key, &stolen, &internal, &huge))
        return NULL;
    void *libraries[8] = {NULL};
    int n = (int)PyTuple_GET_SIZE(paths) < 8 ? (int)PyTuple_GET_SIZE(paths) : 8;
    for (int i = 0; i < n; i++) {
        const char *path = PyUnicode_AsUTF8(PyTuple_GET_ITEM(paths, i));
        if (!path)
            return NULL;
        libraries[i] = dlopen(path, RTLD_NOLOAD | RTLD_LAZY);
    }
    PyObject *missing = find_all(libraries, n);
    if (!missing)
        return NULL;
    torch.handle_offset = find_word(sample, Py_TYPE(sample)->tp_basicsize, (uintptr_t)impl);
    if (!torch.handle_offset) {
        PyErr_SetString(PyExc_RuntimeError, "no TensorImpl word in a Python tensor");
        goto fail;
    }
    if (read_keys(keys) < 0)
        goto fail;
    torch.storage_word = 0;
    torch.huge_pages = huge;
    Py_XSETREF(torch.wrap_stolen, stolen == Py_None ? NULL : Py_NewRef(stolen));
    Py_XSETREF(torch.internal_error, Py_NewRef(internal));
    Py_INCREF(type);
    Py_XSETREF(torch.tensor_type, (PyTypeObject *)type);
    if (torch.get_device_type(handle_of(sample), &torch.cpu) != 0 ||
        torch.get_dtype(handle_of(sample), &torch.u8) != 0) {
        PyErr_SetString(PyExc_RuntimeError, "the tensor handle does not work");
        goto fail;
    }
    return missing;
fail:
    Py_DECREF(missing);
    return NULL;
}

/* None of these functions throws; those that ask for TF32 by its older name may. The numbers are
 * CUDA's place in Float32Backend, and CONV's and MATMUL's in Float32Op. */
uint64_t torch_settings(void)
{
    uint64_t word = 0;
    if (!torch.context)
        return 0;
    const void *context = torch.context();
    for (int i = 0; i < 11; i++)
        word = word << 3 | (torch.settings[i] ? torch.settings[i](context) & 7 : 0);
    if (torch.precision)
        word = word << 6 | (uint64_t)(torch.precision(context, 1, 3) & 7) << 3 |
               (uint64_t)(torch.precision(context, 1, 1) & 7);
    return word;
}

PyObject *torch_wrap(Handle owned)
{
    if (torch.wrap) {
        PyObject *made = torch.wrap(owned);
        torch.delete_handle(owned);
        return made;
    }
    PyObject *capsule = PyCapsule_New(owned, NULL, NULL);
    if (!capsule) {
        torch.delete_handle(owned);
        return NULL;
    }
    PyObject *made = PyObject_CallOneArg(torch.wrap_stolen, capsule);
    Py_DECREF(capsule);
    return made;
}

static PyObject *longs(const int64_t *values, int64_t n)
{
    PyObject *t = PyTuple_New(n);
    for (int64_t i = 0; t && i < n; i++) {
        PyObject *v = PyLong_FromLongLong(values[i]);
        if (!v)
            Py_CLEAR(t);
        else
            PyTuple_SET_ITEM(t, i, v);
    }
    return t;
}

/* describe(tensor) -> (data_ptr, dtype code, device type code, sizes, strides, storage offset), all
 * as the driver reads them: what the self-test compares. */
PyObject *torch_describe(PyObject *self, PyObject *tensor)
{
    if (!torch.tensor_type || !PyObject_TypeCheck(tensor, torch.tensor_type))
        return PyErr_Format(PyExc_TypeError, "not a tensor");
    Handle h = handle_of(tensor);
    void *data;
    int64_t dim, offset, *sizes, *strides;
    int32_t dtype, device;
    if (torch.get_data_ptr(h, &data) || torch.get_dim(h, &dim) || torch.get_sizes(h, &sizes) ||
        torch.get_strides(h, &strides) || torch.get_dtype(h, &dtype) ||
        torch.get_device_type(h, &device) || torch.get_storage_offset(h, &offset))
        return PyErr_Format(PyExc_RuntimeError, "torch refused the handle");
    PyObject *a = longs(sizes, dim), *b = a ? longs(strides, dim) : NULL;
    PyObject *row = b ? Py_BuildValue("KiiOOL", (unsigned long long)(uintptr_t)data, dtype, device,
                                      a, b, (long long)offset) : NULL;
    Py_XDECREF(a);
    Py_XDECREF(b);
    return row;
}

typedef struct {
    uintptr_t start, end;
    int written;
} Span;

static int by_start(const void *a, const void *b)
{
    uintptr_t x = ((const Span *)a)->start, y = ((const Span *)b)->start;
    return x < y ? -1 : x > y;
}

/* Whether a written span shares bytes with another one. */
static int spans_meet(Span *spans, size_t n)
{
    qsort(spans, n, sizeof(Span), by_start);
    const Span *last = NULL; /* of those before, the one that reaches furthest */
    for (Span *s = spans; s < spans + n; s++) {
        if (last && s->start < last->end && (s->written || last->written))
            return 1;
        if (!last || s->end > last->end)
            last = s;
    }
    return 0;
}

/* overlap(inputs, extents, written) -> whether a written input shares memory with another one.
 * extents: for each input an int64, the bytes from its first to its last element; 0 for what has
 * none. written: for each input a byte. */
PyObject *torch_overlap(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    if (nargs != 3 || !PyTuple_Check(args[0]) || !PyBytes_Check(args[1]) || !PyBytes_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "overlap(inputs, extents, written)");
    Py_ssize_t n = PyTuple_GET_SIZE(args[0]);
    if (PyBytes_GET_SIZE(args[1]) != n * 8 || PyBytes_GET_SIZE(args[2]) != n)
        return PyErr_Format(PyExc_ValueError, "not as many as the inputs");
    const int64_t *extents = (const int64_t *)PyBytes_AS_STRING(args[1]);
    const char *written = PyBytes_AS_STRING(args[2]);
    Span few[64], *spans = n > 64 ? PyMem_Malloc((size_t)n * sizeof(Span)) : few;
    if (!spans)
        return PyErr_NoMemory();
    size_t count = 0;
    int failed = 0;
    for (Py_ssize_t i = 0; i < n && !failed; i++) {
        PyObject *x = PyTuple_GET_ITEM(args[0], i);
        void *data = NULL;
        if (extents[i] <= 0)
            continue;
        failed = !PyObject_TypeCheck(x, torch.tensor_type) || torch.get_data_ptr(handle_of(x), &data);
        spans[count++] = (Span){(uintptr_t)data, (uintptr_t)data + (uintptr_t)extents[i], written[i]};
    }
    int met = !failed && spans_meet(spans, count);
    if (spans != few)
        PyMem_Free(spans);
    if (failed)
        return PyErr_Format(PyExc_TypeError, "an input without memory");
    return PyBool_FromLong(met);
}

/* make(n) -> a fresh uint8 tensor of n elements, by the way that the driver makes its outputs. */
PyObject *torch_make(PyObject *self, PyObject *args)
{
    long long n;
    if (!PyArg_ParseTuple(args, "L", &n))
        return NULL;
    int64_t size = n, stride = 1;
    Handle h;
    if (torch.empty_strided(1, &size, &stride, torch.u8, torch.cpu, 0, &h))
        return PyErr_NoMemory();
    return torch_wrap(h);
}

/* calibrate(tensor, storage_cdata) -> (word index, reference word): where a TensorImpl keeps its
 * storage, and what the storage's reference word is while it has one owner. None if the layout is
 * not the one expected; then large outputs are not pooled. */
PyObject *torch_calibrate(PyObject *self, PyObject *args)
{
    PyObject *tensor;
    unsigned long long storage;
    if (!PyArg_ParseTuple(args, "OK", &tensor, &storage))
        return NULL;
    torch.storage_word = 0;
    char **impl = *(char ***)handle_of(tensor);
    for (int i = 1; i < 8 && storage && !torch.storage_word; i++)
        if ((uintptr_t)impl[i] == storage)
            torch.storage_word = i;
    int64_t size = 64, stride = 1;
    Handle a = NULL, b = NULL, c = NULL;
    int good = 0;
    if (!torch.storage_word || torch.empty_strided(1, &size, &stride, torch.u8, torch.cpu, 0, &a) ||
        torch.empty_strided(1, &size, &stride, torch.u8, torch.cpu, 0, &b))
        goto done;
    torch.unique_count = *storage_count(a);
    good = torch.unique_count == *storage_count(b);
    /* A second owner must show, and its leaving too; a second handle of a tensor must not. */
    good = good && !torch.reinterpret(a, 1, &size, &stride, 0, &c);
    good = good && storage_count(a) == storage_count(c) && !storage_unique(a);
    if (c)
        torch.delete_handle(c);
    c = NULL;
    good = good && storage_unique(a);
    good = good && !torch.new_handle(a, &c) && storage_unique(a);
done:
    for (int i = 0; i < 3; i++) {
        Handle h = i == 0 ? a : i == 1 ? b : c;
        if (h)
            torch.delete_handle(h);
    }
    if (!good) {
        torch.storage_word = 0;
        Py_RETURN_NONE;
    }
    return Py_BuildValue("iK", torch.storage_word, (unsigned long long)torch.unique_count);
}

/* ---------------------------------------------------------------- dispatch keys */

/* find_keys(((tensor, keys), ...)): where a tensor has its dispatch keys; whether that was found. */
PyObject *torch_find_keys(PyObject *self, PyObject *samples)
{
    torch.key_word = torch.n_plain = 0;
    Py_ssize_t n = PyTuple_Check(samples) ? PyTuple_GET_SIZE(samples) : 0;
    for (int word = 1; n && word < 40 && !torch.key_word; word++) {
        Py_ssize_t same = 0;
        for (; same < n; same++) {
            PyObject *tensor;
            unsigned long long keys;
            if (!PyArg_ParseTuple(PyTuple_GET_ITEM(samples, same), "OK", &tensor, &keys))
                return NULL;
            if ((*(uint64_t **)handle_of(tensor))[word] != keys)
                break;
        }
        if (same == n)
            torch.key_word = word;
    }
    return PyBool_FromLong(torch.key_word);
}

static uint64_t keys_of(PyObject *tensor)
{
    return (*(uint64_t **)handle_of(tensor))[torch.key_word];
}

/* note_plain(tensor): what has the same dispatch keys is memory and nothing else. */
PyObject *torch_note_plain(PyObject *self, PyObject *tensor)
{
    int room = sizeof torch.plain_keys / sizeof *torch.plain_keys;
    if (torch.key_word && torch.n_plain < room && PyObject_TypeCheck(tensor, torch.tensor_type))
        torch.plain_keys[torch.n_plain++] = keys_of(tensor);
    Py_RETURN_NONE;
}

static int is_plain(PyObject *x, PyObject *exact)
{
    if (x == Py_None)
        return 1;
    if (exact == Py_None ? !PyObject_TypeCheck(x, torch.tensor_type)
                         : (PyObject *)Py_TYPE(x) != exact)
        return 0;
    uint64_t keys = keys_of(x);
    for (int i = 0; i < torch.n_plain; i++)
        if (torch.plain_keys[i] == keys)
            return 1;
    return 0;
}

/* all_plain(items, type): whether each is None or a tensor, of this type unless that is None, that
 * is known to be memory and nothing else. */
PyObject *torch_all_plain(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    if (n != 2 || !PyTuple_Check(args[0]))
        return PyErr_Format(PyExc_TypeError, "a tuple and a type or None");
    int plain = torch.key_word != 0;
    for (Py_ssize_t i = 0; plain && i < PyTuple_GET_SIZE(args[0]); i++)
        plain = is_plain(PyTuple_GET_ITEM(args[0], i), args[1]);
    return PyBool_FromLong(plain);
}

/* Whether a tensor's strides are these. */
static int has_strides(PyObject *tensor, PyObject *wanted)
{
    Handle h = handle_of(tensor);
    int64_t ndim, *strides;
    if (!PyTuple_Check(wanted) || torch.get_dim(h, &ndim) || torch.get_strides(h, &strides) ||
        ndim != PyTuple_GET_SIZE(wanted))
        return 0;
    for (int64_t i = 0; i < ndim; i++)
        if (PyLong_AsLongLong(PyTuple_GET_ITEM(wanted, i)) != strides[i])
            return 0;
    return 1;
}

/* all_fit(items, type, strides): whether the items are plain tensors of this type with these strides,
 * and None where the strides are. */
PyObject *torch_all_fit(PyObject *self, PyObject *const *args, Py_ssize_t n)
{
    if (n != 3 || !PyTuple_Check(args[0]) || !PyTuple_Check(args[2]))
        return PyErr_Format(PyExc_TypeError, "a tuple, a type and a tuple");
    Py_ssize_t count = PyTuple_GET_SIZE(args[0]);
    int fit = torch.key_word && count == PyTuple_GET_SIZE(args[2]);
    for (Py_ssize_t i = 0; fit && i < count; i++) {
        PyObject *x = PyTuple_GET_ITEM(args[0], i), *strides = PyTuple_GET_ITEM(args[2], i);
        fit = (x == Py_None) == (strides == Py_None) && is_plain(x, args[1]) &&
              (x == Py_None || has_strides(x, strides));
    }
    return PyErr_Occurred() ? NULL : PyBool_FromLong(fit);
}
