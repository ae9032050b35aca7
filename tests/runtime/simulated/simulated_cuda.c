/* A CUDA driver without a GPU: device memory is the process's own, kernels are the C functions
 * below, streams run at once, graphs are lists. Preloaded, it also is torch's current stream, and
 * it keeps what torch allocates while a stream is captured, as memory pools of torch's would: what is
 * freed serves later recordings that take from the same pool.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    const char *name;
    int n, sizes[4];
    void (*run)(void **, unsigned);
} Kernel;

#define F(i) (*(float **)p[i])
static void add1(void **p, unsigned n) { for (unsigned i = 0; i < n; i++) F(1)[i] = F(0)[i] + 1; }
static void inc(void **p, unsigned n) { for (unsigned i = 0; i < n; i++) F(0)[i] += 1; }
static void twice(void **p, unsigned n) { for (unsigned i = 0; i < n; i++) F(1)[i] = F(0)[i] * 2; }
static void scale(void **p, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        F(2)[i] = F(0)[i] * *(float *)p[1];
}
static void state(void **p, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        F(2)[i] = i % 2 ? *(int64_t *)p[1] : *(int64_t *)p[0];
}
static const Kernel KERNELS[] = {
    {"add1", 2, {8, 8}, add1}, {"inc", 1, {8}, inc}, {"twice", 2, {8, 8}, twice},
    {"scale", 3, {8, 4, 8}, scale}, {"state", 3, {8, 8, 8}, state},
};

typedef struct {
    void *function;
    unsigned grid[3], block[3], shared;
    void **params, **extra;
    void *kernel, *context;
} KernelNode;
typedef struct {
    size_t x, y, z, lod;
    int type;
    void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch, height;
} Side;
typedef struct {
    Side source, target;
    size_t width, height, depth;
} CopyNode;

enum { KERNEL, COPY, FILL };
typedef struct {
    int kind;
    const Kernel *kernel;
    unsigned blocks;
    uint64_t values[8];
    void *to, *from;
    size_t bytes;
    int byte;
} Work;
typedef struct { Work *nodes[64]; int n; } Graph;
typedef struct { Work *keys[64]; Work nodes[64]; int n; } Exec;
typedef struct { int capturing, broken; Graph *graph; } Stream;

static Stream streams[8];
static void *now;
static int context;
static int counts[8];  /* launches, graph launches, kernel patches, copy patches, waits, events */

/* ---------------------------------------------------------------- memory kept while capturing */
extern void *__libc_memalign(size_t, size_t);
extern void __libc_free(void *);
static struct { void *at; size_t bytes; int pool, unused; } kept[8192];
static int n_kept, pool_now;
static uintptr_t low = UINTPTR_MAX, high;

static int capturing(void)
{
    for (int i = 0; i < 8; i++)
        if (streams[i].capturing)
            return 1;
    return 0;
}

__attribute__((visibility("default"))) int posix_memalign(void **out, size_t align, size_t bytes)
{
    int kind = capturing() ? pool_now : 0;
    for (int i = 0; kind && i < n_kept; i++)
        if (kept[i].unused && kept[i].pool == kind && kept[i].bytes >= bytes) {
            kept[i].unused = 0;
            *out = kept[i].at;
            return 0;
        }
    *out = __libc_memalign(align < 64 ? align : 512, bytes);  /* tensors as on a GPU */
    if (*out && capturing() && n_kept < 8192) {
        uintptr_t at = (uintptr_t)*out;
        kept[n_kept].at = *out;
        kept[n_kept].bytes = bytes;
        kept[n_kept++].pool = kind;
        low = at < low ? at : low;
        high = at > high ? at : high;
    }
    return *out ? 0 : 12;
}

__attribute__((visibility("default"))) void free(void *p)
{
    if ((uintptr_t)p >= low && (uintptr_t)p <= high)
        for (int i = 0; i < n_kept; i++)
            if (kept[i].at == p) {
                kept[i].unused = 1;
                return;
            }
    __libc_free(p);
}

/* ---------------------------------------------------------------- for the tests */
void *simulated_stream(int i) { return i ? &streams[i] : NULL; }
void simulated_use(void *stream) { now = stream; }
void simulated_pool(int pool) { pool_now = pool; }
int simulated_held(int pool)
{
    int n = 0;
    for (int i = 0; i < n_kept; i++)
        n += kept[i].pool == pool;
    return n;
}
void simulated_reset(void) { memset(counts, 0, sizeof counts); }
int simulated_count(int i) { return counts[i]; }
void simulated_break(void) { if (now) ((Stream *)now)->broken = 1; }

int aoti_torch_get_current_cuda_stream(int device, void **out) { *out = now; return 0; }

/* ---------------------------------------------------------------- the driver */
static void run(const Work *w)
{
    void *p[8];
    for (int i = 0; i < 8; i++)
        p[i] = (void *)&w->values[i];
    if (w->kind == KERNEL)
        w->kernel->run(p, w->blocks);
    else if (w->kind == COPY)
        memcpy(w->to, w->from, w->bytes);
    else
        memset(w->to, w->byte, w->bytes);
}

static int submit(Stream *s, Work w)
{
    if (!s || !s->capturing) {
        run(&w);
        return 0;
    }
    Work *node = malloc(sizeof w);
    *node = w;
    s->graph->nodes[s->graph->n++] = node;
    return 0;
}

static void take(Work *w, void **params)
{
    for (int i = 0; i < w->kernel->n; i++)
        memcpy(&w->values[i], params[i], (size_t)w->kernel->sizes[i]);
}

int cuGetErrorString(int e, const char **out) { *out = "simulated error"; return 0; }
int cuDevicePrimaryCtxRetain(void **out, int d) { *out = &context; return 0; }
int cuCtxGetCurrent(void **out) { *out = &context; return 0; }
int cuCtxSetCurrent(void *c) { return 0; }
int cuKernelSetAttribute(int a, int v, void *k, int d) { return v > 200000; }
int cuLibraryLoadData(void **out, const void *code, void *a, void *b, unsigned c, void *d, void *e,
                      unsigned f)
{
    *out = (void *)code;
    return strncmp(code, "simulated", 9) != 0;
}
int cuLibraryGetKernel(void **out, void *library, const char *name)
{
    for (size_t i = 0; i < sizeof KERNELS / sizeof *KERNELS; i++)
        if (!strcmp(KERNELS[i].name, name)) {
            *out = (void *)&KERNELS[i];
            return 0;
        }
    return 500;
}
int cuLaunchKernel(void *k, unsigned x, unsigned y, unsigned z, unsigned bx, unsigned by,
                   unsigned bz, unsigned shared, void *stream, void **params, void **extra)
{
    Work w = {.kind = KERNEL, .kernel = k, .blocks = x};
    counts[0]++;
    take(&w, params);
    return submit(stream, w);
}
int cuMemcpyDtoDAsync_v2(uint64_t to, uint64_t from, size_t bytes, void *stream)
{
    return submit(stream, (Work){.kind = COPY, .to = (void *)to, .from = (void *)from,
                                 .bytes = bytes});
}
int cuMemsetD8Async(uint64_t to, unsigned char byte, size_t bytes, void *stream)
{
    return submit(stream, (Work){.kind = FILL, .to = (void *)to, .byte = byte, .bytes = bytes});
}
int cuStreamIsCapturing(void *s, int *out) { *out = ((Stream *)s)->capturing; return 0; }
int cuStreamBeginCapture_v2(void *stream, int mode)
{
    Stream *s = stream;
    if (!s || s->capturing)
        return 900;
    s->capturing = 1;
    s->broken = 0;
    s->graph = calloc(1, sizeof *s->graph);
    return 0;
}
int cuStreamEndCapture(void *stream, void **out)
{
    Stream *s = stream;
    s->capturing = 0;
    *out = s->broken ? NULL : s->graph;
    return s->broken ? 901 : 0;
}
int cuStreamGetCaptureInfo_v2(void *stream, int *status, uint64_t *id, void **graph,
                              void *const **nodes, size_t *n)
{
    Stream *s = stream;
    *status = s->capturing ? 1 : 0;
    *nodes = (void *const *)&s->graph->nodes[s->graph->n - 1];
    *n = s->graph->n > 0;
    return s->broken ? 901 : 0;
}
int cuGraphInstantiateWithFlags(void **out, void *graph, unsigned long long flags)
{
    Graph *g = graph;
    Exec *e = calloc(1, sizeof *e);
    for (int i = 0; i < g->n; i++) {
        e->keys[i] = g->nodes[i];
        e->nodes[i] = *g->nodes[i];
    }
    e->n = g->n;
    *out = e;
    return 0;
}
int cuGraphLaunch(void *exec, void *stream)
{
    Exec *e = exec;
    counts[1]++;
    for (int i = 0; i < e->n; i++)
        run(&e->nodes[i]);
    return 0;
}
int cuGraphDestroy(void *g) { return 0; }
int cuGraphExecDestroy(void *e) { memset(e, 0, sizeof(Exec)); return 0; }
int cuGraphKernelNodeGetParams_v2(void *node, KernelNode *out)
{
    Work *w = node;
    *out = (KernelNode){.function = (void *)w->kernel, .grid = {w->blocks, 1, 1}};
    return w->kind != KERNEL;
}
static Work *find(Exec *e, void *node)
{
    for (int i = 0; i < e->n; i++)
        if (e->keys[i] == node)
            return &e->nodes[i];
    return NULL;
}
int cuGraphExecKernelNodeSetParams_v2(void *exec, void *node, const KernelNode *p)
{
    Work *w = find(exec, node);
    if (!w || p->function != (void *)w->kernel || p->grid[0] != w->blocks || p->extra)
        return 1;
    counts[2]++;
    take(w, p->params);
    return 0;
}
int cuGraphMemcpyNodeGetParams(void *node, CopyNode *out)
{
    Work *w = node;
    *out = (CopyNode){.source = {.type = 2, .device = (uint64_t)w->from},
                      .target = {.type = 2, .device = (uint64_t)w->to}, .width = w->bytes};
    return w->kind != COPY;
}
int cuGraphExecMemcpyNodeSetParams(void *exec, void *node, const CopyNode *p, void *c)
{
    Work *w = find(exec, node);
    if (!w || p->width != w->bytes || c != &context)
        return 1;
    counts[3]++;
    w->from = (void *)p->source.device;
    w->to = (void *)p->target.device;
    return 0;
}
int cuEventCreate(void **out, unsigned flags) { *out = &counts; return 0; }
int cuEventRecord(void *e, void *s) { counts[5]++; return 0; }
int cuStreamWaitEvent(void *s, void *e, unsigned f) { counts[4]++; return 0; }
int cuStreamSynchronize(void *s) { return 0; }
int cuThreadExchangeStreamCaptureMode(int *mode) { return 0; }
