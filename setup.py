"""The two C extensions; everything else is in pyproject.toml."""

from setuptools import Extension, setup

FLAGS = ["-O2", "-fvisibility=hidden", "-Wall", "-Wextra", "-Wno-unused-parameter",
         "-Wno-missing-field-initializers"]

setup(
    ext_modules=[
        Extension(
            "torchweld.frame._frame",
            sources=[
                "src/torchweld/frame/_module.c",
                "src/torchweld/frame/_guards.c",
                "src/torchweld/frame/_verify.c",
                "src/torchweld/frame/_ops.c",
                "src/torchweld/frame/_snapshot.c",
                "src/torchweld/frame/_attrs.c",
                "src/torchweld/frame/_consts.c",
                "src/torchweld/frame/_watch.c",
                "src/torchweld/frame/_sizes.c",
                "src/torchweld/frame/_tensor.c",
                "src/torchweld/frame/_tensor_spec.c",
                "src/torchweld/frame/_entry.c",
                "src/torchweld/frame/_dispatch.c",
                "src/torchweld/frame/_records.c",
                "src/torchweld/frame/_hook.c",
            ],
            depends=[
                "src/torchweld/frame/_compat.h",
                "src/torchweld/frame/_frame.h",
                "src/torchweld/frame/_tensor.h",
            ],
            extra_compile_args=FLAGS,
            libraries=["dl"],
        ),
        Extension(
            "torchweld.runtime._driver",
            sources=[
                "src/torchweld/runtime/_driver.c",
                "src/torchweld/runtime/_build.c",
                "src/torchweld/runtime/_calls.c",
                "src/torchweld/runtime/_constants.c",
                "src/torchweld/runtime/_cuda.c",
                "src/torchweld/runtime/_gemm.c",
                "src/torchweld/runtime/_given.c",
                "src/torchweld/runtime/_graph.c",
                "src/torchweld/runtime/_lend.c",
                "src/torchweld/runtime/_trace.c",
                "src/torchweld/runtime/_memory.c",
                "src/torchweld/runtime/_parallel.c",
                "src/torchweld/runtime/_products.c",
                "src/torchweld/runtime/_region.c",
                "src/torchweld/runtime/_resize.c",
                "src/torchweld/runtime/_sized.c",
                "src/torchweld/runtime/_torch.c",
            ],
            depends=[
                "src/torchweld/runtime/_cuda.h",
                "src/torchweld/runtime/_driver.h",
                "src/torchweld/runtime/_gemm.h",
                "src/torchweld/runtime/_graph.h",
            ],
            extra_compile_args=FLAGS,
            libraries=["dl"],
        ),
    ],
)
