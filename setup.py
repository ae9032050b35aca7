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
                "src/torchweld/frame/_dispatch.c",
                "src/torchweld/frame/_hook.c",
            ],
            depends=["src/torchweld/frame/_compat.h", "src/torchweld/frame/_frame.h"],
            extra_compile_args=FLAGS,
            libraries=["dl"],
        ),
        Extension(
            "torchweld.runtime._driver",
            sources=["src/torchweld/runtime/_driver.c"],
            extra_compile_args=FLAGS,
            libraries=["dl"],
        ),
    ],
)
