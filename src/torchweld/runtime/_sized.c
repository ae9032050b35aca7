/* Finds what runs a call by the sizes of its inputs: sized.py says what that is, and which choices of
 * sizes are kept here. A call whose sizes are not kept goes to the method `miss`; the method `often`
 * is told of sizes that come often.
 *
 * Cost: some 80 ns over what it finds, for one size (AMD EPYC); no Python code runs.
 */
#include "_driver.h"

#include <stddef.h>
#include <string.h>

/* NUMBER_OF: the one element of an input, which may be given as an int. */
enum reading_kind { SIZE_OF, STRIDE_OF, NUMBER_OF };

typedef struct {
    int kind, input, dim;
} Reading;

/* One choice of sizes. */
typedef struct Choice {
    struct Choice *next;   /* the last used first */
    PyObject *run;
    PyObject **tensors;    /* by reading: the tensor of a number, once there is one */
    uint64_t calls;        /* since it was kept; halved where it grows old */
    int64_t values[];
} Choice;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *as_tensor;   /* int -> the tensor that a Program takes for it */
    Reading *readings;
    int *numbers;          /* inputs that may be ints and that no size is read of */
    int n_readings, n_numbers, n_least, n_kept;
    Choice *first;
    uint64_t found;        /* calls that were served by what is kept */
    uint64_t often;        /* calls of a choice after which the method `often` is told; 0: never */
} Sized;

static PyObject *name_of_miss, *name_of_often, *name_of_consume;

static void choice_free(Sized *s, Choice *c)
{
    for (int i = 0; i < s->n_readings; i++)
        Py_XDECREF(c->tensors[i]);
    PyObject *run = c->run;
    PyMem_Free(c->tensors);
    PyMem_Free(c);
    Py_XDECREF(run);
}

/* ---------------------------------------------------------------- a call */

static int read_number(PyObject *x, int64_t *value)
{
    PyObject *number = PyLong_Check(x) ? Py_NewRef(x) : PyObject_CallMethod(x, "item", NULL);
    *value = number ? PyLong_AsLongLong(number) : -1;
    Py_XDECREF(number);
    return *value == -1 && PyErr_Occurred() ? -1 : 0;
}

static int read_one(const Reading *r, PyObject *x, int64_t *value)
{
    if (r->kind == NUMBER_OF)
        return read_number(x, value);
    int64_t n = 0, *all = NULL;
    if (!PyObject_TypeCheck(x, torch.tensor_type)) {
        PyErr_Format(PyExc_TypeError, "input %d is %s, not a tensor", r->input,
                     Py_TYPE(x)->tp_name);
        return -1;
    }
    Handle h = handle_of(x);
    if (torch.get_dim(h, &n) || r->dim >= n ||
        (r->kind == SIZE_OF ? torch.get_sizes(h, &all) : torch.get_strides(h, &all))) {
        PyErr_Format(PyExc_ValueError, "input %d has no dimension %d", r->input, r->dim);
        return -1;
    }
    *value = all[r->dim];
    return 0;
}

/* The choice with these values, which becomes the first; NULL if it is not kept. */
static Choice *find(Sized *s, const int64_t *values)
{
    size_t size = (size_t)s->n_readings * sizeof *values;
    for (Choice **at = &s->first; *at; at = &(*at)->next) {
        Choice *c = *at;
        if (memcmp(c->values, values, size))
            continue;
        *at = c->next;
        c->next = s->first;
        s->first = c;
        return c;
    }
    return NULL;
}

static int as_tensor(Sized *s, PyObject **x)
{
    if (!PyLong_Check(*x))
        return 0;
    PyObject *made = PyObject_CallOneArg(s->as_tensor, *x);
    if (!made)
        return -1;
    Py_SETREF(*x, made);
    return 0;
}

/* What stands for a size is the same tensor in every call of a choice. Python code that makes one may
 * have choices forgotten, so they are looked for again. */
static int give_size(Sized *s, const int64_t *values, int i, PyObject **x)
{
    Choice *c = PyLong_Check(*x) ? find(s, values) : NULL;
    if (c && c->tensors[i]) {
        Py_SETREF(*x, Py_NewRef(c->tensors[i]));
        return 0;
    }
    if (!PyLong_Check(*x))
        return 0;
    if (as_tensor(s, x) < 0)
        return -1;
    if ((c = find(s, values)))
        Py_XSETREF(c->tensors[i], Py_NewRef(*x));
    return 0;
}

/* The inputs with tensors for ints. */
static int give_tensors(Sized *s, const int64_t *values, PyObject **given)
{
    for (int i = 0; i < s->n_numbers; i++)
        if (as_tensor(s, &given[s->numbers[i]]) < 0)
            return -1;
    for (int i = 0; i < s->n_readings; i++)
        if (s->readings[i].kind == NUMBER_OF &&
            give_size(s, values, i, &given[s->readings[i].input]) < 0)
            return -1;
    return 0;
}

static PyObject *tuple_of(const Sized *s, const int64_t *values)
{
    PyObject *tuple = PyTuple_New(s->n_readings);
    for (int i = 0; tuple && i < s->n_readings; i++) {
        PyObject *value = PyLong_FromLongLong(values[i]);
        if (!value)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, value);
    }
    return tuple;
}

static PyObject *missed(Sized *s, const int64_t *values, PyObject *const *inputs, int n)
{
    PyObject *all[n + 2];
    all[0] = (PyObject *)s;
    all[1] = tuple_of(s, values);
    if (!all[1])
        return NULL;
    memcpy(all + 2, inputs, (size_t)n * sizeof *all);
    PyObject *result = PyObject_VectorcallMethod(name_of_miss, all, (size_t)n + 2, NULL);
    Py_DECREF(all[1]);
    return result;
}

/* Say that these sizes come often. */
static int tell(Sized *s, const int64_t *values)
{
    PyObject *all[2] = {(PyObject *)s, tuple_of(s, values)}, *told = NULL;
    if (all[1])
        told = PyObject_VectorcallMethod(name_of_often, all, 2, NULL);
    Py_XDECREF(all[1]);
    Py_XDECREF(told);
    return told ? 0 : -1;
}

/* list: of the inputs, which the call may empty, or NULL. */
static PyObject *run_choice(Sized *s, const int64_t *values, PyObject *const *inputs, int n,
                            PyObject *list)
{
    Choice *c = find(s, values);
    if (!c)
        return missed(s, values, inputs, n);
    s->found++;
    PyObject *run = Py_NewRef(c->run);  /* it may be forgotten meanwhile */
    if (++c->calls == s->often && tell(s, values) < 0) {
        Py_DECREF(run);
        return NULL;
    }
    PyObject *result = list ? PyObject_CallMethodOneArg(run, name_of_consume, list)
                            : PyObject_Vectorcall(run, inputs, (size_t)n, NULL);
    Py_DECREF(run);
    return result;
}

static PyObject *with_numbers(Sized *s, const int64_t *values, PyObject *const *inputs, int n)
{
    PyObject *given[n], *result = NULL;
    for (int i = 0; i < n; i++)
        given[i] = Py_NewRef(inputs[i]);
    if (give_tensors(s, values, given) == 0)
        result = run_choice(s, values, given, n, NULL);
    for (int i = 0; i < n; i++)
        Py_DECREF(given[i]);
    return result;
}

/* The sizes of a call: whether numbers are among the inputs, -1 with an exception. */
static int read_all(const Sized *s, PyObject *const *inputs, int64_t *values)
{
    int has_numbers = s->n_numbers > 0;
    for (int i = 0; i < s->n_readings; i++) {
        const Reading *r = &s->readings[i];
        if (read_one(r, inputs[r->input], &values[i]) < 0)
            return -1;
        has_numbers |= r->kind == NUMBER_OF;
    }
    return has_numbers;
}

static PyObject *sized_call(PyObject *self, PyObject *const *inputs, size_t nargsf,
                            PyObject *kwnames)
{
    Sized *s = (Sized *)self;
    int n = (int)PyVectorcall_NARGS(nargsf);
    if (n < s->n_least || (kwnames && PyTuple_GET_SIZE(kwnames)))
        return PyErr_Format(PyExc_TypeError, "expected %d tensors, got %d%s", s->n_least, n,
                            kwnames ? " and keywords" : "");
    int64_t values[s->n_readings + 1];
    int has_numbers = read_all(s, inputs, values);
    if (has_numbers < 0)
        return NULL;
    return has_numbers ? with_numbers(s, values, inputs, n)
                       : run_choice(s, values, inputs, n, NULL);
}

/* consume(list): a call that may use up its inputs (_given.c). */
static PyObject *sized_consume(PyObject *self, PyObject *list)
{
    Sized *s = (Sized *)self;
    if (!PyList_CheckExact(list) || PyList_GET_SIZE(list) < s->n_least)
        return PyErr_Format(PyExc_TypeError, "expected a list of %d tensors", s->n_least);
    int n = (int)PyList_GET_SIZE(list);
    int64_t values[s->n_readings + 1];
    PyObject *inputs[n + 1];
    for (int i = 0; i < n; i++)
        inputs[i] = PyList_GET_ITEM(list, i);
    int has_numbers = read_all(s, inputs, values);
    if (has_numbers < 0)
        return NULL;
    if (!has_numbers)
        return run_choice(s, values, inputs, n, list);
    for (int i = 0; i < n; i++)
        Py_INCREF(inputs[i]);
    int status = give_tensors(s, values, inputs);
    for (int i = 0; i < n; i++)
        if (status == 0)
            status = PyList_SetItem(list, i, inputs[i]);  /* takes it over */
        else
            Py_DECREF(inputs[i]);
    return status < 0 ? NULL : run_choice(s, values, inputs, n, list);
}

/* ---------------------------------------------------------------- what is kept */

static int parse_values(Sized *s, PyObject *tuple, int64_t *values)
{
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != s->n_readings) {
        PyErr_Format(PyExc_ValueError, "not %d sizes", s->n_readings);
        return -1;
    }
    for (int i = 0; i < s->n_readings; i++) {
        values[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(tuple, i));
        if (values[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

/* forget(values) -> whether they were kept. */
static PyObject *sized_forget(PyObject *self, PyObject *tuple)
{
    Sized *s = (Sized *)self;
    int64_t values[s->n_readings + 1];
    if (parse_values(s, tuple, values) < 0)
        return NULL;
    Choice *c = find(s, values);
    if (c) {
        s->first = c->next;
        s->n_kept--;
        choice_free(s, c);
    }
    return PyBool_FromLong(c != NULL);
}

/* keep(values, run): calls with these sizes are run by `run` from now on. */
static PyObject *sized_keep(PyObject *self, PyObject *args)
{
    Sized *s = (Sized *)self;
    PyObject *tuple, *run;
    int64_t values[s->n_readings + 1];
    if (!PyArg_ParseTuple(args, "OO", &tuple, &run) || parse_values(s, tuple, values) < 0)
        return NULL;
    Choice *c = find(s, values);
    if (c) {
        Py_SETREF(c->run, Py_NewRef(run));
        Py_RETURN_NONE;
    }
    c = PyMem_Calloc(1, sizeof *c + (size_t)s->n_readings * sizeof *values);
    if (c)
        c->tensors = PyMem_Calloc((size_t)s->n_readings + 1, sizeof *c->tensors);
    if (!c || !c->tensors) {
        PyMem_Free(c);
        return PyErr_NoMemory();
    }
    memcpy(c->values, values, (size_t)s->n_readings * sizeof *values);
    c->run = Py_NewRef(run);
    c->next = s->first;
    s->first = c;
    s->n_kept++;
    Py_RETURN_NONE;
}

/* kept() -> (values, what runs them, calls) of each choice, the last used first. */
static PyObject *sized_kept(PyObject *self, PyObject *unused)
{
    Sized *s = (Sized *)self;
    PyObject *rows = PyList_New(0);
    for (Choice *c = s->first; rows && c; c = c->next) {
        PyObject *values = tuple_of(s, c->values), *row = NULL;
        if (values)
            row = Py_BuildValue("NOK", values, c->run, (unsigned long long)c->calls);
        if (!row || PyList_Append(rows, row) < 0)
            Py_CLEAR(rows);
        Py_XDECREF(row);
    }
    return rows;
}

/* age(): what was used long ago counts less. */
static PyObject *sized_age(PyObject *self, PyObject *unused)
{
    for (Choice *c = ((Sized *)self)->first; c; c = c->next)
        c->calls /= 2;
    Py_RETURN_NONE;
}

/* ---------------------------------------------------------------- the type */

static int parse_readings(Sized *s, PyObject *rows)
{
    s->n_readings = (int)PyTuple_GET_SIZE(rows);
    s->readings = PyMem_Calloc((size_t)s->n_readings + 1, sizeof *s->readings);
    for (int i = 0; s->readings && i < s->n_readings; i++) {
        Reading *r = &s->readings[i];
        const char *kind;
        if (!PyArg_ParseTuple(PyTuple_GET_ITEM(rows, i), "sii", &kind, &r->input, &r->dim))
            return -1;
        r->kind = *kind == 'n' ? NUMBER_OF : strcmp(kind, "size") ? STRIDE_OF : SIZE_OF;
        if (r->input < 0 || r->dim < 0) {
            PyErr_SetString(PyExc_ValueError, "reading");
            return -1;
        }
        if (r->input >= s->n_least)
            s->n_least = r->input + 1;
    }
    return s->readings ? 0 : (PyErr_NoMemory(), -1);
}

/* Sized(readings, numbers, as_tensor) */
static PyObject *sized_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    PyObject *readings, *numbers_, *as;
    if (!torch.tensor_type)
        return PyErr_Format(PyExc_RuntimeError, "init was not called");
    if (!PyArg_ParseTuple(args, "O!O!O", &PyTuple_Type, &readings, &PyTuple_Type, &numbers_, &as))
        return NULL;
    Sized *s = (Sized *)type->tp_alloc(type, 0);
    if (!s)
        return NULL;
    s->vectorcall = sized_call;
    s->as_tensor = Py_NewRef(as);
    if (parse_readings(s, readings) < 0 ||
        !(s->numbers = numbers(numbers_, &s->n_numbers, 0, INT32_MAX))) {
        Py_DECREF(s);
        return NULL;
    }
    for (int i = 0; i < s->n_numbers; i++)
        if (s->numbers[i] >= s->n_least)
            s->n_least = s->numbers[i] + 1;
    return (PyObject *)s;
}

static int sized_traverse(PyObject *self, visitproc visit, void *arg)
{
    Sized *s = (Sized *)self;
    Py_VISIT(s->as_tensor);
    for (Choice *c = s->first; c; c = c->next)
        Py_VISIT(c->run);
    return 0;
}

static int sized_clear(PyObject *self)
{
    Sized *s = (Sized *)self;
    while (s->first) {
        Choice *c = s->first;
        s->first = c->next;
        s->n_kept--;
        choice_free(s, c);
    }
    return 0;
}

static void sized_dealloc(PyObject *self)
{
    Sized *s = (Sized *)self;
    PyObject_GC_UnTrack(self);
    sized_clear(self);
    PyMem_Free(s->readings);
    PyMem_Free(s->numbers);
    Py_CLEAR(s->as_tensor);
    Py_TYPE(self)->tp_free(self);
}

static PyObject *get_found(PyObject *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(((Sized *)self)->found);
}

static PyObject *get_often(PyObject *self, void *unused)
{
    return PyLong_FromUnsignedLongLong(((Sized *)self)->often);
}

static int set_often(PyObject *self, PyObject *value, void *unused)
{
    uint64_t n = value ? PyLong_AsUnsignedLongLong(value) : 0;
    if (n == (uint64_t)-1 && PyErr_Occurred())
        return -1;
    ((Sized *)self)->often = n;
    return 0;
}

static PyMethodDef sized_methods[] = {
    {"keep", sized_keep, METH_VARARGS, "Run calls with these sizes by this."},
    {"consume", sized_consume, METH_O, "A call that may empty its list of inputs."},
    {"forget", sized_forget, METH_O, "Keep nothing for these sizes; whether something was kept."},
    {"kept", sized_kept, METH_NOARGS, "(sizes, what runs them, calls), the last used first."},
    {"age", sized_age, METH_NOARGS, "Halve what is known of how often each is called."},
    {NULL},
};

static PyGetSetDef sized_getset[] = {
    {"found", get_found, NULL, "Calls that were served by what is kept.", NULL},
    {"often_at", get_often, set_often, "Calls of one choice after which `often` is told.", NULL},
    {NULL},
};

static PyTypeObject sized_type = {
    PyVarObject_HEAD_INIT(NULL, 0)
    .tp_name = "torchweld.runtime._driver.Sized",
    .tp_basicsize = sizeof(Sized),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_VECTORCALL |
                Py_TPFLAGS_HAVE_GC,
    .tp_doc = "Calls of many sizes: finds by the sizes what runs them.",
    .tp_vectorcall_offset = offsetof(Sized, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = sized_new,
    .tp_dealloc = sized_dealloc,
    .tp_traverse = sized_traverse,
    .tp_clear = sized_clear,
    .tp_methods = sized_methods,
    .tp_getset = sized_getset,
};

int sized_ready(PyObject *module)
{
    name_of_miss = PyUnicode_InternFromString("miss");
    name_of_often = PyUnicode_InternFromString("often");
    name_of_consume = PyUnicode_InternFromString("consume");
    if (!name_of_miss || !name_of_often || !name_of_consume || PyType_Ready(&sized_type) < 0)
        return -1;
    return PyModule_AddObjectRef(module, "Sized", (PyObject *)&sized_type);
}
