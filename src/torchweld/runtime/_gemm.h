/* cuBLAS's own product, as _products.c uses it. */
#ifndef WELD_GEMM_H
#define WELD_GEMM_H

#include "_driver.h"

typedef struct {
    void *handle;
    int ta, tb, m, n, k, lda, ldb, ldc, batches;
    int type, compute;     /* cudaDataType_t, cublasComputeType_t */
    int mode;              /* cublasMath_t */
    long long strides[3];
} Gemm;

/* (mode, (ta, tb, m, n, k, lda, ldb, ldc, batches), (type, compute), strides) */
int gemm_parse(PyObject *row, Gemm *g);

/* addresses: of A, B and D; factors: alpha and beta. Not for two threads at once. A status. */
int gemm_launch(const Gemm *g, int device, void *stream, void *const *addresses,
                void *const *factors, void *workspace, int64_t bytes);

#endif
