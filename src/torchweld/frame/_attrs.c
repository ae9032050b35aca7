/* Attributes whose value lies in memory at a known place: fields of functions, slots, attributes of
   classes. Reading them runs no Python code and allocates nothing. */
#include "_frame.h"

#include <structmember.h>

static PyObject *function_names[3];     /* interned: __code__, __defaults__, __kwdefaults__ */
static PyObject *getattribute;          /* interned: __getattribute__ */

int
tw_attrs_init(void)
{
    const char *names[] = {"__code__", "__defaults__", "__kwdefaults__"};

    for (int i = 0; i < 3; i++) {
        Py_XSETREF(function_names[i], PyUnicode_InternFromString(names[i]));
        if (function_names[i] == NULL) {
            return -1;
        }
    }
    Py_XSETREF(getattribute, PyUnicode_InternFromString("__getattribute__"));
    return getattribute == NULL ? -1 : 0;
}

static const TwAttr IN_PYTHON = {NULL, {{NULL, 0}}, -1};

/* The object in a field of C; NULL there stands for None if `optional`. */
static TwAttr
field(PyObject *const *at, bool optional)
{
    TwAttr attr = {*at, {{at, (uint64_t)(uintptr_t)*at}}, 1};

    if (attr.value == NULL && optional) {
        attr.value = Py_None;
    }
    return attr;
}

static TwAttr
function_field(PyFunctionObject *fn, PyObject *name)
{
    if (name == function_names[0]) {
        return field(&fn->func_code, false);
    }
    if (name == function_names[1]) {
        return field(&fn->func_defaults, true);
    }
    return name == function_names[2] ? field(&fn->func_kwdefaults, true) : IN_PYTHON;
}

/* Adds that the class keeps its attributes. */
static void
add_tag(TwAttr *attr, PyTypeObject *type)
{
    unsigned int tag = tw_type_tag(type);

    if (tag == 0 || attr->n_words < 0) {
        attr->n_words = -1;
        return;
    }
    memcpy(&attr->words[attr->n_words].want, tw_type_tag_word(type), sizeof(uint64_t));
    attr->words[attr->n_words++].at = tw_type_tag_word(type);
}

/* Adds that the object keeps its class. */
static void
add_class(TwAttr *attr, PyObject *obj)
{
    if (attr->n_words >= 0) {
        attr->words[attr->n_words].at = &obj->ob_type;
        attr->words[attr->n_words++].want = (uint64_t)(uintptr_t)Py_TYPE(obj);
    }
}

/* What a class or a base of it holds, if it is no descriptor. */
static TwAttr
class_attribute(PyTypeObject *type, PyObject *name)
{
    PyTypeObject *meta = Py_TYPE(type);
    TwAttr attr = {NULL, {{NULL, 0}}, 0};
    PyObject *value;

    if (meta->tp_getattro != PyType_Type.tp_getattro || tw_type_lookup(meta, name) != NULL) {
        return IN_PYTHON;
    }
    value = tw_type_lookup(type, name);
    if (value == NULL || Py_TYPE(value)->tp_descr_get != NULL) {
        return IN_PYTHON;
    }
    attr.value = value;
    add_class(&attr, (PyObject *)type);
    add_tag(&attr, meta);
    add_tag(&attr, type);
    if (tw_class_can_change((PyObject *)Py_TYPE(value))) {
        attr.n_words = -1;      /* its class might become a descriptor */
    }
    return attr;
}

static TwAttr
slot(PyObject *obj, PyObject *name)
{
    PyTypeObject *type = Py_TYPE(obj);
    PyObject *descr = tw_type_lookup(type, name);
    const PyMemberDef *member;
    TwAttr attr;

    if (descr == NULL || !Py_IS_TYPE(descr, &PyMemberDescr_Type)
        || !PyType_IsSubtype(type, PyDescr_TYPE(descr))) {
        return IN_PYTHON;
    }
    member = ((PyMemberDescrObject *)descr)->d_member;
    if (member->type != T_OBJECT_EX || (member->flags & ~READONLY) != 0) {
        return IN_PYTHON;
    }
    attr = field((PyObject **)((char *)obj + member->offset), false);
    add_class(&attr, obj);
    add_tag(&attr, type);
    return attr;
}

/* Whether what is there is found without Python code; a `__getattr__` is asked for the rest. */
static bool
finds_plainly(PyTypeObject *type)
{
    return type->tp_getattro == PyObject_GenericGetAttr
        || tw_type_lookup(type, getattribute)
            == tw_type_lookup(&PyBaseObject_Type, getattribute);
}

TwAttr
tw_attr_read(PyObject *obj, PyObject *name)
{
    if (PyFunction_Check(obj)) {
        return function_field((PyFunctionObject *)obj, name);
    }
    if (PyType_Check(obj)) {
        return class_attribute((PyTypeObject *)obj, name);
    }
    return finds_plainly(Py_TYPE(obj)) ? slot(obj, name) : IN_PYTHON;
}
