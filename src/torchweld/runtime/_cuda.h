/* The CUDA driver API, as far as the native driver uses it.
 *
 * Declared here and found in libcuda.so.1 at run time, so that building needs no CUDA and a machine
 * without a GPU loads the same extension. Handles of streams, graphs, nodes, contexts and kernels
 * are opaque pointers; every function returns 0 or an error code.
 */
#ifndef WELD_CUDA_H
#define WELD_CUDA_H

#include <stddef.h>
#include <stdint.h>

/* CUDA_KERNEL_NODE_PARAMS_v2 */
typedef struct {
    void *function;
    unsigned grid[3], block[3], shared;
    void **params;
    void **extra;
    void *kernel;
    void *context;
} KernelNode;

/* CUDA_MEMCPY3D_v2; `type` is 2 for device memory. */
typedef struct {
    size_t x, y, z, lod;
    int type;
    void *host;
    uint64_t device;
    void *array, *reserved;
    size_t pitch, height;
} CopySide;
typedef struct {
    CopySide source, target;
    size_t width, height, depth;
} CopyNode;

typedef struct Cuda {
    int ready;
    int32_t type;                         /* torch's code of the device type */
    int32_t (*current_stream)(int32_t, void **);  /* torch's, of a device */
    int (*error_string)(int, const char **);
    int (*retain_context)(void **, int);
    int (*get_context)(void **);
    int (*set_context)(void *);
    int (*load)(void **, const void *, void *, void *, unsigned, void *, void *, unsigned);
    int (*get_kernel)(void **, void *, const char *);
    int (*set_attribute)(int, int, void *, int);
    int (*launch)(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                  void *, void **, void **);
    int (*copy)(uint64_t, uint64_t, size_t, void *);
    int (*fill)(uint64_t, unsigned char, size_t, void *);
    int (*is_capturing)(void *, int *);
    int (*begin_capture)(void *, int);
    int (*end_capture)(void *, void **);
    int (*capture_info)(void *, int *, uint64_t *, void **, void *const **, size_t *);
    int (*instantiate)(void **, void *, unsigned long long);
    int (*graph_launch)(void *, void *);
    int (*graph_destroy)(void *);
    int (*exec_destroy)(void *);
    int (*get_kernel_node)(void *, KernelNode *);
    int (*set_kernel_node)(void *, void *, const KernelNode *);
    int (*get_copy_node)(void *, CopyNode *);
    int (*set_copy_node)(void *, void *, const CopyNode *, void *);
    int (*event_create)(void **, unsigned);
    int (*event_record)(void *, void *);
    int (*stream_wait)(void *, void *, unsigned);
    int (*stream_synchronize)(void *);
    int (*exchange_mode)(int *);          /* of capturing, for this thread */
} Cuda;

extern Cuda cuda;

#define MAX_DEVICES 64

/* "launch kernel: out of resources": an exception for an error code, -1. */
int cuda_raise(int code, const char *what);

/* Make the device's context the thread's; what it was before goes to `before` for cuda_leave, which
 * does nothing if nothing changed. An error code. */
int cuda_enter(int device, void **before);
void cuda_leave(void *before);

/* The context of a device, or NULL. */
void *cuda_context(int device);

#endif
