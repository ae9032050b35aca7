/* CUDA for the launch list: the driver API by name, kernels of cubins, launches.
 *
 * A kernel is loaded once per process as a CUlibrary, which belongs to no context: one handle
 * launches on every device. Launches go to torch's current stream, in the primary context, which is
 * the one that torch uses; a thread that has not used CUDA yet, or that stands on another device, is
 * moved there for the call.
 */
#include "_driver.h"

#include <dlfcn.h>
#include <string.h>

Cuda cuda;

static void *contexts[MAX_DEVICES];
static PyObject *memory_error;  /* torch.OutOfMemoryError */

typedef struct {
    void *slot;
    const char *names[2];  /* newest first */
} Row;

static const Row ROWS[] = {
    {&cuda.error_string, {"cuGetErrorString"}},
    {&cuda.retain_context, {"cuDevicePrimaryCtxRetain"}},
    {&cuda.get_context, {"cuCtxGetCurrent"}},
    {&cuda.set_context, {"cuCtxSetCurrent"}},
    {&cuda.load, {"cuLibraryLoadData"}},
    {&cuda.get_kernel, {"cuLibraryGetKernel"}},
    {&cuda.set_attribute, {"cuKernelSetAttribute"}},
    {&cuda.launch, {"cuLaunchKernel"}},
    {&cuda.copy, {"cuMemcpyDtoDAsync_v2"}},
    {&cuda.fill, {"cuMemsetD8Async"}},
    {&cuda.is_capturing, {"cuStreamIsCapturing"}},
    {&cuda.begin_capture, {"cuStreamBeginCapture_v2"}},
    {&cuda.end_capture, {"cuStreamEndCapture"}},
    {&cuda.capture_info, {"cuStreamGetCaptureInfo_v2"}},
    {&cuda.instantiate, {"cuGraphInstantiateWithFlags"}},
    {&cuda.graph_launch, {"cuGraphLaunch"}},
    {&cuda.graph_destroy, {"cuGraphDestroy"}},
    {&cuda.exec_destroy, {"cuGraphExecDestroy"}},
    {&cuda.get_kernel_node, {"cuGraphKernelNodeGetParams_v2"}},
    {&cuda.set_kernel_node, {"cuGraphExecKernelNodeSetParams_v2"}},
    {&cuda.get_copy_node, {"cuGraphMemcpyNodeGetParams"}},
    {&cuda.set_copy_node, {"cuGraphExecMemcpyNodeSetParams"}},
    {&cuda.event_create, {"cuEventCreate"}},
    {&cuda.event_record, {"cuEventRecord"}},
    {&cuda.stream_wait, {"cuStreamWaitEvent"}},
    {&cuda.stream_synchronize, {"cuStreamSynchronize"}},
    {&cuda.exchange_mode, {"cuThreadExchangeStreamCaptureMode"}},
};

int cuda_raise(int code, const char *what)
{
    const char *text = NULL;
    PyGILState_STATE state = PyGILState_Ensure();
    if (!cuda.error_string || cuda.error_string(code, &text) || !text)
        text = "unknown error";
    PyErr_Format(code == 2 && memory_error ? memory_error : PyExc_RuntimeError,
                 "CUDA: %s: %s (%d)", what, text, code);
    PyGILState_Release(state);
    return -1;
}

void cuda_out_of_memory(int64_t bytes)
{
    PyErr_Format(memory_error ? memory_error : PyExc_RuntimeError,
                 "CUDA out of memory: could not allocate %lld bytes", (long long)bytes);
}

void *cuda_context(int device)
{
    if (device < 0 || device >= MAX_DEVICES || !cuda.ready)
        return NULL;
    if (!contexts[device] && cuda.retain_context(&contexts[device], device))
        contexts[device] = NULL;
    return contexts[device];
}

int cuda_enter(int device, void **before)
{
    void *now = NULL, *wanted = cuda_context(device);
    *before = NULL;
    if (!wanted)
        return 201;  /* CUDA_ERROR_INVALID_CONTEXT */
    int code = cuda.get_context(&now);
    if (code || now == wanted)
        return code;
    code = cuda.set_context(wanted);
    *before = code ? NULL : now;
    return code;
}

void cuda_leave(void *before)
{
    if (before)
        cuda.set_context(before);
}

/* ---------------------------------------------------------------- launches */

int grid_launch(Executable *x, Frame *f, Step *s)
{
    static uint64_t none;  /* scratch memory that Triton asks for and no kernel of ours uses */
    void *params[s->n_params + 1], *before = NULL, *stream = f->stream;
    for (int i = 0; i < s->n_params; i++) {
        void **slot = i < s->n_args ? &f->pointers[s->args[i]] : NULL;
        params[i] = !slot ? (void *)&none : s->by_value[i] ? *slot : (void *)slot;
    }
    int code = 0;
    if (!s->blocks)
        return 0;
    if (s->device != x->device && !(code = cuda_enter(s->device, &before)) &&
        cuda.current_stream(s->device, &stream))
        code = 400;  /* CUDA_ERROR_INVALID_HANDLE */
    if (!code)
        code = cuda.launch(s->grid, s->blocks, 1, 1, s->threads, 1, 1, s->shared, stream, params,
                           NULL);
    cuda_leave(before);
    if (code)
        return cuda_raise(code, "launching a compiled kernel");
    return f->trace ? trace_launch(x, f, s, params) : 0;
}

/* (kind, function, kernel, args, by_value, blocks, threads, shared, n_params, device) */
int grid_parse(Executable *x, PyObject *row, Step *s)
{
    unsigned long long kernel;
    PyObject *args, *sizes, *name;
    if (!PyArg_ParseTuple(row, "iUKO!O!IIIii", &s->kind, &name, &kernel, &PyTuple_Type, &args,
                          &PyTuple_Type, &sizes, &s->blocks, &s->threads, &s->shared,
                          &s->n_params, &s->device))
        return -1;
    s->name = Py_NewRef(name);
    s->grid = (void *)(uintptr_t)kernel;
    int n;
    s->args = numbers(args, &s->n_args, 0, x->n_tensors);
    s->by_value = s->args ? numbers(sizes, &n, 0, 9) : NULL;
    if (!s->by_value)
        return -1;
    if (n != s->n_args || s->n_params < s->n_args || s->n_params > 4096 || !s->threads ||
        s->device < 0 || s->device >= MAX_DEVICES || !cuda.ready) {
        PyErr_SetString(PyExc_ValueError, "grid launch row");
        return -1;
    }
    return 0;
}

/* ---------------------------------------------------------------- random numbers */

/* (kind, seed, block, count, initial_seed, get_offset, set_offset) */
int draw_parse(Executable *x, PyObject *row, Step *s)
{
    long long count;
    PyObject *seed, *get, *set;
    if (!PyArg_ParseTuple(row, "iiiLOOO", &s->kind, &s->tensor, &s->source, &count, &seed, &get,
                          &set))
        return -1;
    s->count = count;
    s->get_seed = Py_NewRef(seed);
    s->get_offset = Py_NewRef(get);
    s->set_offset = Py_NewRef(set);
    s->draw = x->n_draws++;
    int limits[] = {s->tensor, s->source};
    for (int i = 0; i < 2; i++)
        if (limits[i] < x->n_inputs || limits[i] >= x->n_tensors ||
            x->specs[limits[i]].place != STATE) {
            PyErr_SetString(PyExc_ValueError, "draw row");
            return -1;
        }
    return 0;
}

static int number_of(PyObject *method, uint64_t *out)
{
    PyObject *number = PyObject_CallNoArgs(method);
    if (!number)
        return -1;
    *out = PyLong_AsUnsignedLongLongMask(number);
    Py_DECREF(number);
    return PyErr_Occurred() ? -1 : 0;
}

/* Torch counts words of 32 bits, of which a block has four. */
static int draw(Step *s, int64_t *drawn)
{
    uint64_t seed, offset;
    if (number_of(s->get_seed, &seed) < 0 || number_of(s->get_offset, &offset) < 0)
        return -1;
    drawn[0] = (int64_t)seed;
    drawn[1] = (int64_t)(offset / 4);
    PyObject *moved = PyLong_FromUnsignedLongLong(offset + (uint64_t)s->count);
    PyObject *done = moved ? PyObject_CallOneArg(s->set_offset, moved) : NULL;
    Py_XDECREF(moved);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

int draw_numbers(Executable *x, Frame *f)
{
    for (int i = 0, left = x->n_draws; left; i++)
        if (x->steps[i].kind == S_DRAW) {
            left--;
            if (draw(&x->steps[i], f->drawn + 2 * x->steps[i].draw) < 0)
                return -1;
        }
    return 0;
}

/* ---------------------------------------------------------------- for Python */

/* cuda_init(driver library, torch's library, device type, OutOfMemoryError) -> None; RuntimeError
 * with the name that was not found. */
PyObject *cuda_init(PyObject *self, PyObject *args)
{
    const char *driver, *library;
    int type;
    PyObject *error;
    if (!PyArg_ParseTuple(args, "ssiO", &driver, &library, &type, &error))
        return NULL;
    void *found = dlopen(driver, RTLD_NOW | RTLD_GLOBAL);
    if (!found)
        return PyErr_Format(PyExc_RuntimeError, "%s", dlerror());
    for (size_t i = 0; i < sizeof ROWS / sizeof *ROWS; i++) {
        void *entry = NULL;
        for (int k = 0; k < 2 && !entry && ROWS[i].names[k]; k++)
            entry = dlsym(found, ROWS[i].names[k]);
        if (!entry)
            return PyErr_Format(PyExc_RuntimeError, "%s has no %s", driver, ROWS[i].names[0]);
        memcpy(ROWS[i].slot, &entry, sizeof entry);
    }
    void *torch_library = dlopen(library, RTLD_NOLOAD | RTLD_LAZY);
    void *entry =
        torch_library ? dlsym(torch_library, "aoti_torch_get_current_cuda_stream") : NULL;
    if (!entry)
        return PyErr_Format(PyExc_RuntimeError, "torch cannot tell its current stream");
    memcpy(&cuda.current_stream, &entry, sizeof entry);
    Py_XSETREF(memory_error, Py_NewRef(error));
    memset(contexts, 0, sizeof contexts);
    cuda.type = type;
    cuda.ready = 1;
    Py_RETURN_NONE;
}

/* cuda_load(image, entry, shared, devices) -> the kernel's handle, valid for every device.
 * Kernels stay loaded until the process ends: programs share them. */
PyObject *cuda_load(PyObject *self, PyObject *args)
{
    const char *image, *entry;
    Py_ssize_t length;
    int shared;
    PyObject *devices;
    void *library = NULL, *kernel = NULL;
    if (!PyArg_ParseTuple(args, "y#siO!", &image, &length, &entry, &shared, &PyTuple_Type,
                          &devices))
        return NULL;
    if (!cuda.ready)
        return PyErr_Format(PyExc_RuntimeError, "cuda_init was not called");
    int code = cuda.load(&library, image, NULL, NULL, 0, NULL, NULL, 0);
    if (code || (code = cuda.get_kernel(&kernel, library, entry))) {
        cuda_raise(code, "loading a compiled kernel");
        return NULL;
    }
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(devices); i++) {
        int device = (int)PyLong_AsLong(PyTuple_GET_ITEM(devices, i));
        if (PyErr_Occurred())
            return NULL;
        /* CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES; up to 48 KB need no permission */
        if (shared > 48 << 10 && (code = cuda.set_attribute(8, shared, kernel, device))) {
            cuda_raise(code, "giving a kernel its shared memory");
            return NULL;
        }
    }
    return PyLong_FromVoidPtr(kernel);
}
