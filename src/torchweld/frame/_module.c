/* The module torchweld.frame._frame. */
#include "_frame.h"

static PyMethodDef module_methods[] = {
    {"torch_init", tw_torch_init, METH_VARARGS,
     "torch_init(TensorBase, libtorch_cpu, samples): whether tensors are read through libtorch's C "
     "shim. libtorch_cpu is the path of the loaded library, or None; samples are tensors whose "
     "classes are then known to run no Python code when they are read."},
    {"torch_fast", tw_torch_fast, METH_O,
     "torch_fast(wanted): switch the shim on or off; whether it is on."},
    {"torch_inference", tw_torch_inference, METH_NOARGS,
     "torch_inference(): whether TENSOR tells inference tensors without running Python code."},
    {"tensor_codes", tw_tensor_codes, METH_O,
     "tensor_codes(tensor): its TENSOR spec (class, dtype, device type, device index, layout, "
     "requires_grad, sizes, strides)."},
    {"set_pending", tw_set_pending, METH_VARARGS,
     "set_pending(type, drive): a result of an entry that is of this class goes to `drive`, when "
     "what the entry was called with is let go; the answer is the result."},
    {NULL},
};

static struct PyModuleDef module_def = {
    PyModuleDef_HEAD_INIT,
    .m_name = "torchweld.frame._frame",
    .m_doc = "Guard programs, the dispatcher and the frame hook.",
    .m_size = -1,
    .m_methods = module_methods,
};

static int
add_types(PyObject *module)
{
    return PyModule_AddType(module, &TwProgram_Type) < 0
        || PyModule_AddType(module, &TwEntry_Type) < 0
        || PyModule_AddType(module, &TwDispatcher_Type) < 0 ? -1 : 0;
}

static int
add_ops(PyObject *module)
{
    for (int op = 0; op < TW_N_OPS; op++) {
        if (PyModule_AddIntConstant(module, TW_OPS[op].name, op) < 0) {
            return -1;
        }
    }
    return 0;
}

PyMODINIT_FUNC
PyInit__frame(void)
{
    PyObject *module;

    if (PyInterpreterState_Get() != PyInterpreterState_Main()) {
        PyErr_SetString(PyExc_ImportError, "torchweld works in the main interpreter only");
        return NULL;
    }
    module = PyModule_Create(&module_def);
    if (module == NULL) {
        return NULL;
    }
    if (tw_watch_init() < 0 || tw_attrs_init() < 0 || add_types(module) < 0 || add_ops(module) < 0
        || tw_hook_init(module) < 0) {
        Py_DECREF(module);
        return NULL;
    }
    return module;
}
