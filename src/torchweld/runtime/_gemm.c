/* cublasGemmEx and cublasGemmStridedBatchedEx: what ATen calls for most products without a bias.
 *
 * A handle stands for a device. It is told of a stream, a workspace and a way of rounding when they
 * are others than in the call before.
 */
#include "_gemm.h"

#include <string.h>

#define DEFAULT_TENSOR_OP 99 /* CUBLAS_GEMM_DEFAULT_TENSOR_OP, as ATen asks */

static struct {
    int (*one)(void *, int, int, int, int, int, const void *, const void *, int, int, const void *,
               int, int, const void *, void *, int, int, int, int);
    int (*many)(void *, int, int, int, int, int, const void *, const void *, int, int, long long,
                const void *, int, int, long long, const void *, void *, int, int, long long, int,
                int, int);
    int (*set_stream)(void *, void *);
    int (*set_workspace)(void *, void *, size_t);
    int (*set_mode)(void *, int);
} library;

static struct {
    void *handle, *stream, *workspace;
    int64_t bytes;
    int mode;
} told[MAX_DEVICES];

int gemm_parse(PyObject *row, Gemm *g)
{
    return PyTuple_Check(row) &&
                   PyArg_ParseTuple(row, "i(iiiiiiiii)(ii)(LLL)", &g->mode, &g->ta, &g->tb, &g->m,
                                    &g->n, &g->k, &g->lda, &g->ldb, &g->ldc, &g->batches, &g->type,
                                    &g->compute, &g->strides[0], &g->strides[1], &g->strides[2])
               ? 0
               : -1;
}

static int tell(const Gemm *g, int device, void *stream, void *workspace, int64_t bytes)
{
    int same = told[device].handle == g->handle, code = 0;
    if (!same || told[device].stream != stream || told[device].workspace != workspace ||
        told[device].bytes != bytes) {
        told[device].handle = NULL;  /* until all is well */
        /* a new stream takes the workspace away */
        code = library.set_stream(g->handle, stream);
        if (!code)
            code = library.set_workspace(g->handle, workspace, (size_t)bytes);
    }
    if (!code && (!same || told[device].mode != g->mode))
        code = library.set_mode(g->handle, g->mode);
    if (code)
        return code;
    told[device].handle = g->handle;
    told[device].stream = stream;
    told[device].workspace = workspace;
    told[device].bytes = bytes;
    told[device].mode = g->mode;
    return 0;
}

int gemm_launch(const Gemm *g, int device, void *stream, void *const *addresses,
                void *const *factors, void *workspace, int64_t bytes)
{
    if (device < 0 || device >= MAX_DEVICES)
        return 7;  /* CUBLAS_STATUS_INVALID_VALUE */
    int code = tell(g, device, stream, workspace, bytes);
    if (code)
        return code;
    return g->batches == 1
               ? library.one(g->handle, g->ta, g->tb, g->m, g->n, g->k, factors[0], addresses[0],
                             g->type, g->lda, addresses[1], g->type, g->ldb, factors[1],
                             addresses[2], g->type, g->ldc, g->compute, DEFAULT_TENSOR_OP)
               : library.many(g->handle, g->ta, g->tb, g->m, g->n, g->k, factors[0], addresses[0],
                              g->type, g->lda, g->strides[0], addresses[1], g->type, g->ldb,
                              g->strides[1], factors[1], addresses[2], g->type, g->ldc,
                              g->strides[2], g->batches, g->compute, DEFAULT_TENSOR_OP);
}

/* gemm_library(cublasGemmEx, cublasGemmStridedBatchedEx, cublasSetStream, cublasSetWorkspace,
 * cublasSetMathMode): their addresses. */
PyObject *gemm_library(PyObject *self, PyObject *args)
{
    unsigned long long given[5];
    if (!PyArg_ParseTuple(args, "KKKKK", &given[0], &given[1], &given[2], &given[3], &given[4]))
        return NULL;
    void *slots[] = {&library.one, &library.many, &library.set_stream, &library.set_workspace,
                     &library.set_mode};
    for (int i = 0; i < 5; i++) {
        uintptr_t entry = (uintptr_t)given[i];
        memcpy(slots[i], &entry, sizeof entry);
    }
    Py_RETURN_NONE;
}
