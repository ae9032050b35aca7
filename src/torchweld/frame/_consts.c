/* Constants of guard programs: which there may be, and when two are equal. */
#include "_frame.h"

static bool
float_bits_equal(double a, double b)
{
    return memcmp(&a, &b, sizeof(a)) == 0;
}

static bool
tuple_equal(PyObject *a, PyObject *b)
{
    Py_ssize_t n = PyTuple_GET_SIZE(a);

    if (n != PyTuple_GET_SIZE(b)) {
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (!tw_const_equal(PyTuple_GET_ITEM(a, i), PyTuple_GET_ITEM(b, i))) {
            return false;
        }
    }
    return true;
}

bool
tw_const_equal(PyObject *a, PyObject *b)
{
    PyTypeObject *type = Py_TYPE(a);

    if (a == b) {
        return true;
    }
    if (type != Py_TYPE(b)) {
        return false;
    }
    if (type == &PyUnicode_Type) {
        return PyUnicode_Compare(a, b) == 0;
    }
    if (type == &PyLong_Type || type == &PyBytes_Type) {
        return type->tp_richcompare(a, b, Py_EQ) == Py_True;
    }
    if (type == &PyFloat_Type) {
        return float_bits_equal(PyFloat_AS_DOUBLE(a), PyFloat_AS_DOUBLE(b));
    }
    if (type == &PyComplex_Type) {
        Py_complex x = ((PyComplexObject *)a)->cval, y = ((PyComplexObject *)b)->cval;
        return float_bits_equal(x.real, y.real) && float_bits_equal(x.imag, y.imag);
    }
    return type == &PyTuple_Type && tuple_equal(a, b);
}

bool
tw_const_is_supported(PyObject *obj)
{
    if (PyTuple_CheckExact(obj)) {
        for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(obj); i++) {
            if (!tw_const_is_supported(PyTuple_GET_ITEM(obj, i))) {
                return false;
            }
        }
        return true;
    }
    return obj == Py_None || PyBool_Check(obj) || PyLong_CheckExact(obj) || PyFloat_CheckExact(obj)
        || PyUnicode_CheckExact(obj) || PyBytes_CheckExact(obj) || PyComplex_CheckExact(obj);
}
