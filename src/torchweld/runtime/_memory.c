/* Memory of a call: the arena, fresh outputs and the pool behind them, results of matmuls.
 *
 * Page faults decide here. On a CPU a fresh 64 MB tensor costs more in the kernel's zeroing of its
 * pages than a fused pointwise kernel costs in all, and malloc gives such blocks back to the system
 * each time. So a large output asks for huge pages, and its storage is kept and used again once the
 * caller has dropped every tensor on it: what a loop that overwrites its result does.
 *
 * x + 1 on 64 MB of f32, median ms per call of 7 interleaved rounds, `y = f(x)` in a loop, 2-core
 * EPYC VM, glibc 2.36, torch 2.13, 2026-11-29: neither 19.6, huge pages 6.8, pool 4.0, both 3.9;
 * eager 21.6, eager with out= 4.1. At 4 and 16 MB malloc itself keeps the block, and the gain is
 * within the noise.
 */
#include "_driver.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define LARGE ((int64_t)2 << 20)
#define POOL_LIMIT ((int64_t)1 << 30)

static int64_t pooled;     /* bytes held by all pools of the process */
static int64_t arenas[2];  /* bytes of all arenas: on CPUs, on GPUs */

static int on_cuda(int32_t device_type)
{
    return cuda.ready && device_type == cuda.type;
}

/* held() -> (bytes of output pools, of arenas on CPUs, of arenas on GPUs) */
PyObject *memory_held(PyObject *self, PyObject *unused)
{
    return Py_BuildValue("LLL", (long long)pooled, (long long)arenas[0], (long long)arenas[1]);
}

static int64_t pool_limit(void)
{
    static int64_t limit;
    if (!limit) {
        int64_t ram = (int64_t)sysconf(_SC_PHYS_PAGES) * sysconf(_SC_PAGE_SIZE);
        limit = ram > 0 && ram / 16 < POOL_LIMIT ? ram / 16 : POOL_LIMIT;
    }
    return limit;
}

static void want_huge_pages(void *data, int64_t bytes)
{
    uintptr_t begin = ((uintptr_t)data + LARGE - 1) & ~(uintptr_t)(LARGE - 1);
    uintptr_t end = ((uintptr_t)data + (uintptr_t)bytes) & ~(uintptr_t)(LARGE - 1);
    if (torch.huge_pages && begin < end)
        madvise((void *)begin, end - begin, MADV_HUGEPAGE);
}

void allocation_failed(Spec *s)
{
    PyGILState_STATE state = PyGILState_Ensure();
    if (s && cuda.ready && s->device_type == cuda.type)
        cuda_out_of_memory(s->bytes);
    else
        PyErr_Format(PyExc_RuntimeError, "could not allocate a tensor of %lld bytes",
                     (long long)(s ? s->bytes : 0));
    PyGILState_Release(state);
}

/* Under verify, memory that nobody wrote yet reads as NaN, -1 or no bool at all, also if an earlier
 * call left right values there. */
#define POISON 0xff

static int poison(Frame *f, void *data, int64_t bytes, int32_t device_type)
{
    if (bytes <= 0)
        return 0;
    if (on_cuda(device_type))
        return cuda.fill((uint64_t)(uintptr_t)data, POISON, (size_t)bytes, f->stream) ? -1 : 0;
    memset(data, POISON, (size_t)bytes);
    return 0;
}

static int poison_tensor(Frame *f, const Spec *s, Handle h)
{
    void *data;
    return torch.get_data_ptr(h, &data) ? -1 : poison(f, data, s->bytes, s->device_type);
}

Handle spec_tensor(const Spec *s)
{
    Handle h;
    if (torch.empty_strided(s->ndim, s->sizes, s->strides, s->dtype, s->device_type, s->device,
                            &h))
        return NULL;
    void *data;
    if (s->bytes >= LARGE && s->device_type == torch.cpu && torch.get_data_ptr(h, &data) == 0)
        want_huge_pages(data, s->bytes);
    return h;
}

static int make_arena(Executable *x, Frame *f)
{
    int64_t stride = 1;
    if (torch.empty_strided(1, &x->arena_bytes, &stride, torch.u8, x->arena_type, x->arena_device,
                            &f->arena))
        return -1;
    void *data;
    if (torch.get_data_ptr(f->arena, &data))
        return -1;
    f->base = data;
    __atomic_add_fetch(&arenas[on_cuda(x->arena_type)], x->arena_bytes, __ATOMIC_RELAXED);
    if (x->arena_bytes >= LARGE && x->arena_type == torch.cpu)
        want_huge_pages(data, x->arena_bytes);
    for (int n = 0; n < x->n_tensors; n++) {
        Spec *s = &x->specs[n];
        if (s->place != ARENA)
            continue;
        int64_t at = s->index + s->offset * s->itemsize;
        f->pointers[n] = f->base + at;
        if (s->handle && torch.alloc_from_pool(f->arena, at, s->dtype, s->ndim, s->sizes,
                                               s->strides, &f->handles[n]))
            return -1;
    }
    return 0;
}

static void *zeroed(int n, size_t size)
{
    return PyMem_RawCalloc(n > 0 ? (size_t)n : 1, size);
}

/* A copy of a tensor that a kernel cannot read where it is. */
static int realign(Executable *x, Frame *f, int n)
{
    Handle copy;
    if (torch.clone_strided(f->handles[n], &copy)) {
        allocation_failed(&x->specs[n]);
        return -1;
    }
    if (f->owned[n])
        torch.delete_handle(f->handles[n]);
    f->handles[n] = copy;
    f->owned[n] = 1;
    f->cloned += n < x->n_inputs;
    return torch.get_data_ptr(copy, &f->pointers[n]) ? -1 : 0;
}

int frame_pointer(Executable *x, Frame *f, int n)
{
    Spec *s = &x->specs[n];
    if (!s->pointer)
        return 0;
    if (torch.get_data_ptr(f->handles[n], &f->pointers[n]) == 0)
        return s->aligned && (uintptr_t)f->pointers[n] & 15 ? realign(x, f, n) : 0;
    PyGILState_STATE state = PyGILState_Ensure();
    PyErr_Format(torch.internal_error, "tensor %d has no memory that a kernel could use", n);
    PyGILState_Release(state);
    return -1;
}

void frame_shed(Executable *x, Frame *f)
{
    for (int n = 0; f->handles && f->objects && n < x->n_tensors; n++)
        if (x->specs[n].place == ARENA) {
            Py_CLEAR(f->objects[n]);
            if (f->handles[n])
                torch.delete_handle(f->handles[n]);
            f->handles[n] = NULL;
        }
    if (f->base)
        __atomic_sub_fetch(&arenas[on_cuda(x->arena_type)], x->arena_bytes, __ATOMIC_RELAXED);
    if (f->arena)
        torch.delete_handle(f->arena);
    f->arena = NULL;
    f->base = NULL;
    for (int i = 0; f->spare && i < x->n_groups * SPARES; i++) {
        if (f->spare[i])
            torch.delete_handle(f->spare[i]);
        f->spare[i] = NULL;
    }
}

void frame_free(Executable *x, Frame *f)
{
    frame_shed(x, f);
    for (int n = 0; f->objects && n < x->n_tensors; n++)
        Py_CLEAR(f->objects[n]);
    void *arrays[] = {f->handles, f->owned, f->objects, f->pointers,
                      f->gather, f->stack,   f->spare,   f->drawn};
    for (size_t i = 0; i < sizeof arrays / sizeof *arrays; i++)
        PyMem_RawFree(arrays[i]);
    PyMem_RawFree(f);
}

Frame *frame_new(Executable *x, int inference)
{
    Frame *f = zeroed(1, sizeof *f);
    if (!f)
        return NULL;
    int n = x->n_tensors;
    f->inference = inference;
    f->handles = zeroed(n, sizeof *f->handles);
    f->owned = zeroed(n, 1);
    f->objects = zeroed(n, sizeof *f->objects);
    f->pointers = zeroed(n, sizeof *f->pointers);
    f->gather = zeroed(x->max_args, sizeof *f->gather);
    f->stack = zeroed(x->max_stack, sizeof *f->stack);
    f->spare = zeroed(x->n_groups * SPARES, sizeof *f->spare);
    f->drawn = zeroed(2 * x->n_draws, sizeof *f->drawn);
    if (!f->handles || !f->owned || !f->objects || !f->pointers || !f->gather || !f->stack ||
        !f->spare || !f->drawn) {
        frame_free(x, f);
        return NULL;
    }
    for (int i = 0; x->n_draws && i < x->n_steps; i++)
        if (x->steps[i].kind == S_DRAW) {
            f->pointers[x->steps[i].tensor] = &f->drawn[2 * x->steps[i].draw];
            f->pointers[x->steps[i].source] = &f->drawn[2 * x->steps[i].draw + 1];
        }
    for (int i = x->n_inputs; i < n; i++)
        if (x->specs[i].place == NUMBER)
            f->pointers[i] = &x->specs[i].index;
    return f;
}

int frame_arena(Executable *x, Frame *f)
{
    if (x->arena_bytes <= 0)
        return 0;
    if (!f->base && make_arena(x, f) < 0) {
        Spec all = {.bytes = x->arena_bytes, .device_type = x->arena_type};
        allocation_failed(&all);
        return -1;
    }
    return x->verify ? poison(f, f->base, x->arena_bytes, x->arena_type) : 0;
}

/* Memory that the current stream may use: kept frames of other streams are not it, as theirs may
 * still be in use there; nor is anything kept that belongs to a graph that the user captures. */
Frame *frame_take(Executable *x, int inference)
{
    void *stream = NULL;
    int capturing = 0;
    if (x->device >= 0 && cuda.current_stream(x->device, &stream))
        return PyErr_Format(PyExc_RuntimeError, "no current CUDA stream"), NULL;
    if (stream && cuda.is_capturing(stream, &capturing))
        capturing = 0;
    pthread_mutex_lock(&x->mutex);
    Frame *f = capturing ? NULL : x->idle;
    if (f)
        x->idle = NULL;
    pthread_mutex_unlock(&x->mutex);
    if (f && (f->inference != inference || f->stream != stream)) {
        frame_free(x, f);
        f = NULL;
    }
    if (!f && !(f = frame_new(x, inference)))
        PyErr_NoMemory();
    if (f) {
        f->stream = stream;
        f->capturing = (char)capturing;
    }
    return f;
}

/* End of a call: release what it made, keep the frame for the next one. */
void frame_give(Executable *x, Frame *f)
{
    for (int n = f->cloned ? 0 : x->n_inputs; n < x->n_tensors; n++)
        if (x->specs[n].place != ARENA && (n >= x->n_inputs || f->owned[n]))
            frame_drop(x, f, n);
    f->cloned = f->settles = 0;
    f->given = NULL;
    if (x->graphs && graphs_serve(x))
        frame_shed(x, f);  /* the next call is a graph, which has its own */
    f->served = NULL;
    Py_CLEAR(f->saved);
    pthread_mutex_lock(&x->mutex);
    Frame *spare = x->idle || f->capturing ? f : NULL;
    if (!spare)
        x->idle = f;
    pthread_mutex_unlock(&x->mutex);
    if (spare)
        frame_free(x, spare);
}

static void hold(Executable *x, int n, Handle h, int inference)
{
    Spec *s = &x->specs[n];
    Pool *p = &x->pools[n];
    Handle alias;
    void *data;
    if (__atomic_load_n(&pooled, __ATOMIC_RELAXED) + s->bytes > pool_limit() ||
        torch.get_data_ptr(h, &data) ||
        torch.reinterpret(h, s->ndim, s->sizes, s->strides, 0, &alias))
        return;
    __atomic_add_fetch(&pooled, s->bytes, __ATOMIC_RELAXED);
    int slot = p->holder[0] == NULL ? 0 : p->holder[1] == NULL ? 1 : (p->next ^= 1);
    if (p->holder[slot]) {
        __atomic_sub_fetch(&pooled, s->bytes, __ATOMIC_RELAXED);
        torch.delete_handle(p->holder[slot]);
    }
    p->holder[slot] = alias;
    p->data[slot] = data;
    p->inference[slot] = (char)inference;
}

/* Whether the storage is ours alone and still what we made: share_memory_() may have moved it to
 * memory that another process reads on, and resize_() to none at all. */
static int reusable(const Spec *s, const Pool *p, int slot, int inference)
{
    Handle h = p->holder[slot];
    void *data;
    int64_t bytes;
    return h && p->inference[slot] == inference && storage_unique(h) &&
           torch.get_data_ptr(h, &data) == 0 && data == p->data[slot] &&
           torch.get_storage_size(h, &bytes) == 0 && bytes == s->bytes;
}

/* A fresh output on a storage that the caller no longer has, or NULL. */
static Handle reuse(Executable *x, int n, int inference)
{
    Spec *s = &x->specs[n];
    Pool *p = &x->pools[n];
    Handle h;
    for (int i = 0; i < 2; i++)
        if (reusable(s, p, i, inference) &&
            torch.reinterpret(p->holder[i], s->ndim, s->sizes, s->strides, 0, &h) == 0) {
            x->n_reused++;
            return h;
        }
    return NULL;
}

int frame_alloc(Executable *x, Frame *f, int n)
{
    Spec *s = &x->specs[n];
    Handle h;
    if (s->output && s->bytes >= LARGE && torch.storage_word && s->device_type == torch.cpu) {
        pthread_mutex_lock(&x->mutex);
        h = reuse(x, n, f->inference);
        if (!h && (h = spec_tensor(s)))
            hold(x, n, h, f->inference);
        pthread_mutex_unlock(&x->mutex);
    } else {
        h = spec_tensor(s);
    }
    if (!h) {
        allocation_failed(s);
        return -1;
    }
    f->handles[n] = h;
    f->owned[n] = 1;
    if (x->verify && poison_tensor(f, s, h) < 0) {
        allocation_failed(s);
        return -1;
    }
    return frame_pointer(x, f, n);
}

/* Where a matmul writes its result: an output, or memory of an earlier result of the same shape. */
Handle frame_scratch(Executable *x, Frame *f, int n)
{
    Spec *s = &x->specs[n];
    if (s->scratch)
        for (int i = 0; i < SPARES; i++) {
            Handle *slot = &f->spare[s->group * SPARES + i];
            if (!*slot)
                continue;
            f->handles[n] = *slot;
            *slot = NULL;
            f->owned[n] = 1;
            if (x->verify && poison_tensor(f, s, f->handles[n]) < 0) {
                allocation_failed(s);
                return NULL;
            }
            return frame_pointer(x, f, n) < 0 ? NULL : f->handles[n];
        }
    return frame_alloc(x, f, n) < 0 ? NULL : f->handles[n];
}

/* Whether its memory waits for the next result of the same shape. On a GPU torch's allocator is as
 * fast, and may give it to others. */
static int is_spare(const Spec *s)
{
    return s->scratch && !(on_cuda(s->device_type) && s->bytes >= LARGE);
}

void frame_drop(Executable *x, Frame *f, int n)
{
    Spec *s = &x->specs[n];
    PyObject *object = f->objects[n];
    f->objects[n] = NULL;
    if (f->owned[n]) {
        Handle h = f->handles[n];
        f->owned[n] = 0;
        for (int i = 0; is_spare(s) && !object && h && i < SPARES; i++) {
            Handle *slot = &f->spare[s->group * SPARES + i];
            if (*slot || !storage_unique(h))
                continue;
            *slot = h;
            h = NULL;
        }
        if (h)
            torch.delete_handle(h);
    }
    f->handles[n] = NULL;
    if (object) {
        PyGILState_STATE state = PyGILState_Ensure();
        Py_DECREF(object);
        PyGILState_Release(state);
    }
}

/* A Python tensor of a number, borrowed from the inputs or from the frame. Needs the GIL. */
PyObject *frame_object(Frame *f, PyObject *const *inputs, int n_inputs, int n)
{
    if (n < n_inputs && !f->owned[n])
        return inputs[n];
    if (!f->objects[n]) {
        Handle copy;
        if (!f->handles[n] || torch.new_handle(f->handles[n], &copy)) {
            PyErr_Format(torch.internal_error, "tensor %d is used before it exists", n);
            return NULL;
        }
        f->objects[n] = torch_wrap(copy);
    }
    return f->objects[n];
}

void pools_clear(Executable *x)
{
    for (int n = 0; x->pools && n < x->n_tensors; n++)
        for (int i = 0; i < 2; i++)
            if (x->pools[n].holder[i]) {
                torch.delete_handle(x->pools[n].holder[i]);
                x->pools[n].holder[i] = NULL;
                __atomic_sub_fetch(&pooled, x->specs[n].bytes, __ATOMIC_RELAXED);
            }
}
