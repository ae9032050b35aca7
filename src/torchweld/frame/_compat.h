/* Everything that differs between CPython versions. No other file may test PY_VERSION_HEX. */
#ifndef TORCHWELD_COMPAT_H
#define TORCHWELD_COMPAT_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>
#include <stdbool.h>
#include <stdint.h>

#if PY_VERSION_HEX < 0x030B0000 || PY_VERSION_HEX >= 0x030E0000
#error "torchweld.frame was tested on CPython 3.11, 3.12 and 3.13 only"
#endif
#ifdef Py_GIL_DISABLED
#error "torchweld.frame needs the GIL: its caches have no locks of their own"
#endif

/* localsplus and the dict's key kind have no public accessor in any version. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
#define Py_BUILD_CORE
#undef _PyGC_FINALIZED
#include <internal/pycore_code.h>
#include <internal/pycore_dict.h>
#include <internal/pycore_frame.h>
#undef Py_BUILD_CORE
#pragma GCC diagnostic pop

#if PY_VERSION_HEX >= 0x030C0000
#define TW_HAS_WATCHERS 1
#else
#define TW_HAS_WATCHERS 0
#endif

/* --- dicts ------------------------------------------------------------------------------- */

/* A look-up of an exact str in such a dict compares strings only: it runs no Python code. */
static inline bool
tw_dict_has_text_keys(PyObject *dict)
{
    return DK_IS_UNICODE(((PyDictObject *)dict)->ma_keys);
}

#if !TW_HAS_WATCHERS
static inline uint64_t
tw_dict_version_tag(PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_version_tag;
}

static inline const void *
tw_dict_version_tag_word(PyObject *dict)
{
    return &((PyDictObject *)dict)->ma_version_tag;
}
#endif

/* Stores into inline values tell no watcher on 3.13.0 (CPython issue 125608). Asked at run time:
   one wheel serves every 3.13.x. */
static inline bool
tw_inline_stores_are_silent(void)
{
#if PY_VERSION_HEX >= 0x030D0000
    return Py_Version < 0x030D01F0;
#else
    return false;
#endif
}

static inline bool
tw_dict_has_inline_values(PyObject *dict)
{
    return ((PyDictObject *)dict)->ma_values != NULL;
}

/* The `__dict__` that a managed object already has, or NULL while it is not made. The word before
   the GC header holds it; 3.12 keeps inline values in the same word, marked by its lowest bit. */
static inline PyObject *
tw_managed_dict_peek(PyObject *obj)
{
    PyObject *word = ((PyObject **)obj)[-3];

    return (uintptr_t)word & 1 ? NULL : word;
}

/* The word that `tw_managed_dict_peek` reads: it holds the dict once that is made. */
static inline const void *
tw_managed_dict_word(PyObject *obj)
{
    return (PyObject **)obj - 3;
}

/* The dict of a class (not its proxy), borrowed. */
static inline PyObject *
tw_class_dict(PyTypeObject *type)
{
#if PY_VERSION_HEX >= 0x030C0000
    PyObject *dict = PyType_GetDict(type);
    Py_XDECREF(dict);
    return dict;
#else
    return type->tp_dict;
#endif
}

/* --- classes ----------------------------------------------------------------------------- */

/* A number that the class keeps until it or a base of it changes; 0 while it has none. */
static inline unsigned int
tw_type_tag(PyTypeObject *type)
{
    return type->tp_version_tag;
}

/* The 8 bytes that hold that number: the other 4 of them are padding. */
static inline const void *
tw_type_tag_word(PyTypeObject *type)
{
    _Static_assert(offsetof(PyTypeObject, tp_finalize) - offsetof(PyTypeObject, tp_version_tag)
                   == sizeof(uint64_t), "tp_version_tag is followed by padding");
    return &type->tp_version_tag;
}

/* Gives the class such a number if it can have one. `name` is any interned str. */
static inline unsigned int
tw_type_tag_assign(PyTypeObject *type, PyObject *name)
{
#if PY_VERSION_HEX >= 0x030C0000
    (void)name;
    (void)PyUnstable_Type_AssignVersionTag(type);
#else
    (void)_PyType_Lookup(type, name);
#endif
    return type->tp_version_tag;
}

/* What the class or a base of it holds under an interned name, borrowed; NULL if nothing. No Python
   code runs: the keys of the dicts of classes are str. */
static inline PyObject *
tw_type_lookup(PyTypeObject *type, PyObject *name)
{
    return _PyType_Lookup(type, name);
}

/* --- weak references ----------------------------------------------------------------------- */

/* What it refers to, as a new reference; NULL without an exception once that is gone. */
static inline PyObject *
tw_weakref_get(PyObject *ref)
{
#if PY_VERSION_HEX >= 0x030D0000
    PyObject *obj = NULL;

    (void)PyWeakref_GetRef(ref, &obj);
    return obj;
#else
    PyObject *obj = PyWeakref_GetObject(ref);

    return obj == Py_None ? NULL : Py_NewRef(obj);
#endif
}

/* --- code extras ------------------------------------------------------------------------- */

static inline Py_ssize_t
tw_extra_request(freefunc free_extra)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Eval_RequestCodeExtraIndex(free_extra);
#else
    return _PyEval_RequestCodeExtraIndex(free_extra);
#endif
}

static inline int
tw_extra_get(PyObject *code, Py_ssize_t index, void **extra)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Code_GetExtra(code, index, extra);
#else
    return _PyCode_GetExtra(code, index, extra);
#endif
}

static inline int
tw_extra_set(PyObject *code, Py_ssize_t index, void *extra)
{
#if PY_VERSION_HEX >= 0x030C0000
    return PyUnstable_Code_SetExtra(code, index, extra);
#else
    return _PyCode_SetExtra(code, index, extra);
#endif
}

/* --- frames that have not started --------------------------------------------------------- */

static inline PyCodeObject *
tw_frame_code(_PyInterpreterFrame *frame)
{
#if PY_VERSION_HEX >= 0x030D0000
    return (PyCodeObject *)frame->f_executable;
#else
    return frame->f_code;
#endif
}

static inline PyObject *
tw_frame_function(_PyInterpreterFrame *frame)
{
#if PY_VERSION_HEX >= 0x030C0000
    return frame->f_funcobj;
#else
    return (PyObject *)frame->f_func;
#endif
}

/* False once an instruction ran, and for frames of generators. */
static inline bool
tw_frame_is_fresh(_PyInterpreterFrame *frame)
{
    if (frame->owner != FRAME_OWNED_BY_THREAD) {
        return false;
    }
#if PY_VERSION_HEX >= 0x030D0000
    return frame->instr_ptr == _PyCode_CODE(tw_frame_code(frame));
#else
    return frame->prev_instr == _PyCode_CODE(tw_frame_code(frame)) - 1;
#endif
}

/* A tracer, a profiler, or one of them at work right now. */
static inline bool
tw_is_tracing(PyThreadState *tstate)
{
    return tstate->c_tracefunc != NULL || tstate->c_profilefunc != NULL || tstate->tracing;
}

/* From 3.12 on the evaluator ends every frame; up to 3.11 the caller of the hook does. */
#define TW_EVALUATOR_ENDS_FRAMES TW_HAS_WATCHERS

/* Turns a frame that has not started into one that returns `value` (stolen) at once: `stub` is code
   without locals whose last instruction is RETURN_VALUE. CPython then ends it as any other. */
static inline void
tw_frame_make_return(_PyInterpreterFrame *frame, PyCodeObject *stub, PyObject *value)
{
    PyCodeObject *code = tw_frame_code(frame);
    PyObject **slots = frame->localsplus;
    _Py_CODEUNIT *last = _PyCode_CODE(stub) + Py_SIZE(stub) - 1;
    int used = frame->stacktop;

    frame->stacktop = 0;
    for (int i = 0; i < used; i++) {
        Py_CLEAR(slots[i]);
    }
    slots[0] = value;
    frame->stacktop = 1;
#if PY_VERSION_HEX >= 0x030D0000
    frame->f_executable = Py_NewRef((PyObject *)stub);
    frame->instr_ptr = last;
#else
    frame->f_code = (PyCodeObject *)Py_NewRef((PyObject *)stub);
    frame->prev_instr = last - 1;
#endif
    Py_DECREF(code);
}

#endif
