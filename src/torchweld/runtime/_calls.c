/* ATen calls from the launch list, by the cheapest route that can express them.
 *
 * R_INTO    a device's own function of a matmul, mostly writing into memory that we choose
 * R_SHIM    the dispatcher through libtorch's stable C interface: no Python object is made
 * R_PYTHON  the operator's Python binding: knows every argument type, gives exact exceptions
 *
 * Before any of these, a product on CUDA may be computed by cuBLASLt (_products.c).
 *
 * The first two only say that they failed; the call then runs again by R_PYTHON, which raises what
 * eager raises.
 *
 * Microseconds a call on 8x8 tensors by INTO / SHIM / PYTHON, and eager from Python: mm 1.3 / 1.5 /
 * 1.9, 1.4; addmm 2.4 / - / 3.5, 2.4; _softmax - / 4.2 / 5.3, 4.3; cat - / 1.5 / 2.5, 1.3 (2-core
 * EPYC VM, torch 2.13, 2026-11-29). So SHIM wherever it can express the call, and INTO before it,
 * also because its results can live in memory that is used again.
 */
#include "_driver.h"

#include <string.h>

/* ---------------------------------------------------------------- arguments */

void args_free(Arg *args, int n)
{
    for (int i = 0; args && i < n; i++) {
        args_free(args[i].items, args[i].n);
        Py_XDECREF(args[i].object);
    }
    PyMem_Free(args);
}

static int arg_parse(PyObject *row, Arg *a)
{
    PyObject *value;
    if (!PyTuple_Check(row) || !PyArg_ParseTuple(row, "iO", &a->kind, &value))
        return PyErr_Occurred() ? -1 : (PyErr_SetString(PyExc_TypeError, "argument row"), -1);
    switch (a->kind) {
    case A_WORD:
        a->word = PyLong_AsUnsignedLongLongMask(value);
        return PyErr_Occurred() ? -1 : 0;
    case A_TENSOR:
        a->tensor = (int)PyLong_AsLong(value);
        return PyErr_Occurred() ? -1 : 0;
    case A_BOX:
    case A_LIST:
        return args_parse(value, &a->items, &a->n);
    case A_STRING:
        a->object = Py_NewRef(value);
        a->text = PyUnicode_AsUTF8AndSize(value, &a->length);
        return a->text ? 0 : -1;
    case A_OBJECT:
        a->object = Py_NewRef(value);
        return 0;
    }
    PyErr_Format(PyExc_ValueError, "argument kind %d", a->kind);
    return -1;
}

int args_parse(PyObject *rows, Arg **out, int *n)
{
    if (!PyTuple_Check(rows)) {
        PyErr_SetString(PyExc_TypeError, "argument rows are not a tuple");
        return -1;
    }
    *n = (int)PyTuple_GET_SIZE(rows);
    *out = PyMem_Calloc(*n ? *n : 1, sizeof **out);
    if (!*out) {
        PyErr_NoMemory();
        return -1;
    }
    for (int i = 0; i < *n; i++)
        if (arg_parse(PyTuple_GET_ITEM(rows, i), &(*out)[i]) < 0)
            return -1;
    return 0;
}

/* One stack word. The callee takes over tensors, boxes, lists and strings. */
static int encode(Frame *f, const Arg *a, uint64_t *out)
{
    uint64_t inner, *box;
    void *object;
    switch (a->kind) {
    case A_WORD:
        *out = a->word;
        return 0;
    case A_TENSOR:
        if (!f->handles[a->tensor] || torch.new_handle(f->handles[a->tensor], &object))
            return -1;
        break;
    case A_BOX:
        if (encode(f, a->items, &inner) < 0)
            return -1;
        if (torch.new_box ? torch.new_box(&box) : !(box = torch.operator_new(sizeof *box)))
            return -1;
        *box = inner;
        object = box;
        break;
    case A_LIST:
        if (torch.new_list((size_t)a->n, &object))
            return -1;
        for (int i = 0; i < a->n; i++)
            if (encode(f, &a->items[i], &inner) < 0 || torch.push_back(object, inner))
                return -1;
        break;
    case A_STRING:
        if (torch.new_string(a->text, (size_t)a->length, &object))
            return -1;
        break;
    default:
        return -1;
    }
    *out = (uint64_t)(uintptr_t)object;
    return 0;
}

/* A Python argument, new reference. */
static PyObject *decode(Executable *x, Frame *f, const Arg *a, PyObject *const *inputs)
{
    if (a->kind == A_OBJECT)
        return Py_NewRef(a->object);
    if (a->kind == A_TENSOR)
        return Py_XNewRef(frame_object(f, inputs, x->n_inputs, a->tensor));
    PyObject *list = PyList_New(a->n);
    for (int i = 0; list && i < a->n; i++) {
        PyObject *item = decode(x, f, &a->items[i], inputs);
        if (!item)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, item);
    }
    return list;
}

/* ---------------------------------------------------------------- results */

int fits(const Spec *s, Handle h)
{
    int64_t dim, *sizes, *strides;
    int32_t dtype;
    if (torch.get_dim(h, &dim) || dim != s->ndim || torch.get_dtype(h, &dtype) ||
        (s->dtype >= 0 && dtype != s->dtype) || torch.get_sizes(h, &sizes) ||
        torch.get_strides(h, &strides))
        return 0;
    int empty = 0, strided = 1;
    for (int i = 0; i < s->ndim; i++) {
        if (sizes[i] != s->sizes[i])
            return 0;
        empty |= sizes[i] == 0;
        strided &= sizes[i] <= 1 || strides[i] == s->strides[i];
    }
    return empty || strided;
}

static int in_arena(Executable *x, Frame *f, Handle h)
{
    void *data;
    return f->base && torch.get_data_ptr(h, &data) == 0 && (char *)data >= f->base &&
           (char *)data < f->base + x->arena_bytes;
}

/* Bind a result to its number; `object` (owned) is its Python tensor, or NULL with `h` owned. */
static int bind(Executable *x, Frame *f, Step *s, int i, Handle h, PyObject *object,
                PyThreadState **saved)
{
    int n = s->results[i];
    Spec *spec = &x->specs[n];
    if (!fits(spec, object ? handle_of(object) : h)) {
        take_gil(saved);
        if (!object && !(object = torch_wrap(h)))
            return -1;
        PyObject *kept = PyObject_CallFunction(x->settle, "OOi", s->name, object, n);
        Py_DECREF(object);
        if (!kept)
            return -1;
        object = kept;
    }
    if (object)
        h = handle_of(object);
    if (in_arena(x, f, h)) {  /* the next call would overwrite it */
        Handle copy;
        int failed = torch.clone_strided(h, &copy);
        if (object) {
            take_gil(saved);
            Py_CLEAR(object);
        } else {
            torch.delete_handle(h);
        }
        if (failed) {
            allocation_failed(spec);
            return -1;
        }
        h = copy;
    }
    f->handles[n] = h;
    f->objects[n] = object;
    f->owned[n] = object == NULL;
    return frame_pointer(x, f, n);
}

static int wrong_count(Step *s, int made, PyThreadState **saved)
{
    take_gil(saved);
    PyErr_Format(torch.internal_error, "%U gave %d tensors, not %d", s->name, made, s->n_results);
    return -1;
}

/* ---------------------------------------------------------------- routes */

static int collect(PyObject *value, PyObject *list)
{
    if (PyObject_TypeCheck(value, torch.tensor_type))
        return PyList_Append(list, value);
    if (PyTuple_Check(value) || PyList_Check(value))
        for (Py_ssize_t i = 0; i < PySequence_Fast_GET_SIZE(value); i++)
            if (collect(PySequence_Fast_GET_ITEM(value, i), list) < 0)
                return -1;
    return 0;
}

static int bind_python(Executable *x, Frame *f, Step *s, PyObject *value, PyThreadState **saved)
{
    if (s->n_results == 0)
        return 0;
    if (s->n_results == 1 && PyObject_TypeCheck(value, torch.tensor_type))
        return bind(x, f, s, 0, NULL, Py_NewRef(value), saved);
    PyObject *list = PyList_New(0);
    int status = list ? collect(value, list) : -1;
    int made = list ? (int)PyList_GET_SIZE(list) : 0;
    if (status == 0 && made != s->n_results)
        status = wrong_count(s, made, saved);
    for (int i = 0; status == 0 && i < made; i++)
        status = bind(x, f, s, i, NULL, Py_NewRef(PyList_GET_ITEM(list, i)), saved);
    Py_XDECREF(list);
    return status;
}

static int by_python(Executable *x, Frame *f, Step *s, PyObject *const *inputs,
                     PyThreadState **saved)
{
    take_gil(saved);
    /* Slot 0 is scratch space that the callee may use. The array is on the stack because an
     * operator written in Python may call this Executable again. */
    PyObject *vector[s->n_objects + 1];
    int n = 0;
    vector[0] = NULL;
    for (; n < s->n_objects; n++)
        if (!(vector[n + 1] = decode(x, f, &s->objects[n], inputs)))
            break;
    PyObject *value = NULL;
    if (n == s->n_objects) {
        size_t positional = (size_t)(n - (s->kwnames ? PyTuple_GET_SIZE(s->kwnames) : 0));
        value = PyObject_Vectorcall(s->callable, vector + 1,
                                    positional | PY_VECTORCALL_ARGUMENTS_OFFSET, s->kwnames);
    }
    while (n > 0)
        Py_DECREF(vector[n--]);
    int status = value ? bind_python(x, f, s, value, saved) : -1;
    Py_XDECREF(value);
    return status;
}

static int by_shim(Executable *x, Frame *f, Step *s, PyThreadState **saved)
{
    uint64_t *stack = f->stack;
    for (int i = 0; i < s->n_words; i++)
        if (encode(f, &s->words[i], &stack[i]) < 0)
            return 1;
    if (torch.call(s->op, s->overload, stack))
        return 1;
    int made = 0, status = 0;
    for (int i = 0; i < s->n_returns; i++) {
        Handle h = (Handle)(uintptr_t)stack[i];
        bool defined = false;
        if (torch.is_defined(h, &defined) == 0 && defined && made < s->n_results && status == 0)
            status = bind(x, f, s, made++, h, NULL, saved);
        else
            torch.delete_handle(h);
    }
    return status == 0 && made != s->n_results ? wrong_count(s, made, saved) : status;
}

typedef int32_t (*Into2)(Handle, Handle, Handle);
typedef int32_t (*Into3)(Handle, Handle, Handle, Handle, double, double);
typedef int32_t (*Activated)(Handle, Handle, Handle, double, double, int32_t, Handle *);

static int by_into(Executable *x, Frame *f, Step *s, PyThreadState **saved)
{
    Handle a[3] = {NULL}, made;
    for (int i = 0; i < s->n_words; i++)
        a[i] = f->handles[s->words[i].tensor];
    if (s->into >= INTO_ACTIVATION)
        return ((Activated)(void (*)(void))torch.into[s->into])(
                   a[0], a[1], a[2], s->beta, s->alpha, s->into > INTO_ACTIVATION, &made)
            ? 1
            : bind(x, f, s, 0, made, NULL, saved);
    Handle out = frame_scratch(x, f, s->results[0]);
    if (!out)
        return -1;
    int32_t failed = s->into % 4 < 2
        ? ((Into2)(void (*)(void))torch.into[s->into])(out, a[0], a[1])
        : ((Into3)(void (*)(void))torch.into[s->into])(out, a[0], a[1], a[2], s->beta, s->alpha);
    if (failed)
        frame_drop(x, f, s->results[0]);
    return failed ? 1 : 0;
}

int call_step(Executable *x, Frame *f, Step *s, PyObject *const *inputs, PyThreadState **saved)
{
    int status = s->product ? product_step(x, f, s, inputs, saved) : 0;
    if (status)
        return status < 0 ? -1 : 0;
    int apart = s->apart && !torch.key_excluded(torch.view_key);
    if (apart)
        torch.set_key_excluded(torch.view_key, true);
    status = 1;
    if (s->route != R_PYTHON) {
        if (s->busy)
            leave_gil(saved);
        status = s->route == R_INTO ? by_into(x, f, s, saved) : by_shim(x, f, s, saved);
    }
    if (status == 1)
        status = by_python(x, f, s, inputs, saved);
    if (apart)
        torch.set_key_excluded(torch.view_key, false);
    return status;
}
