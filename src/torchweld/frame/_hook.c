/* The PEP 523 hook. While a thread is inside a hooked region, the Python frames that it starts are
   looked up: code that has entries runs them in place of its frame, unknown code is shown to the
   callback. Outside of such regions the hook is not installed, since it slows down every call. */
#include "_frame.h"

static struct {
    PyObject *callback, *on_miss;       /* NULL: not installed */
    _PyFrameEvalFunction previous;
    bool buried;                /* another hook sat on top of ours when we left */
    PyCodeObject *stub;         /* returns what is on its stack */
    PyTypeObject *view_type;
} hook;

int tw_hook_regions = 0;
static _Thread_local int depth;                 /* of regions in this thread; 0 while suspended */
static _Thread_local PyCodeObject *pass_once;   /* its next frame is not looked up */

int
tw_hook_suspend(void)
{
    int saved;

    if (tw_hook_regions == 0) {
        return 0;
    }
    saved = depth;
    depth = 0;
    return saved;
}

void
tw_hook_resume(int saved)
{
    if (saved != 0) {
        depth = saved;
    }
}

/* --- the callback ---------------------------------------------------------------------------- */

static PyObject *
view_of(_PyInterpreterFrame *frame, PyObject *const *flat, Py_ssize_t n_flat)
{
    PyObject *view = PyStructSequence_New(hook.view_type), *locals = PyTuple_New(n_flat);

    if (view == NULL || locals == NULL) {
        Py_XDECREF(view);
        Py_XDECREF(locals);
        return NULL;
    }
    for (Py_ssize_t i = 0; i < n_flat; i++) {
        PyTuple_SET_ITEM(locals, i, Py_NewRef(flat[i]));
    }
    PyStructSequence_SetItem(view, 0, Py_NewRef((PyObject *)tw_frame_code(frame)));
    PyStructSequence_SetItem(view, 1, locals);
    PyStructSequence_SetItem(view, 2, Py_NewRef(tw_frame_function(frame)));
    return view;
}

/* What the callback says of this frame: a tuple of entries, or NULL for none. It never fails: its
   exceptions are reported as unraisable. Frames that it starts are not looked up. */
static PyObject *
ask(PyObject *callback, _PyInterpreterFrame *frame, PyObject *const *flat, Py_ssize_t n_flat)
{
    PyObject *answer = NULL, *view = view_of(frame, flat, n_flat);
    int saved = tw_hook_suspend();

    Py_INCREF(callback);
    if (view != NULL) {
        answer = PyObject_CallOneArg(callback, view);
        Py_DECREF(view);
    }
    if (answer == Py_None) {
        Py_CLEAR(answer);
    }
    else if (answer != NULL) {
        answer = tw_entries_of(answer);
    }
    if (PyErr_Occurred()) {
        PyErr_WriteUnraisable(callback);
    }
    Py_DECREF(callback);
    tw_hook_resume(saved);
    return answer;
}

/* --- the hook -------------------------------------------------------------------------------- */

/* The frame that the hook below ours runs now: a hook that puts itself on top while it is below
   ours as well hands it back to us. */
static _Thread_local _PyInterpreterFrame *handed_on;

static PyObject *
run_default(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    _PyInterpreterFrame *saved = handed_on;
    PyObject *result;

    if (hook.previous == NULL || hook.previous == _PyEval_EvalFrameDefault || saved == frame) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    handed_on = frame;
    result = hook.previous(tstate, frame, throwflag);
    handed_on = saved;
    return result;
}

/* Ends a frame that has not started, with the value (consumed) or, if it is NULL, the exception. */
static PyObject *
end_frame(PyThreadState *tstate, _PyInterpreterFrame *frame, PyObject *value)
{
    if (!TW_EVALUATOR_ENDS_FRAMES) {
        return value;
    }
    if (value != NULL) {
        tw_frame_make_return(frame, hook.stub, value);
    }
    return _PyEval_EvalFrameDefault(tstate, frame, value == NULL);
}

static bool
is_capturable(const PyCodeObject *code)
{
    return (code->co_flags & CO_OPTIMIZED)
        && !(code->co_flags & (CO_GENERATOR | CO_COROUTINE | CO_ASYNC_GENERATOR));
}

static bool
has_entries(const TwRecord *r)
{
    return r != NULL && r != TW_SKIP && r != TW_QUIET;
}

/* The flat arguments of a frame and, behind them, its function: entries of functions with a closure
   find the cells there, so that all functions with the same code share them. */
enum { FLAT_ROOM = 24 };

static PyObject **
flat_of(_PyInterpreterFrame *frame, Py_ssize_t n_flat, PyObject *room[FLAT_ROOM])
{
    PyObject **flat = room;

    if (n_flat + 1 > FLAT_ROOM && (flat = PyMem_New(PyObject *, n_flat + 1)) == NULL) {
        return NULL;
    }
    memcpy(flat, frame->localsplus, sizeof(PyObject *) * (size_t)n_flat);
    flat[n_flat] = tw_frame_function(frame);
    return flat;
}

static bool
entry_takes_function(PyObject *item, Py_ssize_t n_flat)
{
    return Py_IS_TYPE(item, &TwEntry_Type) && ((TwEntry *)item)->program->n_args > n_flat;
}

/* Whether all of these entries read the function of the frame. */
static bool
take_function(PyObject *entries, Py_ssize_t n_flat)
{
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(entries); i++) {
        PyObject *item = PyTuple_GET_ITEM(entries, i), *alive = NULL;
        bool takes;

        if (!Py_IS_TYPE(item, &TwEntry_Type)) {
            item = alive = tw_weakref_get(item);
        }
        takes = item == NULL || entry_takes_function(item, n_flat);
        Py_XDECREF(alive);
        if (!takes) {
            return false;
        }
    }
    return true;
}

static void
settle(_PyInterpreterFrame *frame, PyCodeObject *code, PyObject *entries)
{
    PyFunctionObject *fn = (PyFunctionObject *)tw_frame_function(frame);
    int status = entries == NULL ? tw_record_skip(code) : tw_record_set(code, Py_NewRef(entries));
    TwRecord *r;

    if (status < 0) {
        PyErr_WriteUnraisable((PyObject *)code);
    }
    else if (entries != NULL && has_entries(r = tw_record_get(code))) {
        r->globals = fn->func_globals;
        r->closure = take_function(entries, tw_code_n_flat(code)) ? NULL : fn->func_closure;
    }
}

/* Whether the entries of this code are for the function that the frame belongs to. */
static bool
is_for(const TwRecord *r, _PyInterpreterFrame *frame)
{
    PyFunctionObject *fn = (PyFunctionObject *)tw_frame_function(frame);

    return r->globals == NULL
        || (r->globals == fn->func_globals
            && (r->closure == NULL || r->closure == fn->func_closure));
}

/* Asks about a frame that no entry took; `known` says if its code had entries. */
static PyObject *
entries_for(_PyInterpreterFrame *frame, PyCodeObject *code, bool known)
{
    PyObject *entries = ask(known ? hook.on_miss : hook.callback, frame, frame->localsplus,
                            tw_code_n_flat(code));
    TwRecord *now = tw_record_get(code);      /* the callback may have changed it */

    if (entries != NULL) {
        settle(frame, code, entries);
    }
    else if (known && has_entries(now)) {
        now->settled = true;
    }
    else if (!known && (now == NULL || (has_entries(now) && !tw_any_alive(now->entries)))) {
        settle(frame, code, NULL);
    }
    return entries;
}

/* Runs the entries of the frame's code, which the callbacks may make first. False: none matches. */
static bool
try_flat(_PyInterpreterFrame *frame, PyCodeObject *code, PyObject *const *flat, Py_ssize_t n_flat,
         PyObject **result)
{
    TwRecord *r = tw_record_get(code);
    PyObject *entries;
    bool known = r != NULL && tw_any_alive(r->entries), matched;

    if (known) {
        if (!is_for(r, frame)) {
            return false;
        }
        if (tw_entries_try(r->entries, flat, n_flat, result)) {
            return true;
        }
        r = tw_record_get(code);            /* guards may have changed it */
        if (hook.on_miss == NULL || !has_entries(r) || r->settled) {
            return false;
        }
    }
    if (hook.callback == NULL) {
        return false;
    }
    entries = entries_for(frame, code, known);
    if (entries == NULL) {
        return false;
    }
    matched = tw_entries_try(entries, flat, n_flat, result);
    Py_DECREF(entries);
    return matched;
}

static bool
try_frame(_PyInterpreterFrame *frame, PyCodeObject *code, PyObject **result)
{
    Py_ssize_t n_flat = tw_code_n_flat(code);
    PyObject *room[FLAT_ROOM], **flat;
    bool matched;

    if (code->co_nfreevars == 0) {
        return try_flat(frame, code, frame->localsplus, n_flat, result);
    }
    flat = flat_of(frame, n_flat, room);
    if (flat == NULL) {
        return false;
    }
    matched = try_flat(frame, code, flat, n_flat + 1, result);
    if (flat != room) {
        PyMem_Free(flat);
    }
    return matched;
}

/* Runs the frame, and nothing that it calls is looked up. */
static PyObject *
run_quietly(PyThreadState *tstate, _PyInterpreterFrame *frame)
{
    int saved = tw_hook_suspend();
    PyObject *result = run_default(tstate, frame, 0);

    tw_hook_resume(saved);
    return result;
}

static void slot_leave(void);

static PyObject *
eval_frame(PyThreadState *tstate, _PyInterpreterFrame *frame, int throwflag)
{
    PyCodeObject *code;
    PyObject *result = NULL;
    bool matched;

    if (handed_on == frame) {
        return _PyEval_EvalFrameDefault(tstate, frame, throwflag);
    }
    if (depth == 0 || throwflag || hook.callback == NULL) {
        if (tw_hook_regions == 0) {
            slot_leave();       /* a hook that sat on top of ours has put us back */
        }
        return run_default(tstate, frame, throwflag);
    }
    if (!tw_frame_is_fresh(frame)) {
        return run_default(tstate, frame, throwflag);
    }
    code = tw_frame_code(frame);
    if (pass_once == code) {
        pass_once = NULL;
        return run_default(tstate, frame, throwflag);
    }
    if (tw_record_get(code) == TW_QUIET) {
        return run_quietly(tstate, frame);
    }
    if (tw_record_get(code) == TW_SKIP || tw_is_tracing(tstate)) {
        return run_default(tstate, frame, throwflag);
    }
    if (!is_capturable(code)) {
        settle(frame, code, NULL);
        return run_default(tstate, frame, throwflag);
    }
    matched = try_frame(frame, code, &result);
    if (matched) {
        return end_frame(tstate, frame, result);
    }
    /* the callback may just have said so */
    return tw_record_get(code) == TW_QUIET ? run_quietly(tstate, frame)
                                           : run_default(tstate, frame, throwflag);
}

/* --- the interpreter's slot ------------------------------------------------------------------- */

static void
slot_take(void)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interp);

    if (now == eval_frame || (hook.buried && now != _PyEval_EvalFrameDefault)) {
        return;                 /* the hook on top chains to ours; chaining back would be a loop */
    }
    hook.previous = now;
    hook.buried = false;
    _PyInterpreterState_SetEvalFrameFunc(interp, eval_frame);
}

static void
slot_leave(void)
{
    PyInterpreterState *interp = PyInterpreterState_Get();
    _PyFrameEvalFunction now = _PyInterpreterState_GetEvalFrameFunc(interp);

    hook.buried = now != eval_frame && now != _PyEval_EvalFrameDefault;
    if (now == eval_frame) {
        _PyInterpreterState_SetEvalFrameFunc(interp, hook.previous);
    }
}

static void
enter(void)
{
    depth++;
    if (tw_hook_regions++ == 0) {
        slot_take();
    }
}

static void
leave(void)
{
    depth--;
    if (--tw_hook_regions == 0) {
        slot_leave();
    }
}

/* --- from Python ------------------------------------------------------------------------------ */

static PyObject *
hook_install(PyObject *module, PyObject *args)
{
    PyObject *callback, *on_miss = Py_None;

    if (!PyArg_ParseTuple(args, "O|O:hook_install", &callback, &on_miss)) {
        return NULL;
    }
    if (!PyCallable_Check(callback) || (on_miss != Py_None && !PyCallable_Check(on_miss))) {
        PyErr_SetString(PyExc_TypeError, "the frame callbacks must be callable");
        return NULL;
    }
    Py_XSETREF(hook.callback, Py_NewRef(callback));
    Py_XSETREF(hook.on_miss, on_miss == Py_None ? NULL : Py_NewRef(on_miss));
    Py_RETURN_NONE;
}

static PyObject *
hook_uninstall(PyObject *module, PyObject *unused)
{
    Py_CLEAR(hook.callback);
    Py_CLEAR(hook.on_miss);
    Py_RETURN_NONE;
}

static PyObject *
hook_enter(PyObject *module, PyObject *unused)
{
    enter();
    Py_RETURN_NONE;
}

/* Takes and ignores the arguments of `__exit__`. */
static PyObject *
hook_leave(PyObject *module, PyObject *const *args, Py_ssize_t n_args)
{
    if (depth == 0) {
        PyErr_SetString(PyExc_RuntimeError, "hook_leave without hook_enter in this thread");
        return NULL;
    }
    leave();
    Py_RETURN_NONE;
}

static PyObject *
hook_active(PyObject *module, PyObject *unused)
{
    return PyBool_FromLong(depth > 0);
}

static PyObject *
run_hooked(PyObject *module, PyObject *const *args, Py_ssize_t n_args, PyObject *kwnames)
{
    PyCodeObject *outer = pass_once;
    PyObject *result, *fn;

    if (n_args < 1) {
        PyErr_SetString(PyExc_TypeError, "run_hooked takes a callable and its arguments");
        return NULL;
    }
    fn = PyMethod_Check(args[0]) ? PyMethod_GET_FUNCTION(args[0]) : args[0];
    enter();
    pass_once = PyFunction_Check(fn) ? (PyCodeObject *)PyFunction_GET_CODE(fn) : NULL;
    result = PyObject_Vectorcall(args[0], args + 1, (size_t)(n_args - 1), kwnames);
    pass_once = outer;
    leave();
    return result;
}

PyMethodDef tw_hook_methods[] = {
    {"hook_install", hook_install, METH_VARARGS,
     "hook_install(callback, on_miss=None): who is asked about frames in hooked regions."},
    {"hook_uninstall", hook_uninstall, METH_NOARGS, "hook_uninstall(): ask nobody any more."},
    {"hook_enter", hook_enter, METH_NOARGS, "hook_enter(): begin a hooked region of this thread."},
    {"hook_leave", (PyCFunction)(void (*)(void))hook_leave, METH_FASTCALL,
     "hook_leave(): end the innermost hooked region of this thread."},
    {"hook_active", hook_active, METH_NOARGS, "hook_active(): whether this thread is in a region."},
    {"run_hooked", (PyCFunction)(void (*)(void))run_hooked, METH_FASTCALL | METH_KEYWORDS,
     "run_hooked(fn, *args, **kwargs): run fn as it is, its callees in a hooked region."},
    {"set_skip", tw_set_skip, METH_O, "set_skip(code): never look at frames of this code again."},
    {"set_quiet", tw_set_quiet, METH_O,
     "set_quiet(code): never look at frames of this code again, nor at what they call."},
    {"attach", tw_attach, METH_VARARGS,
     "attach(code, entries): what frames of this code try first."},
    {"detach", tw_detach, METH_O, "detach(code): it is unknown again."},
    {"detach_all", tw_detach_all, METH_NOARGS, "detach_all(): drop the entries of all code."},
    {"code_state", tw_code_state, METH_O,
     "code_state(code): None if unknown, 'skip', or its tuple of entries."},
    {NULL},
};

/* --- set up ---------------------------------------------------------------------------------- */

static PyStructSequence_Field view_fields[] = {
    {"code", "the code object about to run"},
    {"locals", "its flat arguments"},
    {"function", "the function it belongs to"},
    {NULL},
};

static PyStructSequence_Desc view_desc = {
    .name = "torchweld.frame._frame.FrameView",
    .doc = "A frame that has not started.",
    .fields = view_fields,
    .n_in_sequence = 3,
};

/* Code without locals: RESUME, RETURN_VALUE. */
static PyCodeObject *
make_stub(void)
{
    PyObject *empty = (PyObject *)PyCode_NewEmpty("<torchweld>", "compiled", 1);
    PyObject *opcode = PyImport_ImportModule("opcode");
    PyObject *map = opcode == NULL ? NULL : PyObject_GetAttrString(opcode, "opmap");
    PyObject *replace = empty == NULL ? NULL : PyObject_GetAttrString(empty, "replace");
    PyObject *none = PyTuple_New(0), *kwargs = NULL, *stub = NULL;

    if (map != NULL && replace != NULL && none != NULL) {
        char code[4] = {0};
        code[0] = (char)PyLong_AsLong(PyDict_GetItemString(map, "RESUME"));
        code[2] = (char)PyLong_AsLong(PyDict_GetItemString(map, "RETURN_VALUE"));
        kwargs = Py_BuildValue("{s:y#,s:i}", "co_code", code, (Py_ssize_t)4, "co_stacksize", 1);
    }
    if (kwargs != NULL) {
        stub = PyObject_Call(replace, none, kwargs);
    }
    Py_XDECREF(empty);
    Py_XDECREF(opcode);
    Py_XDECREF(map);
    Py_XDECREF(replace);
    Py_XDECREF(none);
    Py_XDECREF(kwargs);
    return (PyCodeObject *)stub;
}

int
tw_hook_init(PyObject *module)
{
    if (tw_records_init() < 0) {
        return -1;
    }
    hook.stub = make_stub();
    hook.view_type = PyStructSequence_NewType(&view_desc);
    if (hook.stub == NULL || hook.view_type == NULL) {
        return -1;
    }
    return PyModule_AddObjectRef(module, "FrameView", (PyObject *)hook.view_type) < 0
        || PyModule_AddFunctions(module, tw_hook_methods) < 0 ? -1 : 0;
}
