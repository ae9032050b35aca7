/* What _tensor.c, which reads tensors, says to _tensor_spec.c, which compares them. */
#ifndef TORCHWELD_TENSOR_H
#define TORCHWELD_TENSOR_H

#include "_frame.h"

#define TW_MAX_DIMS 64

typedef struct {
    int32_t dtype, device_type, device_index, layout;
    int requires_grad;
    int64_t ndim;
    const int64_t *sizes, *strides;     /* strides NULL: it has none */
    int64_t buffer[2 * TW_MAX_DIMS];
} TwMeta;

typedef int32_t (*GetInt32)(void *, int32_t *);
typedef int32_t (*GetInt64)(void *, int64_t *);
typedef int32_t (*GetArray)(void *, int64_t **);
typedef int32_t (*GetData)(void *, void **);

typedef struct {
    GetInt32 dtype, device_type, device_index, layout;
    GetInt64 dim;
    GetArray sizes, strides;
    GetData data;
    bool (*requires_grad)(const void *impl);
    bool (*is_inference)(const void *tensor);
    getter requires_grad_getter;
    void *requires_grad_closure;
    int32_t strided;
    Py_ssize_t offset;          /* of the at::Tensor in the Python object */
    bool available, enabled;
} TwShim;

extern TwShim tw_shim;

/* The class of all tensors, or NULL before `torch_init`. */
PyTypeObject *tw_tensor_base(void);
/* Whether the class is that of a sample: reading such tensors by the shim runs no Python code. */
bool tw_tensor_is_plain(PyTypeObject *type);
/* By Python attributes. False with an exception, or without one if it cannot be read so. */
bool tw_tensor_read_slow(PyObject *tensor, TwMeta *m, bool with_grad);

static inline bool
tw_tensor_is_inference(PyObject *tensor, int *out)
{
    PyObject *value;

    if (tw_shim.enabled && tw_shim.is_inference != NULL) {
        *out = tw_shim.is_inference((char *)tensor + tw_shim.offset);
        return true;
    }
    value = PyObject_CallMethod(tensor, "is_inference", NULL);
    if (value == NULL) {
        return false;
    }
    *out = value == Py_True;
    Py_DECREF(value);
    return true;
}

static inline bool
tw_tensor_requires_grad(PyObject *tensor, int *out)
{
    PyObject *value;

    if (tw_shim.requires_grad != NULL) {
        *out = tw_shim.requires_grad(*(void **)((char *)tensor + tw_shim.offset));
        return true;
    }
    value = tw_shim.requires_grad_getter != NULL
        ? tw_shim.requires_grad_getter(tensor, tw_shim.requires_grad_closure)
        : PyObject_GetAttrString(tensor, "requires_grad");
    if (value == NULL) {
        return false;
    }
    *out = value == Py_True;
    Py_DECREF(value);
    return true;
}

#endif
