/* cuBLASLt without a GPU: descriptors remember what they were told, products are computed on the
 * CPU from nothing but the descriptors. Algorithm number i is wrong for i < `wrong`, and right for
 * integers only for i < `truncated`.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct { int compute, scale; int ta, tb; unsigned epilogue; char *bias; } Desc;
typedef struct { int type; uint64_t rows, columns; int64_t step; int batches; int64_t stride; } Layout;
typedef struct { uint64_t workspace; unsigned values[16], given[16]; } Preference;
typedef struct { uint64_t data[8]; size_t workspace; int state; float waves; int reserved[4]; } Found;

static int wrong, status, needed, live, truncated, offered = 8;
static uint64_t numbers[8];  /* products, searches, description changes, last stream, algorithm */
static Preference last;
static Desc last_description;

void fake_set(int what, int value)
{
    int *what_of[] = {&wrong, &status, &needed, &offered, &truncated};
    *what_of[what] = value;
}
void fake_classic(int on);
void fake_reset(void)
{
    wrong = status = needed = truncated = 0;
    offered = 8;
    fake_classic(0);
    memset(numbers, 0, sizeof numbers);
}
uint64_t fake_number(int i) { return numbers[i]; }
int fake_live(void) { return live; }
unsigned fake_preference(int attribute) { return last.given[attribute] ? last.values[attribute] : 99; }
uint64_t fake_workspace(void) { return last.workspace; }
int fake_description(int i)
{
    int values[] = {last_description.compute, last_description.scale,
                    (int)last_description.epilogue};
    return values[i];
}

size_t cublasLtGetVersion(void) { return 130100; }
int cublasLtCreate(void **out) { *out = &numbers; return 0; }

#define MAKE(type) type *made = calloc(1, sizeof *made); *out = made; live++
#define DESTROY(name) int name(void *x) { free(x); live--; return 0; }
int cublasLtMatmulDescCreate(void **out, int compute, int scale)
{
    MAKE(Desc);
    *made = (Desc){compute, scale, 0, 0, 1, NULL};
    return 0;
}
DESTROY(cublasLtMatmulDescDestroy)
int cublasLtMatmulDescSetAttribute(Desc *d, int attribute, const void *value, size_t size)
{
    numbers[2]++;
    if (attribute == 3 && size == 4) d->ta = *(int *)value;
    else if (attribute == 4 && size == 4) d->tb = *(int *)value;
    else if (attribute == 7 && size == 4) d->epilogue = *(unsigned *)value;
    else if (attribute == 8 && size == 8) d->bias = *(char **)value;
    else return 7;
    return 0;
}
int cublasLtMatrixLayoutCreate(void **out, int type, uint64_t rows, uint64_t columns, int64_t step)
{
    MAKE(Layout);
    *made = (Layout){type, rows, columns, step, 1, 0};
    return step < (int64_t)rows ? 7 : 0;
}
DESTROY(cublasLtMatrixLayoutDestroy)
int cublasLtMatrixLayoutSetAttribute(Layout *l, int attribute, const void *value, size_t size)
{
    if (attribute == 5 && size == 4) l->batches = *(int *)value;
    else if (attribute == 6 && size == 8) l->stride = *(int64_t *)value;
    else return 7;
    return 0;
}
int cublasLtMatmulPreferenceCreate(void **out) { MAKE(Preference); return 0; }
DESTROY(cublasLtMatmulPreferenceDestroy)
int cublasLtMatmulPreferenceSetAttribute(Preference *p, int attribute, const void *value,
                                         size_t size)
{
    if (attribute == 1 && size == 8) p->workspace = *(uint64_t *)value;
    else if (attribute < 9 && size == 4) {
        p->values[attribute] = *(unsigned *)value;
        p->given[attribute] = 1;
    } else return 7;
    return 0;
}
int cublasLtMatmulAlgoGetHeuristic(void *h, Desc *d, Layout *a, Layout *b, Layout *c, Layout *r,
                                   Preference *p, int most, Found *found, int *n)
{
    numbers[1]++;
    last = *p;
    last_description = *d;
    if (h != &numbers || c != r)
        return 7;
    *n = most < offered ? most : offered;
    for (int i = 0; i < *n; i++) {
        memset(&found[i], 0, sizeof *found);
        found[i].data[0] = 7000 + (uint64_t)i;
        found[i].workspace = (size_t)needed;
    }
    return *n ? 0 : 15;
}

static double at(int type, const char *p, int64_t i)
{
    uint32_t wide = 0;
    float f;
    if (type == 1)
        return ((const double *)p)[i];
    if (type == 0)
        return ((const float *)p)[i];
    wide = (uint32_t)((const uint16_t *)p)[i] << 16;
    memcpy(&f, &wide, 4);
    return f;
}
static void put(int type, char *p, int64_t i, double v)
{
    float f = (float)v;
    uint32_t bits;
    if (type == 1)
        ((double *)p)[i] = v;
    else if (type == 0)
        ((float *)p)[i] = f;
    else {
        memcpy(&bits, &f, 4);
        ((uint16_t *)p)[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
    }
}
static double entry(const Layout *l, const void *p, int64_t batch, int64_t row, int64_t column)
{
    return at(l->type, p, batch * l->stride + row + column * l->step);
}
static double finish(unsigned epilogue, double v)
{
    if (epilogue & 2 && v < 0)
        return 0;
    return epilogue & 32 ? 0.5 * v * (1 + tanh(0.7978845608028654 * (v + 0.044715 * v * v * v)))
                         : v;
}
/* ---------------------------------------------------------------- cuBLAS itself */
typedef struct { void *stream, *space; size_t bytes; int mode; } Handle;
static int classic;
static Handle used;
void fake_classic(int on) { classic = on; }
uint64_t fake_told(int i)
{
    return i == 0 ? (uint64_t)used.stream : i == 1 ? (uint64_t)used.bytes : (uint64_t)used.mode;
}
int cublasCreate_v2(Handle **out) { *out = calloc(1, sizeof **out); return classic ? 0 : 1; }
int cublasSetStream_v2(Handle *h, void *stream)
{
    numbers[5]++;
    h->stream = stream;
    h->space = NULL;
    return 0;
}
int cublasSetWorkspace_v2(Handle *h, void *space, size_t bytes)
{
    h->space = space;
    h->bytes = bytes;
    return 0;
}
int cublasSetMathMode(Handle *h, int mode) { h->mode = mode; return 0; }
int cublasLtMatmul(void *h, Desc *d, const void *alpha, const void *a, Layout *la, const void *b,
                   Layout *lb, const void *beta, const void *c, Layout *lc, void *out, Layout *lr,
                   const uint64_t *algorithm, void *space, size_t bytes, void *stream);
int cublasGemmStridedBatchedEx(Handle *h, int ta, int tb, int m, int n, int k, const void *alpha,
                               const void *a, int at_, int lda, long long sa, const void *b,
                               int bt, int ldb, long long sb, const void *beta, void *c, int ct,
                               int ldc, long long sc, int batches, int compute, int algorithm)
{
    Desc d = {compute, at_ == 1 ? 1 : 0, ta, tb, 1, NULL};
    Layout la = {at_, ta ? k : m, ta ? m : k, lda, batches, sa};
    Layout lb = {bt, tb ? n : k, tb ? k : n, ldb, batches, sb};
    Layout lc = {ct, m, n, ldc, batches, sc};
    uint64_t right[] = {7008};
    if (!classic || !h->space || algorithm != 99 || batches < 1)
        return 15;
    used = *h;
    return cublasLtMatmul(&numbers, &d, alpha, a, &la, b, &lb, beta, c, &lc, c, &lc, right,
                          h->space, h->bytes, h->stream);
}
int cublasGemmEx(Handle *h, int ta, int tb, int m, int n, int k, const void *alpha, const void *a,
                 int at_, int lda, const void *b, int bt, int ldb, const void *beta, void *c,
                 int ct, int ldc, int compute, int algorithm)
{
    return cublasGemmStridedBatchedEx(h, ta, tb, m, n, k, alpha, a, at_, lda, 0, b, bt, ldb, 0,
                                      beta, c, ct, ldc, 0, 1, compute, algorithm);
}

int cublasLtMatmul(void *h, Desc *d, const void *alpha, const void *a, Layout *la, const void *b,
                   Layout *lb, const void *beta, const void *c, Layout *lc, void *out, Layout *lr,
                   const uint64_t *algorithm, void *space, size_t bytes, void *stream)
{
    uint64_t m = lc->rows, n = lc->columns, k = d->ta ? la->rows : la->columns;
    if (h != &numbers || c != out || lc != lr || bytes < (size_t)needed || (needed && !space))
        return 7;
    if (m != (d->ta ? la->columns : la->rows) || n != (d->tb ? lb->rows : lb->columns) ||
        k != (d->tb ? lb->columns : lb->rows) || algorithm[0] - 7000 > 8)
        return 7;
    if (status)
        return status;
    numbers[0]++;
    numbers[3] = (uint64_t)stream;
    numbers[4] = algorithm[0] - 7000;
    if (needed)
        memset(space, 1, bytes);
    double scale = d->scale == 1 ? *(double *)alpha : *(float *)alpha;
    if (d->scale == 1 ? *(double *)beta : *(float *)beta)
        return 7;
    for (int64_t i = 0; i < lc->batches; i++)
        for (uint64_t col = 0; col < n; col++)
            for (uint64_t row = 0; row < m; row++) {
                double sum = 0;
                for (uint64_t j = 0; j < k; j++)
                    sum += (d->ta ? entry(la, a, i, j, row) : entry(la, a, i, row, j)) *
                           (d->tb ? entry(lb, b, i, col, j) : entry(lb, b, i, j, col));
                if (algorithm[0] - 7000 < (unsigned)truncated)
                    sum = trunc(sum);
                sum = scale * sum + (d->epilogue & 4 ? at(lc->type, d->bias, row) : 0);
                put(lc->type, out, i * lc->stride + row + col * lc->step,
                    finish(d->epilogue, sum) + (algorithm[0] - 7000 < (unsigned)wrong));
            }
    return 0;
}
