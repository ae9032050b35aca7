"""The captured graph as a module, whose Python code is written when somebody asks for it."""

from __future__ import annotations

from typing import Any

from torch.fx import Graph, GraphModule
from torch.fx.graph import PythonCode
from torch.nn import Module


class CapturedModule(GraphModule):
    """A GraphModule that the pipeline reads as a graph; user's backends may call and print it.

    Writing and compiling the code of a large graph takes as long as a twentieth of its capture.
    """

    def __init__(self, root: Module, graph: Graph, class_name: str = "Captured") -> None:
        self.__dict__["_postponed"] = True
        super().__init__(root, graph, class_name)

    def recompile(self) -> PythonCode | None:  # type: ignore[override]
        if self.__dict__.pop("_postponed", False):
            return None
        return super().recompile()

    @property
    def code(self) -> str:
        if "_code" not in self.__dict__:
            self.recompile()
        return super().code

    def __str__(self) -> str:
        self.code  # noqa: B018  it prints what is written
        return super().__str__()

    def forward(self, *args: Any) -> Any:
        """Write the code, which becomes the class's own forward, and run it."""
        if type(self).forward is CapturedModule.forward:  # else this is a bound method from before
            self.recompile()
        return type(self).forward(self, *args)
