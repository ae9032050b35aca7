/* Matrix products of launch lists by cuBLASLt or cuBLAS, with plans that are made once.
 *
 * ATen describes a product anew in every call, asks for an algorithm, and takes 14-22 us of host
 * time for it (one H200, torch 2.11, 2026-11-29). Here a step keeps its descriptors and its
 * algorithm: a call compares settings and the alignment of addresses, and launches. Plans are made
 * in Python (product_plans.py), which compares their results with ATen's; what has no plan is
 * ATen's. So is the first call of a step, which a CUDA graph may replace, and every call that is
 * recorded into a graph: a graph would keep the workspace.
 */
#include "_gemm.h"

#include <string.h>

#define MOST_PLANS 8   /* of one step: settings times alignments */
#define WARM_CALLS 1
#define ALIGNMENT 256  /* more than this makes no difference to cuBLASLt */
#define BIAS_POINTER 8 /* CUBLASLT_MATMUL_DESC_BIAS_POINTER */

typedef struct {
    uint64_t settings;
    uint32_t alignments;     /* of the operands */
    PyObject *owner;         /* of the descriptors; NULL: ATen computes this */
    void *handle, *description, *layouts[3];
    uint64_t algorithm[8];
    uint64_t alpha, beta;    /* bits of the scale type */
    int64_t workspace;
    int a, b, bias;          /* positions among the operands; bias -1: none */
    uintptr_t alignment;     /* that the result must have */
    void *bias_now;          /* what the description says */
    int failed;
    int classic;             /* cuBLAS's own way instead: */
    Gemm gemm;
} Plan;

struct Product {
    int operands[3], n, result;
    int64_t calls;
    int n_plans;
    Plan *plans[MOST_PLANS];
};

static struct {
    int (*matmul)(void *, void *, const void *, const void *, void *, const void *, void *,
                  const void *, const void *, void *, void *, void *, const void *, void *, size_t,
                  void *);
    int (*set)(void *, int, const void *, size_t);
} library;

/* Held from when a workspace or a description is looked at until the launch that relies on it is
 * in its stream; never while asking torch for memory, which may need the interpreter. */
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

/* ---------------------------------------------------------------- workspaces */

#define MOST_SPACES 256
typedef struct {
    int device;
    void *stream;
    Handle memory;
    void *data;
    int64_t bytes;
} Space;
static Space spaces[MOST_SPACES];
static int n_spaces;

static Space *space_of(int device, void *stream)
{
    for (int i = 0; i < n_spaces; i++)
        if (spaces[i].device == device && spaces[i].stream == stream)
            return &spaces[i];
    return NULL;
}

/* Make the stream's workspace so large. One stream's products run one after another, so they can
 * share it, and what it replaces is free once they are done, as the allocator knows. */
static int grow_space(int device, void *stream, int64_t wanted)
{
    int64_t size = 1 << 20, stride = 1;
    while (size < wanted)
        size *= 2;
    Handle made, gone = NULL;
    void *data;
    if (torch.empty_strided(1, &size, &stride, torch.u8, cuda.type, device, &made))
        return -1;
    if (torch.get_data_ptr(made, &data)) {
        torch.delete_handle(made);
        return -1;
    }
    pthread_mutex_lock(&lock);
    Space *s = space_of(device, stream);
    if (!s && n_spaces < MOST_SPACES) {
        s = &spaces[n_spaces++];
        *s = (Space){.device = device, .stream = stream};
    }
    if (!s || s->bytes >= size) {  /* another thread did it */
        gone = made;
    } else {
        gone = s->memory;
        s->memory = made;
        s->data = data;
        s->bytes = size;
    }
    pthread_mutex_unlock(&lock);
    if (gone)
        torch.delete_handle(gone);
    return s ? 0 : -1;
}

/* product_spaces(drop) -> bytes that workspaces take; with `drop` they are given back. */
PyObject *product_spaces(PyObject *self, PyObject *drop)
{
    int dropped = PyObject_IsTrue(drop), n = 0;
    if (dropped < 0)
        return NULL;
    int64_t bytes = 0;
    Handle gone[MOST_SPACES];
    pthread_mutex_lock(&lock);
    for (int i = 0; i < n_spaces; i++) {
        bytes += spaces[i].bytes;
        gone[n++] = spaces[i].memory;
    }
    if (dropped)
        n_spaces = 0;
    pthread_mutex_unlock(&lock);
    for (int i = 0; dropped && i < n; i++)
        torch.delete_handle(gone[i]);
    return PyLong_FromLongLong(bytes);
}

/* ---------------------------------------------------------------- settings */

/* Every setting of torch's that may change how it computes a product. */
static uint64_t product_settings(void)
{
    uint64_t word = torch_settings();
    void *context = torch.context ? torch.context() : NULL;
    if (context && torch.blas_backend)
        word = word * 31 + (uint8_t)torch.blas_backend(context);
    if (context && torch.carveout)  /* optional<int>: the number, then whether there is one */
        word = word * 31 + (torch.carveout(context) >> 32 & 1 ? torch.carveout(context) | 1 : 0);
    if (torch.tuning && torch.tuned)
        word = word * 31 + (torch.tuned(torch.tuning()) & 1);
    return word;
}

/* product_settings() -> the number (for tests) */
PyObject *product_settings_now(PyObject *self, PyObject *unused)
{
    return PyLong_FromUnsignedLongLong(product_settings());
}

/* ---------------------------------------------------------------- plans */

static uintptr_t alignment_of(const void *address)
{
    uintptr_t bits = (uintptr_t)address | ALIGNMENT;
    return bits & -bits;
}

static Plan *find_plan(Product *p, uint64_t settings, uint32_t alignments)
{
    int n = __atomic_load_n(&p->n_plans, __ATOMIC_ACQUIRE);
    for (int i = 0; i < n; i++)
        if (p->plans[i]->settings == settings && p->plans[i]->alignments == alignments)
            return p->plans[i];
    return NULL;
}

static int bits_of(PyObject *bytes, void *out, Py_ssize_t n)
{
    if (!PyBytes_Check(bytes) || PyBytes_GET_SIZE(bytes) != n) {
        PyErr_SetString(PyExc_ValueError, "plan row");
        return -1;
    }
    memcpy(out, PyBytes_AS_STRING(bytes), (size_t)n);
    return 0;
}

static int check_positions(const Product *of, const Plan *p, long long workspace)
{
    if (p->a >= 0 && p->a < of->n && p->b >= 0 && p->b < of->n && p->bias >= -1 &&
        p->bias < of->n && workspace >= 0)
        return 0;
    PyErr_SetString(PyExc_ValueError, "plan row");
    return -1;
}

/* (owner, handle, gemm, alpha, beta, workspace, a, b, alignment); gemm: see gemm_parse */
static int parse_classic(const Product *of, PyObject *row, Plan *p)
{
    unsigned long long handle, alignment;
    PyObject *owner, *gemm, *alpha, *beta;
    long long workspace;
    if (!PyArg_ParseTuple(row, "OKOOOLiiK", &owner, &handle, &gemm, &alpha, &beta, &workspace,
                          &p->a, &p->b, &alignment) ||
        gemm_parse(gemm, &p->gemm) < 0)
        return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_TypeError, "plan row"), -1);
    p->bias = -1;
    if (bits_of(alpha, &p->alpha, 8) < 0 || bits_of(beta, &p->beta, 8) < 0 ||
        check_positions(of, p, workspace) < 0)
        return -1;
    p->owner = Py_NewRef(owner);
    p->gemm.handle = (void *)(uintptr_t)handle;
    p->classic = 1;
    p->workspace = workspace;
    p->alignment = (uintptr_t)alignment;
    return 0;
}

/* (owner, handle, description, (A, B, C), algorithm, alpha, beta, workspace, a, b, bias, alignment)
 * or None: ATen's */
static int parse_plan(const Product *of, PyObject *row, Plan *p)
{
    unsigned long long handle, description, layouts[3], alignment;
    PyObject *owner, *algorithm, *alpha, *beta;
    long long workspace;
    if (row == Py_None)
        return 0;
    if (PyTuple_Check(row) && PyTuple_GET_SIZE(row) == 9)
        return parse_classic(of, row, p);
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "OKK(KKK)OOOLiiiK", &owner, &handle, &description, &layouts[0],
                          &layouts[1], &layouts[2], &algorithm, &alpha, &beta, &workspace, &p->a,
                          &p->b, &p->bias, &alignment))
        return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_TypeError, "plan row"), -1);
    if (bits_of(algorithm, p->algorithm, sizeof p->algorithm) < 0 ||
        bits_of(alpha, &p->alpha, 8) < 0 || bits_of(beta, &p->beta, 8) < 0)
        return -1;
    if (check_positions(of, p, workspace) < 0)
        return -1;
    p->owner = Py_NewRef(owner);
    p->handle = (void *)(uintptr_t)handle;
    p->description = (void *)(uintptr_t)description;
    for (int i = 0; i < 3; i++)
        p->layouts[i] = (void *)(uintptr_t)layouts[i];
    p->workspace = workspace;
    p->alignment = (uintptr_t)alignment;
    return 0;
}

static PyObject *operands_of(Executable *x, Frame *f, const Product *p, PyObject *const *inputs)
{
    PyObject *tensors = PyTuple_New(p->n);
    for (int i = 0; tensors && i < p->n; i++) {
        PyObject *t = frame_object(f, inputs, x->n_inputs, p->operands[i]);
        if (!t)
            Py_CLEAR(tensors);
        else
            PyTuple_SET_ITEM(tensors, i, Py_NewRef(t));
    }
    return tensors;
}

/* Ask for a plan, or for the knowledge that there is none. NULL with an exception. */
static Plan *make_plan(Executable *x, Frame *f, Step *s, PyObject *const *inputs, uint64_t settings,
                       uint32_t alignments)
{
    Product *p = s->product;
    PyObject *tensors = operands_of(x, f, p, inputs);
    if (!tensors)
        return NULL;
    PyObject *row = PyObject_CallFunction(x->planner, "iKKO", (int)(s - x->steps),
                                          (unsigned long long)(uintptr_t)f->stream,
                                          (unsigned long long)settings, tensors);
    Py_DECREF(tensors);
    if (!row)
        return NULL;
    Plan *made = PyMem_RawCalloc(1, sizeof *made);
    int status = made ? parse_plan(p, row, made) : (PyErr_NoMemory(), -1);
    Py_DECREF(row);
    if (status < 0) {
        PyMem_RawFree(made);
        return NULL;
    }
    made->settings = settings;
    made->alignments = alignments;
    int n = p->n_plans;
    Plan *known = n < MOST_PLANS ? find_plan(p, settings, alignments) : NULL;
    if (known || n == MOST_PLANS) {  /* another thread planned meanwhile */
        Py_XDECREF(made->owner);
        memset(made, 0, sizeof *made);
        PyMem_RawFree(made);
        return known ? known : p->plans[0];
    }
    p->plans[n] = made;
    __atomic_store_n(&p->n_plans, n + 1, __ATOMIC_RELEASE);
    return made;
}

/* ---------------------------------------------------------------- the call */

static int launch_locked(Plan *p, Frame *f, int device, void *const *at, void *out, Space *space)
{
    int code = 0;
    if (p->classic)
        return gemm_launch(&p->gemm, device, f->stream, (void *[]){at[p->a], at[p->b], out},
                           (void *[]){&p->alpha, &p->beta}, space ? space->data : NULL,
                           p->workspace);
    if (p->bias >= 0 && p->bias_now != at[p->bias]) {
        code = library.set(p->description, BIAS_POINTER, &at[p->bias], sizeof(void *));
        p->bias_now = code ? NULL : at[p->bias];
    }
    return code ? code
                : library.matmul(p->handle, p->description, &p->alpha, at[p->a], p->layouts[0],
                                 at[p->b], p->layouts[1], &p->beta, out, p->layouts[2], out,
                                 p->layouts[2], p->algorithm, space ? space->data : NULL,
                                 space ? (size_t)space->bytes : 0, f->stream);
}

/* A status of cuBLAS's, 0 if all is well. */
static int launch_plan(Executable *x, Plan *p, Frame *f, void *const *at, void *out)
{
    for (int attempt = 0; attempt < 3; attempt++) {
        pthread_mutex_lock(&lock);
        Space *space = p->workspace ? space_of(x->device, f->stream) : NULL;
        if (!p->workspace || (space && space->bytes >= p->workspace)) {
            int code = launch_locked(p, f, x->device, at, out, space);
            pthread_mutex_unlock(&lock);
            return code;
        }
        pthread_mutex_unlock(&lock);
        if (grow_space(x->device, f->stream, p->workspace) < 0)
            break;
    }
    return 3;  /* CUBLAS_STATUS_ALLOC_FAILED */
}

/* ATen computes this product from now on. */
static int give_up(Executable *x, Step *s, Plan *p, int code, PyThreadState **saved)
{
    p->failed = code;
    take_gil(saved);
    PyObject *done =
        PyObject_CallMethod(x->planner, "failed", "ii", (int)(s - x->steps), code);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

int product_step(Executable *x, Frame *f, Step *s, PyObject *const *inputs, PyThreadState **saved)
{
    Product *p = s->product;
    if (f->trace || f->capturing ||
        __atomic_fetch_add(&p->calls, 1, __ATOMIC_RELAXED) < WARM_CALLS)
        return 0;
    void *at[3] = {NULL}, *out;
    uint32_t alignments = 0;
    for (int i = 0; i < p->n; i++) {
        Handle h = f->handles[p->operands[i]];
        if (!h || torch.get_data_ptr(h, &at[i]))
            return 0;
        alignments = alignments << 10 | (uint32_t)alignment_of(at[i]);
    }
    uint64_t settings = product_settings();
    Plan *plan = find_plan(p, settings, alignments);
    if (!plan) {
        if (p->n_plans == MOST_PLANS)
            return 0;
        take_gil(saved);
        if (!(plan = make_plan(x, f, s, inputs, settings, alignments)))
            return -1;
    }
    if (!plan->owner || plan->failed || plan->settings != settings ||
        plan->alignments != alignments)
        return 0;
    Handle made = frame_scratch(x, f, p->result);
    if (!made)
        return -1;
    int code = torch.get_data_ptr(made, &out) ? 1 : 0;
    int fits_in = !code && alignment_of(out) >= plan->alignment;
    if (fits_in && !(code = launch_plan(x, plan, f, at, out))) {
        __atomic_fetch_add(&x->n_products, 1, __ATOMIC_RELAXED);
        return 1;
    }
    frame_drop(x, f, p->result);
    return fits_in ? give_up(x, s, plan, code, saved) : 0;
}

/* ---------------------------------------------------------------- for Python */

/* product_library(cublasLtMatmul, cublasLtMatmulDescSetAttribute): their addresses. */
PyObject *product_library(PyObject *self, PyObject *args)
{
    unsigned long long matmul, set;
    if (!PyArg_ParseTuple(args, "KK", &matmul, &set))
        return NULL;
    uintptr_t entries[] = {(uintptr_t)matmul, (uintptr_t)set};
    memcpy(&library.matmul, &entries[0], sizeof entries[0]);
    memcpy(&library.set, &entries[1], sizeof entries[1]);
    Py_RETURN_NONE;
}

static int parse_product(Executable *x, PyObject *row)
{
    PyObject *operands;
    int at, result, n;
    if (!PyTuple_Check(row) ||
        !PyArg_ParseTuple(row, "iO!i", &at, &PyTuple_Type, &operands, &result))
        return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_TypeError, "product row"), -1);
    int *tensors = numbers(operands, &n, 0, x->n_tensors);
    if (!tensors)
        return -1;
    int good = at >= 0 && at < x->n_steps && x->steps[at].kind == S_CALL && !x->steps[at].product &&
               n >= 2 && n <= 3 && result >= x->n_inputs && result < x->n_tensors &&
               x->specs[result].place == EXTERN && x->specs[result].dtype >= 0;
    Product *p = good ? PyMem_RawCalloc(1, sizeof *p) : NULL;
    if (p) {
        p->n = n;
        p->result = result;
        memcpy(p->operands, tensors, (size_t)n * sizeof *tensors);
        x->steps[at].product = p;
    } else {
        PyErr_SetString(PyExc_ValueError, "product row");
    }
    PyMem_Free(tensors);
    return p ? 0 : -1;
}

/* products_on(planner, ((step, operands, result), ...)): these steps may be computed by cuBLASLt.
 * planner(step, stream, settings, tensors) -> a plan row or None; planner.failed(step, status). */
PyObject *products_on(PyObject *self, PyObject *args)
{
    Executable *x = (Executable *)self;
    PyObject *planner, *rows;
    if (!PyArg_ParseTuple(args, "OO!", &planner, &PyTuple_Type, &rows))
        return NULL;
    Py_XSETREF(x->planner, Py_NewRef(planner));
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(rows); i++)
        if (parse_product(x, PyTuple_GET_ITEM(rows, i)) < 0)
            return NULL;
    Py_RETURN_NONE;
}

/* products -> (the planner or None, how many products cuBLASLt computed) */
PyObject *products_get(PyObject *self, void *unused)
{
    Executable *x = (Executable *)self;
    return Py_BuildValue("OK", x->planner ? x->planner : Py_None,
                         (unsigned long long)x->n_products);
}

void product_free(Product *p)
{
    for (int i = 0; p && i < p->n_plans; i++) {
        Py_XDECREF(p->plans[i]->owner);
        PyMem_RawFree(p->plans[i]);
    }
    PyMem_RawFree(p);
}
